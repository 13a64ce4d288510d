"""The first-order estimate of interactions: attribution with a unit removed minus plain attribution.

One backward pass with a removed gives the estimate of I(a, b) for every other head b. With attribution's known failure:
where the metric is saturated in b's gate, the gradient does not see b.

E examples, P pairs, U units, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headwise import stats
from headwise.model.measure.engine import Engine
from headwise.scores.interactions.pairs import Unit, unit_gates

TOP = 0.05
"""The share of the pairs that counts as largest, for the overlap of estimate and exact interaction."""


def estimated_interactions(
    engine: Engine, units: Sequence[Unit], pairs: np.ndarray, both: bool = True
) -> np.ndarray:
    """Estimates of I(a, b) for the pairs `[P, 2]` of units, per example `[E, P]`, in the metric's unit.

    both: the mean of the two estimates, one with a and one with b removed; otherwise only a, the first of each pair,
    is removed. Cost: one backward pass per removed unit.
    """
    gates = unit_gates(units, engine.model.shape)
    plain = engine.gradients()[1]  # E, L, H
    found = np.zeros((len(plain), len(pairs)))
    directions = (pairs, pairs[:, ::-1]) if both else (pairs,)
    for removed in np.unique(np.concatenate(directions)[:, 0]):
        change = engine.gradients(gates[removed])[1] - plain
        for direction in directions:
            for number in np.flatnonzero(direction[:, 0] == removed):
                for head in units[direction[number, 1]]:
                    found[:, number] += change[:, head.layer, head.head]
    return found / len(directions)


class EstimateAgreement(NamedTuple):
    """How far the first-order estimate agrees with the exact interactions, over pairs."""

    rank_correlation: float
    """Spearman's, of the signed means."""
    correlation: float
    """Pearson's, of the signed means: large interactions weigh more."""
    found: float
    """The share of the largest 5 % of the exact interactions, by size, that is also among the largest 5 % of the
    estimates; chance gives .05."""
    pairs: int


def agreement_with_estimate(exact: np.ndarray, estimate: np.ndarray) -> EstimateAgreement:
    """Agreement of means `[P]`; NaN where there are too few pairs to tell."""
    known = np.isfinite(exact) & np.isfinite(estimate)
    exact, estimate = exact[known], estimate[known]
    top = max(1, round(TOP * len(exact)))
    largest = [set(np.argsort(-np.abs(values), kind="stable")[:top].tolist()) for values in (exact, estimate)]
    varied = len(exact) > 1 and np.ptp(exact) > 0 and np.ptp(estimate) > 0
    return EstimateAgreement(
        stats.rank_correlation(exact, estimate),
        float(np.corrcoef(exact, estimate)[0, 1]) if varied else float("nan"),
        len(largest[0] & largest[1]) / top if len(exact) else float("nan"),
        len(exact),
    )
