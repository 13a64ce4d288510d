"""Two curves: how many times more heads (or edges) one needs than the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise import stats
from headwise.stats.resampling import independent
from headwise.sweeps.curve import Curve
from headwise.sweeps.explained import heads_needed, resampled_needs

_RATIO_COLUMNS = {
    False: ("k", "other_k", "ratio", "lo", "hi"),
    True: ("stays", "other_stays", "stays_ratio", "stays_lo", "stays_hi"),
}
"""By whether the curve must stay above the threshold."""


def ratio_row(curve: Curve, other: Curve, *, threshold: float, paired: bool) -> dict[str, Any]:
    """How many times more heads (or edges) the first curve needs than the other, with the interval over examples.

    paired: both curves are measured on the same examples, so both are resampled alike; otherwise each on its own.
    NaN unless both curves are defined. Both run from none to all.
    """
    row: dict[str, Any] = {"resampling": "paired" if paired else "independent", "n": curve.n}
    row["other_n"] = other.n
    units = min(independent(one.groups, one.n) for one in (curve, other))
    for stays, columns in _RATIO_COLUMNS.items():
        ratio = [np.nan] * len(columns)
        if curve.defined and other.defined:
            k, other_k = (
                float(heads_needed(one.k, one.shares, threshold, stays=stays)) for one in (curve, other)
            )
            # A curve that never gets there needs more heads than there are.
            resampled = [
                np.nan_to_num(_resampled_needs(one, threshold, stays, seed), nan=np.inf)
                for one, seed in ((curve, curve.seed), (other, curve.seed + (not paired)))
            ]
            with np.errstate(invalid="ignore"):
                interval = stats.resampled_interval(resampled[0] / resampled[1], units)
            ratio = [k, other_k, k / other_k, *interval]
        row |= dict(zip(columns, ratio, strict=True))
    return row


def _resampled_needs(curve: Curve, threshold: float, stays: bool, seed: int) -> np.ndarray:
    options: dict[str, Any] = {"stays": stays, "groups": curve.groups, "seed": seed}
    return resampled_needs(curve.k, curve.gains, curve.effects, threshold, **options)
