"""The tables behind the cards of several heads of one model on one task, computed together.

Tables: `card_examples` (the examples on which a head helps and hurts most), `card_attention` (its attention on the
strongest ones), `card_tokens` and `card_patterns`. Each has the columns model, task, layer and head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from headwise.cards.patterns import pattern_table
from headwise.cards.tokens import Prompt, TokenReader, prompts_of
from headwise.errors import HeadwiseError
from headwise.heads import Head, single_gates
from headwise.metrics import metric as metric_named
from headwise.model.attention.attention import attention
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.tasks.examples import Task

TABLES = ("card_examples", "card_attention", "card_tokens", "card_patterns")
WHOLE_MAP = 40
"""Most tokens of a head's strongest prompts whose whole attention maps are kept; else only the answer's rows are."""


@dataclass
class Measured:
    """The tables of the cards of several heads."""

    tables: dict[str, pd.DataFrame]
    effects: np.ndarray  # heads, E: the metric with the head minus the metric without it
    metric: str
    reference: str
    notes: list[str] = field(default_factory=list)
    """Why a part is missing, where one is."""


def measure_heads(
    model: Model,
    task: Task,
    heads: Sequence[Head],
    *,
    examples: int = 3,
    metric: str | None = None,
    reference: str = "mean",
    advance: Callable[[int], None] | None = None,
    **how: Any,
) -> Measured:
    """Everything that the cards of these heads show, except for their scores.

    examples: how many examples are shown in each list. metric: by default the task's own. advance: called after each
    of `STEPS` parts. reference: what replaces each head. how: positions, seed and batch_tokens (see `Engine`).
    """
    model.check_heads(heads)
    step = advance or (lambda steps: None)
    measured = metric_named(metric or task.metric)
    engine = Engine(model, task, measured, reference=reference, **how)
    effects = engine.measure(single_gates(heads, model.shape)).effects
    step(1)
    prompts, notes = prompts_of(model, task), list[str]()
    strongest = [np.argsort(-np.abs(np.nan_to_num(of_head)), kind="stable")[:examples] for of_head in effects]
    looked = _optional(notes, "attention", _attention, model, heads, prompts, strongest)
    step(1)
    listed = [[] if looked is None else _most_attended(looked, head) for head in heads]
    tokens = _optional(notes, "token lists", _tokens, model, heads, prompts, strongest, listed)
    step(1)
    patterns = _optional(
        notes, "attention patterns", pattern_table, model, task, how.get("seed", 0), how.get("batch_tokens")
    )
    step(1)
    parts = {
        "card_examples": _examples(task, heads, effects, examples).assign(
            metric=measured.name, reference=reference
        ),
        "card_attention": looked,
        "card_tokens": tokens,
        "card_patterns": None if patterns is None else _of_heads(patterns, heads),
    }
    about = {"model": model.name, "task": task.name}
    tables = {
        name: pd.DataFrame({**about, **part})
        for name, part in parts.items()
        if part is not None and len(part)
    }
    return Measured(tables, effects, measured.name, reference, list(dict.fromkeys(notes)))


STEPS = 4
"""How many parts `measure_heads` reports as done."""


def _optional(notes: list[str], what: str, compute: Callable[..., Any], *args: Any) -> Any:
    """A part of the card, or None with a note where this model does not allow it."""
    try:
        return compute(*args)
    except HeadwiseError as error:
        notes.append(f"no {what}: {error}")
        return None


def _examples(task: Task, heads: Sequence[Head], effects: np.ndarray, count: int) -> pd.DataFrame:
    """The examples with the largest and the smallest effect of each head."""
    rows = []
    for head, of_head in zip(heads, effects, strict=True):
        for kind, sign in (("helps", 1), ("hurts", -1)):
            order = [e for e in np.argsort(-sign * of_head, kind="stable") if sign * of_head[e] > 0]
            for rank, number in enumerate(order[:count], 1):
                example = task.examples[number]
                foils = ", ".join(foil.strip() for foil in example.foils)
                texts = {"prompt": example.prompt, "target": example.target.strip(), "foils": foils}
                place = {
                    "layer": head.layer,
                    "head": head.head,
                    "kind": kind,
                    "rank": rank,
                    "example": int(number),
                }
                rows.append({**place, **texts, "value": float(of_head[number])})
    columns = ["layer", "head", "kind", "rank", "example", "prompt", "target", "foils", "value"]
    return pd.DataFrame(rows, columns=columns)


def _attention(
    model: Model, heads: Sequence[Head], prompts: Sequence[Prompt], strongest: Sequence[np.ndarray]
) -> pd.DataFrame:
    """Attention of each head on its strongest examples, a row for every query and each key that it can attend to."""
    parts = []
    for head, chosen in zip(heads, strongest, strict=True):
        rows = [prompts[number].ids for number in chosen]
        maps = max(map(len, rows)) <= WHOLE_MAP
        for number, seen in zip(chosen, attention(model, rows, [head], maps=maps), strict=True):
            weights = seen.rows[0] if seen.maps is None else seen.maps[0]
            first = len(seen.ids) - len(weights)  # the first query that is kept
            query, key = np.nonzero(np.tri(len(weights), len(seen.ids), first, bool))
            place = {"layer": head.layer, "head": head.head, "example": int(number)}
            pairs = {"query": query + first, "key": key, "attention": weights[query, key]}
            texts = {"token": np.array(seen.tokens, dtype=object)[key], "id": np.array(seen.ids)[key]}
            parts.append(pd.DataFrame({**place, **pairs, **texts}))
    return pd.concat(parts, ignore_index=True)


def _most_attended(looked: pd.DataFrame, head: Head) -> list[int]:
    """The token that the answer's position attends to most in each example; the first token is not counted."""
    of_head = _of_heads(looked, [head])
    rows = of_head[
        (of_head["query"] == of_head.groupby("example")["query"].transform("max")) & (of_head["key"] > 0)
    ]
    largest = rows.loc[rows.groupby("example", sort=False)["attention"].idxmax(), "id"]
    return list(dict.fromkeys(map(int, largest)))


def _tokens(
    model: Model,
    heads: Sequence[Head],
    prompts: Sequence[Prompt],
    strongest: Sequence[np.ndarray],
    listed: Sequence[list[int]],
) -> pd.DataFrame:
    """Token lists of the strongest examples, the logits of the answers of all, and the lists of the OV weights."""
    reader = TokenReader(model, prompts)
    parts = []
    for head, chosen, sources in zip(heads, strongest, listed, strict=True):
        output = reader.output_table(head)
        output = output[output["kind"].isin(["target", "foil"]) | output["example"].isin(chosen)]
        both = pd.concat([output, reader.weights_table(head, sources)], ignore_index=True)
        parts.append(pd.DataFrame({"layer": head.layer, "head": head.head, **both}))
    return pd.concat(parts, ignore_index=True)


def _of_heads(table: pd.DataFrame, heads: Sequence[Head]) -> pd.DataFrame:
    chosen = [head in heads for head in zip(table["layer"], table["head"], strict=True)]
    return table[chosen].reset_index(drop=True)
