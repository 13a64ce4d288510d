"""Whether a run can be reproduced: its tables are made again from its steps, and some steps are computed again.

The run itself is only read, so it may lie on a read-only disk. Its results are copied row by row into a store of our
own, in a temporary folder. There the study is carried out twice: first with every result, which computes nothing and
gives the tables; then without the chosen ones, which computes exactly those.

A run folder may come from anybody: nothing in it decides whether code from a model's repository may run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import pandas as pd

from headwise.charts.style import without_figures
from headwise.errors import HeadwiseError
from headwise.files import explain_disk_errors
from headwise.registry import plugin_hint
from headwise.runs import Call, Finished, RunFolder, Store, read_info, read_table
from headwise.runs.store import DamagedError, copied_store
from headwise.settings import build
from headwise.studies.base import Study, carry_out, studies, study_named
from headwise.studies.workbench import Workbench
from headwise.tables.columns import to_pandas

TOLERANCE = 1e-3
"""Largest difference that counts as the same number, as a share of the column's largest value: rounding differs
between machines, threads and batch sizes."""


@dataclass(frozen=True)
class Verified:
    """One step computed again, or one table made again."""

    label: str
    same: bool
    """Whether everything agrees: of a step within the tolerance, of a table exactly."""
    message: str
    """In words: identical, or what differs by how much."""
    kind: str = "step"
    """step, table, or store: what is wrong with all steps together."""


class _MissingStep(Exception):  # noqa: N818 - not an error of anybody's: it ends the first of the two passes
    """The settings ask for a step that the run does not hold."""


class _ComputesNothing:
    """The executor of the pass that makes the tables from what is stored."""

    def run(self, calls: Sequence[Call[Any]], folder: Any, progress: bool) -> Generator[Finished, None, None]:
        raise _MissingStep(calls[0].label)
        yield


def verify(
    run: str | Path,
    *,
    steps: int | Literal["all"] = 3,
    seed: int | None = None,
    tolerance: float = TOLERANCE,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    workbench: Workbench | None = None,
) -> list[Verified]:
    """Make the tables of a finished run again from its steps, compute `steps` randomly chosen ones (or all) again, and
    compare each with what the run holds.

    seed: which steps are chosen. By default nobody can know it before, so nobody can forge the other steps alone.
    device, dtype: other than in the run's settings, where this machine has another device.
    trust_remote_code: whether code from the models' repositories may run; what the run folder says of it is ignored.
    """
    path = Path(run)
    info = read_info(path)
    given = {name: value for name, value in (("device", device), ("dtype", dtype)) if value is not None}
    chosen, settings = _study_of(path, info, given | {"trust_remote_code": trust_remote_code})
    with TemporaryDirectory() as temporary:
        copy = Path(temporary) / "run"
        try:
            stored = _copy_results(path, copy)
        except DamagedError as error:
            return _broken_store(str(error).partition(";")[0])
        if not stored:
            return _broken_store("holds no finished step; nothing can be verified")
        bench = workbench or Workbench()
        bench.configure(settings)
        _check_models(info["fingerprints"], bench.fingerprints(settings))
        for entry in info["written"]:  # what the report shows as the settings of the tables
            if any(entry[name] != info[name] for name in ("settings", "fingerprints")):
                message = "names other settings or models for a table than for the run"
                return [Verified("run.json", False, message, "table")]
        try:
            recomputed = _carry_out(chosen, settings, bench, copy, info, _ComputesNothing())
        except _MissingStep as missing:
            return _broken_store(f"lacks a step that the run's settings ask for: {missing}")
        except HeadwiseError:
            raise
        except Exception as error:  # forged results may have any form
            return _broken_store(f"has a result that the study cannot use ({type(error).__name__}: {error})")
        names = {file.stem for folder in (path, copy) for file in (folder / "tables").glob("*.parquet")}
        tables = [_compared_table(name, path, copy) for name in sorted(names)]
        keys = sorted(recomputed)
        drawn = keys if steps == "all" else random.Random(seed).sample(keys, min(steps, len(keys)))
        with Store(copy / "cells.sqlite") as store:
            before = {key: _comparable(store, key) for key in drawn}
            store.forget(drawn)
        _carry_out(chosen, settings, bench, copy, info)
        with Store(copy / "cells.sqlite") as store:
            return tables + [
                _compared(
                    recomputed[key].label, old, _comparable(store, key) if key in store else None, tolerance
                )
                for key, old in before.items()
            ]


def _study_of(run: Path, info: dict[str, Any], given: dict[str, Any]) -> tuple[Study, Any]:
    """The study of a finished run, and its settings, with those that are given in their place."""
    if info.get("status") != "done":
        raise HeadwiseError(
            f"the run {run} is {info.get('status')}; finish it first with the command that started it"
        )
    try:
        chosen = study_named(str(info["study"]))
        return chosen, build(chosen.settings, info["settings"] | given)
    except HeadwiseError as error:
        from_plugin = info["plugins"] or info["study"] not in studies()
        raise HeadwiseError(f"{error}{plugin_hint(info['plugins']) if from_plugin else ''}") from None


def _broken_store(message: str) -> list[Verified]:
    return [Verified("cells.sqlite", False, message, "store")]


def _copy_results(run: Path, copy: Path) -> int:
    """Copy the results of a run, each of them checked, into a new store of our own; returns their number."""
    with explain_disk_errors(copy):
        copy.mkdir(parents=True)
    with copied_store(run) as old, Store(copy / "cells.sqlite") as new:
        new.sync(False)
        for key in old.keys():  # noqa: SIM118 - a store is no mapping
            new.put(*old.encoded(key))
        return len(new)


def _carry_out(
    chosen: Study, settings: Any, bench: Workbench, copy: Path, info: dict[str, Any], executor: Any = None
) -> dict[str, Call[Any]]:
    """Carry out the study on the copy; returns the calls that it asked for, by key."""
    fields = {name: info[name] for name in ("study", "settings", "fingerprints")}
    with without_figures(), RunFolder(copy, command="verify", **fields) as folder:
        folder.executor = executor
        carry_out(chosen, settings, bench, folder)
        return folder.calls


def _compared_table(name: str, run: Path, copy: Path) -> Verified:
    """A table of the run beside the one made from its steps."""
    in_run, from_steps = ((folder / "tables" / f"{name}.parquet").is_file() for folder in (run, copy))
    if not in_run:
        message = "is missing from the run"
    elif not from_steps:
        message = "does not come from the run's steps"
    else:
        try:
            # Not the bytes: another version of the Parquet library writes the same rows otherwise.
            differences, _ = _differences(name, read_table(copy, name), read_table(run, name), tolerance=0.0)
            message = "; ".join(differences)
        except HeadwiseError as error:
            message = str(error)
    return Verified(f"table {name}", not message, message or "identical", "table")


def _check_models(before: dict[str, str], now: dict[str, str]) -> None:
    for name in {**before, **now}:
        fingerprint = before.get(name)
        if now.get(name) != fingerprint:
            raise HeadwiseError(
                f"the model {name!r} is not the one of the run: its fingerprint was {fingerprint}, and is now "
                f"{now.get(name)}"
            )


def _comparable(store: Store, key: str) -> dict[str, pd.DataFrame]:
    """A stored result as tables: its arrays and frames, and every other value by its place."""
    _, encoded = store.encoded(key)
    tables = {f"part {name}": to_pandas(store.table(key, name)) for name in encoded.blobs}
    leaves = _leaves(json.loads(encoded.notes)["value"], "result")
    return tables | {place: pd.DataFrame({"value": [value]}) for place, value in leaves}


def _leaves(content: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every value of a JSON structure with its place; `details` are left out: they say what it took, not what came."""
    if isinstance(content, dict):
        for name, item in content.items():
            if name != "details":
                yield from _leaves(item, f"{place}.{name}")
    elif isinstance(content, list):
        for number, item in enumerate(content):
            yield from _leaves(item, f"{place}[{number}]")
    else:
        yield place, content


