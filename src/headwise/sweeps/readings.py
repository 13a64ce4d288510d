"""What is read off whole curves: how many times more heads one needs than another, and which heads lift one above 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.stats.resampling import independent
from headwise.sweeps.curve import Curve, Sweep
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
            resampled = []
            for one, seed in ((curve, curve.seed), (other, curve.seed + (not paired))):
                options: dict[str, Any] = {"groups": one.groups, "seed": seed}
                needs = resampled_needs(one.k, one.gains, one.effects, threshold, stays, **options)
                resampled.append(np.nan_to_num(needs, nan=np.inf))
            with np.errstate(invalid="ignore"):
                interval = stats.resampled_interval(resampled[0] / resampled[1], units)
            ratio = [k, other_k, k / other_k, *interval]
        row |= dict(zip(columns, ratio, strict=True))
    return row


OVERSHOOT = 1.2
"""Explained effect above which a circuit is said to do better than the whole model."""
EXTRA_POINTS = 12
"""Most further numbers of heads that are measured to find the heads behind an overshoot."""


def overshoots(curve: Sweep) -> bool:
    """Whether some of the order's heads explain clearly more than all heads do."""
    return bool(curve.defined and curve.shares.max() > OVERSHOOT)


def rise_points(k: np.ndarray, shares: np.ndarray, most: int = EXTRA_POINTS) -> list[int]:
    """The numbers of heads from the last point below an explained effect of 1 to the peak: those that are measured, and
    at most `most` of those between them.

    >>> rise_points(np.array([0, 2, 5, 9]), np.array([0, 0.8, 1.4, 1]))
    [2, 3, 4, 5]
    """
    start, peak = _rise(shares)
    measured = [int(number) for number in k[start : peak + 1]]
    between = [number for number in range(measured[0], measured[-1]) if number not in measured]
    if len(between) > most:
        between = [between[i] for i in np.linspace(0, len(between) - 1, most).round().astype(int)]
    return sorted({*measured, *between})


def _rise(shares: np.ndarray) -> tuple[int, int]:
    """The points at which the last rise to the peak begins (explained effect at most 1) and ends."""
    peak = int(np.argmax(shares))
    below = np.flatnonzero(shares[:peak] <= 1)
    return (int(below[-1]) if len(below) else 0), peak


def overshoot_rows(curve: Sweep) -> pd.DataFrame:
    """The steps of the rise to the peak, largest first: which heads were added, and how much they added.

    A step is the way from one measured number of heads to the next: one head, or several where they were not measured
    one by one. `rise` is the change of the explained effect.
    """
    shares = curve.shares
    start, peak = _rise(shares)
    rows = [
        {
            "k": int(curve.k[i + 1]),
            "heads": " ".join(map(str, curve.order[curve.k[i] : curve.k[i + 1]])),
            "before": shares[i],
            "after": shares[i + 1],
            "rise": shares[i + 1] - shares[i],
        }
        for i in range(start, peak)
    ]
    table = pd.DataFrame([row for row in rows if row["rise"] > 0])
    ends = {"peak": float(shares[peak]), "peak_k": int(curve.k[peak])}
    return table.sort_values("rise", ascending=False, kind="stable").assign(**ends)
