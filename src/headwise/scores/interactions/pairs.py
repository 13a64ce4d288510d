"""Joint effects of pairs: exact ones, and their first-order estimate.

A unit is one head, or several heads that are removed together. Of a pair (a, b) four values of the metric are measured
on every example: with all heads, without a, without b, without both (`model/measure/joint.py`). All four come from
batches of one shape. Rounding depends on the shape, so that only then a head that does nothing has an interaction of
exactly 0.

The effect of a set of heads is E = metric with all heads minus metric without the set. The interaction of a pair is
I(a, b) = E({a, b}) − E({a}) − E({b}), in the metric's unit. Where E({a, b}) is positive, a positive interaction means
that the two can replace one another (redundancy); a negative one, that they need one another.

The estimate is attribution with a unit removed minus plain attribution: one backward pass with a removed gives that of
I(a, b) for every other head b. With attribution's known failure: where the metric is saturated in b's gate, the
gradient does not see b.

E examples, P pairs, U units, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headwise import stats
from headwise.heads import Head, mask_gates
from headwise.model.measure.engine import Engine
from headwise.model.measure.joint import measure_joint

Unit = tuple[Head, ...]
"""Heads that are removed together."""


class PairEffects(NamedTuple):
    """What removing the two units of each pair does, per example `[E, P]`, in the metric's unit."""

    interaction: np.ndarray
    joint: np.ndarray
    """E({a, b})."""
    first: np.ndarray
    """E({a})."""
    second: np.ndarray
    """E({b})."""

    @property
    def conditional(self) -> np.ndarray:
        """The effect of b where a is removed already: E({a, b}) − E({a})."""
        given: np.ndarray = self.second + self.interaction
        return given

    def single(self, pairs: np.ndarray, units: int) -> np.ndarray:
        """The effect of each of so many units alone `[E, units]`; every unit must be in one of the pairs `[P, 2]`."""
        alone = np.full((len(self.first), units), np.nan)
        alone[:, pairs[:, 0]], alone[:, pairs[:, 1]] = self.first, self.second
        return alone


def unit_gates(units: Sequence[Unit], shape: tuple[int, int]) -> np.ndarray:
    """Gates `[U, L, H]`, each with the heads of one unit at 0."""
    return np.stack([mask_gates(unit, shape) for unit in units])


def all_pairs(count: int) -> np.ndarray:
    """Every pair of `count` units once, the lower number first `[P, 2]`."""
    return np.stack(np.triu_indices(count, 1), axis=1)


def pair_effects(
    engine: Engine, units: Sequence[Unit], pairs: np.ndarray, examples: np.ndarray | None = None
) -> PairEffects:
    """Exact effects of the pairs `[P, 2]` of units.

    examples: run only these, by their index in the task.
    """
    present, place = np.unique(pairs, return_inverse=True)
    place = place.reshape(pairs.shape)
    gates = unit_gates([units[number] for number in present], engine.model.shape)
    found = measure_joint(engine, gates, place, examples)
    without_a, without_b = (found.single[column] for column in place.T)
    interaction = (without_a - found.pairs) - (found.plain - without_b)
    effects = (interaction, *(found.plain - values for values in (found.pairs, without_a, without_b)))
    return PairEffects(*(effect.T for effect in effects))


# ---- the first-order estimate -------------------------------------------------------------------------


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
    finite = np.isfinite(exact) & np.isfinite(estimate)
    exact, estimate = exact[finite], estimate[finite]
    top = max(1, round(TOP * len(exact)))
    largest = [set(np.argsort(-np.abs(values), kind="stable")[:top].tolist()) for values in (exact, estimate)]
    varied = len(exact) > 1 and np.ptp(exact) > 0 and np.ptp(estimate) > 0
    return EstimateAgreement(
        stats.rank_correlation(exact, estimate),
        float(np.corrcoef(exact, estimate)[0, 1]) if varied else float("nan"),
        len(largest[0] & largest[1]) / top if len(exact) else float("nan"),
        len(exact),
    )
