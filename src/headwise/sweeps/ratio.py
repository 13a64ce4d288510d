"""How many times more heads, or edges, one curve needs than another to reach a threshold.

K points of a curve, E examples, B resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.stats.resampling import independent
from headwise.sweeps.explained import heads_needed, resampled_needs

_RATIO_COLUMNS = {
    False: ("k", "other_k", "ratio", "lo", "hi"),
    True: ("stays", "other_stays", "stays_ratio", "stays_lo", "stays_hi"),
}
"""By whether the curve must stay above the threshold."""


def curve_values(examples: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """k `[K]` and the metric `[K, E]` of one curve, from its rows of `examples`."""
    wide = examples.pivot(index="k", columns="example", values="value").sort_index()
    return wide.index.to_numpy(dtype=int), wide.to_numpy(dtype=float)


def ratio_row(
    examples: pd.DataFrame,
    other_examples: pd.DataFrame,
    *,
    threshold: float,
    defined: bool,
    paired: bool,
    groups: Sequence[str | None] | None = None,
    other_groups: Sequence[str | None] | None = None,
    seed: int,
) -> dict[str, Any]:
    """How many times more heads (or edges) the first model needs than the other, with the interval over examples.

    Each takes the rows of `examples` of one curve from none to all. Paired: both curves are measured on the
    same examples, so both are resampled alike; otherwise each on its own. NaN unless both curves are `defined`.
    groups, other_groups: of the examples, in the order of their numbers; whole groups are resampled.
    """
    row: dict[str, Any] = {
        "resampling": "paired" if paired else "independent",
        "n": int(examples["example"].nunique()),
        "other_n": int(other_examples["example"].nunique()),
    }
    curves = [_curve(rows) for rows in (examples, other_examples)]
    units = min(independent(groups, row["n"]), independent(other_groups, row["other_n"]))
    for stays, columns in _RATIO_COLUMNS.items():
        needed = [
            float(heads_needed(k, gains.mean(1) / effect.mean(), threshold, stays=stays))
            for k, gains, effect in curves
        ]
        resampled = [
            resampled_needs(*curve, threshold, stays=stays, groups=shared, seed=seed if paired else seed + i)
            for i, (curve, shared) in enumerate(zip(curves, (groups, other_groups), strict=True))
        ]
        values = [np.nan] * len(columns)
        if defined:
            values = [*needed, needed[0] / needed[1], *_interval(resampled, units)]
        row |= dict(zip(columns, values, strict=True))
    return row


def _interval(needed: Sequence[np.ndarray], n: int) -> tuple[float, float]:
    """The interval of the ratio of two `[B]`; a curve that never gets there needs more heads than there are."""
    k, other = (np.where(np.isnan(x), np.inf, x) for x in needed)
    with np.errstate(invalid="ignore"):
        return stats.resampled_interval(k / other, n)


def _curve(examples: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """k `[K]`, gains `[K, E]` and effect `[E]`: for masked heads both have the other sign, and their ratio the same."""
    k, values = curve_values(examples)
    return k, values - values[0], values[-1] - values[0]
