"""What nested masks minimise, as a function of the metric of the rows of an update.

The explained effect of a mask is 1 + (m(gates) − m(full)) / effect, effect = mean m(full) − mean m(none): its error is
counted in shares of the effect, so that a loss of 1 is that of a mask that keeps nothing.

G groups of rows (one seed and one k each), B examples of a group.
"""

from __future__ import annotations

import numpy as np

OBJECTIVES = ("match", "most")
"""`match`: the explained effect should be 1, neither less nor more. `most`: as large as possible (what CPR rewards)."""
BAND = 0.1
"""Errors below it count quadratically, larger ones by their size (Huber): a curve that leaves the band around 1 for a
few heads pulls as hard as one that is far away."""


def row_losses(
    errors: np.ndarray, objective: str, of_mean: float, below: float
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of each group `[G]`, and its gradient with respect to the errors `[G, B]`.

    errors `[G, B]`: explained effect of every row minus 1. of_mean: the share of the loss that is of the group's mean,
    which is what a curve shows; the rest is the mean of the rows' own losses, which asks for the same behaviour on
    every example and not on average alone. below: how much more an error below 0 counts than one above.
    """
    size = errors.shape[1]
    if objective == "most":
        return -errors.mean(1), np.full(errors.shape, -1.0 / size)
    mean = errors.mean(1)
    losses = of_mean * _huber(mean, below) + (1 - of_mean) * _huber(errors, below).mean(1)
    slopes = of_mean * _slope(mean, below)[:, None] + (1 - of_mean) * _slope(errors, below)
    return losses, slopes / size


def curve_costs(shares: np.ndarray, objective: str, below: float) -> np.ndarray:
    """How far each of the curves `shares[S, K]` of explained effects is from 1 `[S]`; smaller is better."""
    errors = shares - 1
    far = -errors if objective == "most" else np.abs(errors) * _weight(errors, below)
    costs: np.ndarray = far.mean(1)
    return costs


def _weight(error: np.ndarray, below: float) -> np.ndarray:
    return np.where(error < 0, below, 1.0)


def _huber(error: np.ndarray, below: float) -> np.ndarray:
    size = np.abs(error)
    result: np.ndarray = np.where(size <= BAND, error**2 / (2 * BAND), size - BAND / 2)
    return result * _weight(error, below)


def _slope(error: np.ndarray, below: float) -> np.ndarray:
    return np.clip(error / BAND, -1, 1) * _weight(error, below)
