"""From arrays to the tables of the study `backups`, and from tables back to heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Head, Order, heads_of
from headwise.scores.interactions.estimate import EstimateAgreement
from headwise.stats.resampling import Groups

GREEDY, SINGLE, RANDOM = "greedy", "single", "random"


def primary_of(table: pd.DataFrame) -> Order:
    """The heads that the greedy search accepted, in its order; none for an empty table."""
    return heads_of(table[table["accepted"]]) if len(table) else []


def backups_of(table: pd.DataFrame) -> Order:
    """The backups of a table, the largest difference first."""
    return heads_of(table[table["backup"]]) if len(table) else []


def matrix_heads(
    heads: Sequence[Head], single: np.ndarray, estimate: np.ndarray, primary: Sequence[Head], first: int
) -> Order:
    """The heads of the interaction matrix, by layer: the primary set; then in turn the heads with the largest effect
    alone, and those whose effect grows most where the primary set is removed, by the first-order estimate.

    single, estimate: means of the heads, in their order.
    """
    rankings = [
        [heads[i] for i in np.argsort(-np.abs(values), kind="stable")] for values in (single, estimate)
    ]
    in_turn = [head for pair in zip(*rankings, strict=True) for head in pair]
    return sorted(list(dict.fromkeys([*primary, *in_turn]))[:first])


def curve_rows(
    values: Mapping[str, np.ndarray], ks: Sequence[int], about: Mapping[str, Any], groups: Groups
) -> pd.DataFrame:
    """Rows of `curves`: the mean of each series `[R, K, E]` at every k, with its interval; R draws, 1 for an order."""
    rows = []
    for series, table in values.items():
        for number, k in enumerate(ks):
            at_k = table[:, number]
            lo, hi = stats.crossed_interval(at_k, groups=groups)
            row = {"series": series, "action": "mask", "k": k, "value": at_k.mean(), "lo": lo, "hi": hi}
            rows.append({**about, **row, "n": at_k.shape[1], "draws": len(at_k)})
    return pd.DataFrame(rows).assign(draw=pd.array([None] * len(rows), dtype="Int32"))


def agreement_row(found: EstimateAgreement, of: str) -> dict[str, Any]:
    """A row of `agreement`: the first-order estimate against exact interactions."""
    return {"of": of, **found._asdict()}
