"""Circuits that do better than the whole model: whether a curve rises clearly above 1, and which heads lift it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headwise.sweeps.curve import Sweep

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
