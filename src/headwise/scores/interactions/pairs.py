"""Exact joint effects of pairs, many pairs in one batch.

A unit is one head, or several heads that are removed together. Of a pair (a, b) four values of the metric are measured
on every example: with all heads, without a, without b, without both. All four come from the same batch. Rounding
depends on the shape of a batch, so that only then a head that does nothing has an interaction of exactly 0.

The effect of a set of heads is E = metric with all heads minus metric without the set. The interaction of a pair is
I(a, b) = E({a, b}) − E({a}) − E({b}), in the metric's unit. Where E({a, b}) is positive, a positive interaction means
that the two can replace one another (redundancy); a negative one, that they need one another.

E examples, P pairs, U units, L layers, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from headwise.heads import Head, mask_gates, ones
from headwise.model.measure.engine import Engine

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


def unit_name(unit: Unit) -> str:
    """`L23H3`, or `L20H1+L23H3` for several heads."""
    return "+".join(map(str, unit))


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
    gates = unit_gates(units, engine.model.shape)
    first_layers = np.array([min(unit).layer for unit in units])
    rank = np.empty(len(units), dtype=int)
    rank[np.argsort(first_layers, kind="stable")] = np.arange(len(units))
    chosen = np.arange(len(engine.task)) if examples is None else np.asarray(examples)
    found = np.empty((4, len(chosen), len(pairs)))
    for numbers in tiles(rank[pairs], engine.in_one_batch()):
        part = pairs[numbers]
        present, place = np.unique(part, return_inverse=True)
        place = place.reshape(part.shape)
        bases = np.concatenate([ones(engine.model.shape)[None], gates[present]])
        measured = engine.measure(np.minimum(*gates[part.T]), chosen, bases)
        each = np.arange(len(part))
        full, neither = measured.full[0], measured.values
        without_a, without_b = (measured.full[1 + column, each] for column in place.T)
        interaction = (without_a - neither) - (full - without_b)
        effects = (interaction, full - neither, full - without_a, full - without_b)
        found[:, :, numbers] = [effect.T for effect in effects]
    return PairEffects(*found)


def tiles(ranks: np.ndarray, capacity: int) -> Iterator[np.ndarray]:
    """The numbers of the pairs that are measured together, of pairs whose units have these ranks `[P, 2]` by layer.

    A tile is a rectangle of neighbouring units: its pairs and the single units fill one batch of `capacity` variants.
    Neighbours have equal gates in the blocks before them, which the batch then computes once. A square has the least
    single units for its pairs.

    >>> [tile.tolist() for tile in tiles(np.array([[0, 1], [0, 2], [0, 3], [1, 2]]), 6)]
    [[0, 1], [2], [3]]
    """
    low, high = np.sort(ranks, axis=1).T
    rows = min(len(np.unique(low)), max(1, math.isqrt(capacity) - 1))
    columns = max(1, (capacity - 1 - rows) // (rows + 1))
    row, column = (
        np.unique(values, return_inverse=True)[1].reshape(-1) // size
        for values, size in ((low, rows), (high, columns))
    )
    order = np.lexsort((column, row))
    changes = np.flatnonzero(np.diff(row[order]) | np.diff(column[order])) + 1
    yield from np.split(order, changes)
