"""How many heads stand out: where the curve of sorted scores bends."""

from __future__ import annotations

import numpy as np


def elbow_count(scores: np.ndarray) -> int:
    """How many of the scores, by absolute value, lie before the elbow of their sorted curve.

    The elbow is the point farthest from the chord that joins the first and the last point of the curve
    (Kneedle without smoothing, Satopää et al. 2011). Below the chord it is the first of those that are alike,
    and not counted; above it the last of those that stand out, and counted. NaN is no score. A curve without a
    bend (all scores equal, or fewer than three) gives 0: none stands out. Scaling the scores changes nothing.

    >>> elbow_count(np.array([0.1, 9.0, 0.1, -8.0, 0.1, 0.1]))
    2
    """
    curve = np.sort(np.abs(np.asarray(scores, dtype=np.float64).ravel()))
    curve = curve[~np.isnan(curve)][::-1]
    if len(curve) < 3:
        return 0
    # The distance to a line is the height above it times a constant, so heights are enough.
    height = curve - np.linspace(curve[0], curve[-1], len(curve))
    # Rounding of the chord must not pass for a bend.
    if np.abs(height).max() <= 1e-12 * curve[0]:
        return 0
    elbow = int(np.abs(height).argmax())
    return elbow if height[elbow] < 0 else elbow + 1