def _compared(
    label: str, old: dict[str, pd.DataFrame], new: dict[str, pd.DataFrame] | None, tolerance: float
) -> Verified:
    if new is None:
        # Only when an earlier step gave other numbers is another one asked for in its place.
        return Verified(label, False, "was not computed again, because a step it depends on differs")
    if list(old) != list(new):
        return Verified(label, False, "gave a result of another form")
    compared = [_differences(name, old[name], new[name], tolerance) for name in old]
    if message := "; ".join(sentence for sentences, _ in compared for sentence in sentences):
        return Verified(label, False, message)
    largest = max((gap for _, gap in compared), default=0.0)
    message = "identical" if largest == 0 else f"the same to {largest:.1e} of the largest value"
    return Verified(label, True, message)


def _differences(
    name: str, old: pd.DataFrame, new: pd.DataFrame, tolerance: float
) -> tuple[list[str], float]:
    """What differs by more than the tolerance, in words, and the largest difference of a column."""
    if list(old.columns) != list(new.columns) or len(old) != len(new):
        shapes = f"{len(new)} rows of {list(new.columns)}, not {len(old)} of {list(old.columns)}"
        return [f"{name} has {shapes}"], 1.0
    gaps = {column: _gap(old[column], new[column]) for column in old.columns}
    sentences = [
        f"{name}.{column} differs by {gap:.1e} of its largest value"
        for column, gap in gaps.items()
        if gap > tolerance
    ]
    return sentences, max(gaps.values(), default=0.0)


def _gap(old: pd.Series, new: pd.Series) -> float:
    """How far apart two columns are: of numbers the largest difference over the largest value, of words 0 or 1."""
    if not (pd.api.types.is_numeric_dtype(old) and pd.api.types.is_numeric_dtype(new)):
        return float(not old.astype(object).equals(new.astype(object)))
    x, y = (column.to_numpy(dtype=float, na_value=np.nan) for column in (old, new))
    if (np.isnan(x) != np.isnan(y)).any():
        return 1.0
    differ = ~np.isnan(x) & (x != y)
    size = np.abs(x[np.isfinite(x)]).max(initial=0.0) or 1.0
    return float(np.abs(x[differ] - y[differ]).max(initial=0.0) / size)


def summary(results: Sequence[Verified]) -> str:
    """All of it in one sentence."""
    steps, tables = ([one.same for one in results if one.kind == kind] for kind in ("step", "table"))
    if not steps:
        return "the run could not be verified"
    return (
        f"{sum(steps)} of {len(steps)} steps are the same, and {sum(tables)} of {len(tables)} tables are what the "
        "run's steps give"
    )
