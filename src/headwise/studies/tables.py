"""What the tables of several studies share: long tables of arrays, the tables of a score, short hashes of values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise.heads import Scores
from headwise.runs import CellResult
from headwise.tasks import Task


def fingerprint(*values: str | np.ndarray) -> str:
    """A short hash of texts and arrays, as part of what a cell depends on."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(value.encode() if isinstance(value, str) else value.tobytes())
    return digest.hexdigest()[:16]


def long_table(
    about: Mapping[str, Any], axes: Iterable[Mapping[str, Any]], values: Mapping[str, np.ndarray]
) -> pd.DataFrame:
    """One row per entry of arrays of the same shape.

    about: columns of one value each; axes: for each axis of the arrays the columns that label it, integers as int32.
    """
    shape = next(iter(values.values())).shape
    columns = dict(about)
    for axis, entries in zip(axes, np.indices(shape).reshape(len(shape), -1), strict=True):
        for name, labels in axis.items():
            spread = np.asarray(labels)[entries]
            columns[name] = spread.astype(np.int32) if spread.dtype.kind == "i" else spread
    return pd.DataFrame(columns | {name: array.ravel() for name, array in values.items()})


def example_table(scores: Scores) -> pd.DataFrame:
    """The per-example values behind a score: one row per example and head."""
    about = {name: getattr(scores, name) for name in ("model", "task", "method", "metric")}
    layers, heads = np.array(scores.heads()).T
    axes = [{"example": range(scores.n)}, {"layer": layers, "head": heads}]
    table = long_table(about, axes, {"value": scores.examples[:, layers, heads]})
    if scores.groups is not None:
        table["group"] = np.array(scores.groups, dtype=object)[table["example"]]
    # Where a method chose not to run an example there is no row, rather than a missing value.
    return table.dropna(subset=["value"]).reset_index(drop=True) if scores.own else table


def input_table(
    task: Task, about: Mapping[str, Any], part: str, numbers: Sequence[int] | np.ndarray | None = None
) -> pd.DataFrame:
    """The table `inputs`: prompt, target and foils of each example, so that the report can show them.

    part: `scores` or `curves`, the per-example values that the numbers belong to; a study may measure both on
    different examples. numbers: of the examples, where `examples` does not count them from 0.
    """
    texts = {
        "prompt": [example.prompt for example in task],
        "target": [example.target for example in task],
        "foils": [" / ".join(foil.strip() for foil in example.foils) for example in task],
    }
    example = np.arange(len(task)) if numbers is None else np.asarray(numbers)
    return pd.DataFrame({**about, "part": part, "example": example.astype(np.int32), **texts})


def score_result(
    scores: Scores, seed: int, numbers: np.ndarray | None = None, inputs: pd.DataFrame | None = None
) -> CellResult:
    """Tables `scores` and `examples` of one score, and the `inputs` of its task.

    numbers: of its examples in their task, where it has only some.
    """
    examples = example_table(scores)
    if numbers is not None:
        examples["example"] = numbers[examples["example"]]
    tables = {"scores": scores.table(seed), "examples": examples}
    # Values per seed belong to no example; without `numbers`, held-out rows do not say which example they are.
    unnumbered = scores.details.get("replicates") == "seeds" or (
        "held_out" in scores.details and numbers is None
    )
    if inputs is not None and not unnumbered:
        tables["inputs"] = inputs
    return CellResult(tables, dict(scores.details))
