"""What a curve over the first k heads of an order says: explained effect, heads needed, areas. Arrays in, numbers out.

The effect is m(full) − m(none), what all heads together do. The explained effect EE(k) is the share of it that
the first k heads account for: kept alone they bring back (m(first k kept) − m(none)) / effect, masked they take
away (m(full) − m(first k masked)) / effect. Either way EE(0) = 0 and EE(all) = 1. It is a ratio of means over
examples, never a mean of ratios, and may leave [0, 1]: heads that hinder make a part of the model better than
the whole.

K points of a curve, E examples, B resamples, F levels of all facets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headwise import stats

EXPLAINED = "explained_effect"
"""What the explained effect is called among the metrics of a table."""


class Estimate(NamedTuple):
    """A number and its interval."""

    value: float
    lo: float
    hi: float


class HeadsNeeded(NamedTuple):
    """How many heads reach a threshold, with intervals over examples. NaN where there is no curve to read."""

    k: float
    """The smallest number of heads that reaches it."""
    lo: float
    hi: float
    stays: float
    """The number from which on the curve never falls below it again."""
    stays_lo: float
    stays_hi: float


class Tracking(NamedTuple):
    """How far kept heads follow the whole model in each example and family; a match of means says nothing about it."""

    k: float
    """How many heads are kept."""
    r2: float
    """1 − Σ(m(kept) − m(full))² / Σ(m(full) − its mean)²: 1 follows exactly, 0 is what a constant does, below it is
    worse than a constant."""
    r2_lo: float
    r2_hi: float
    within: float
    """The share of examples whose metric is within a fifth of the mean effect of that of the whole model."""
    within_lo: float
    within_hi: float
    agreement: float = float("nan")
    """The share of examples whose most likely answer, among target and foils, is that of the whole model."""
    agreement_lo: float = float("nan")
    agreement_hi: float = float("nan")
    lowest_family: float = float("nan")
    """The lowest explained effect of a family of examples (`levels_of`)."""
    lowest_family_lo: float = float("nan")
    lowest_family_hi: float = float("nan")
    family: str = ""
    """Which family that is, such as `order = BAB`."""


CLOSE = 0.2
"""An example is followed if its metric is within this share of the mean effect."""


def tracking(k: float, kept: np.ndarray, full: np.ndarray, effect: float, **options: Any) -> Tracking:
    """From the metric with k heads kept and with all heads, per example `[E]`; effect: mean of m(full) − m(none).

    options: of `followed`.
    """
    columns = followed(kept[None], full, effect, **options)
    return Tracking(k=k, **{name: float(column[0]) for name, column in columns.items()})  # type: ignore[arg-type]


def followed(
    kept: np.ndarray,
    full: np.ndarray,
    effect: float,
    *,
    groups: Sequence[str | None] | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The fields of `Tracking` after k, each `[K]`: from the metric with several sets kept `[K, E]`, and with all."""
    errors = (kept - full).T  # E, K
    middle = full - full.mean()  # the ratio does not depend on it, its rounding does
    moments = np.column_stack([errors**2, middle, middle**2])
    resampled = stats.resampled_ratio(moments, np.ones(len(full)), groups=groups, seed=seed)  # B, K + 2
    with np.errstate(divide="ignore", invalid="ignore"):
        r2, again = (
            1 - m[..., :-2] / (m[..., -1:] - m[..., -2:-1] ** 2) for m in (moments.mean(axis=0), resampled)
        )
    intervals = [stats.resampled_interval(column, len(full), groups=groups) for column in again.T]
    r2_lo, r2_hi = np.array(intervals).T
    close = (np.abs(errors) <= CLOSE * abs(effect)).astype(float)
    lo, hi = stats.share_interval(close, groups=groups)
    within = {"within": close.mean(axis=0), "within_lo": lo, "within_hi": hi}
    return {"r2": r2, "r2_lo": r2_lo, "r2_hi": r2_hi, **within}


def heads_needed(k: np.ndarray, shares: np.ndarray, threshold: float, *, stays: bool = False) -> np.ndarray:
    """The smallest k at which each curve of `shares[..., K]` reaches the threshold, NaN where none does.

    stays: the k from which on the curve never falls below it again. Between two measured points the curve is a
    straight line, and the answer is rounded up to whole heads.

    >>> heads_needed(np.array([0, 1, 2, 3, 8]), np.array([0, 0.9, 0.5, 1.2, 1]), 0.9)
    array(1.)
    >>> heads_needed(np.array([0, 1, 2, 3, 8]), np.array([0, 0.9, 0.5, 1.2, 1]), 0.9, stays=True)
    array(3.)
    """
    reached = shares >= threshold - 1e-12  # all heads over themselves may come out a rounding below 1
    K = len(k)
    if stays:
        below = ~reached[..., ::-1]
        at = np.where(below.any(-1), K - np.argmax(below, axis=-1), 0)  # the point after the last one below
    else:
        at = np.where(reached.any(-1), np.argmax(reached, axis=-1), K)
    right = np.minimum(at, K - 1)
    left = np.maximum(right - 1, 0)
    low, high = (np.take_along_axis(shares, i[..., None], -1)[..., 0] for i in (left, right))
    with np.errstate(divide="ignore", invalid="ignore"):
        between = k[left] + (k[right] - k[left]) * (threshold - low) / (high - low)
    needed_k = np.where(at == 0, k[0], np.ceil(between - 1e-9))
    return np.where(at == K, np.nan, needed_k)


def areas(k: np.ndarray, shares: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """CPR = ∫EE and CMD = ∫|1 − EE| over the fraction of heads, by the trapezoid rule (MIB, arXiv 2504.13151).

    `k` runs from 0 to `total`. CPR: more is better, above 1 if some heads do better than all; CMD: 0 is best.
    """
    fraction = k / total
    return np.trapezoid(shares, fraction, axis=-1), np.trapezoid(np.abs(1 - shares), fraction, axis=-1)


def resampled_needs(
    k: np.ndarray,
    gains: np.ndarray,
    effect: np.ndarray,
    threshold: float,
    stays: bool = False,
    **options: Any,
) -> np.ndarray:
    """`[B]`: heads needed in every resample of the examples; gains `[K, E]`, effect `[E]`; options: groups, seed."""
    return heads_needed(k, stats.resampled_ratio(gains.T, effect, **options), threshold, stays=stays)


# --- which k to measure ---------------------------------------------------------------------------


def spread_points(total: int, points: int) -> list[int]:
    """At most `points` numbers of heads from 0 to all, closer together where heads are few.

    >>> spread_points(270, 9)
    [0, 4, 17, 38, 68, 105, 152, 207, 270]
    """
    steps = np.linspace(0, 1, max(points, 2))
    return sorted({int(number) for number in np.round(total * steps**2)})


def knee_points(k: np.ndarray, shares: np.ndarray, threshold: float, points: int) -> list[int]:
    """At most `points` further numbers of heads, where they tell most about a measured curve.

    First inside the steps in which the curve first reaches the threshold and last comes back to it, evenly; what
    is left over, in the middle of the steps over which the curve moves most.
    """
    if np.isnan(shares).any():
        return []
    chosen: set[int] = set()
    knees = []
    for stays in (False, True):
        at = heads_needed(k, shares, threshold, stays=stays)
        step = int(np.searchsorted(k, at))
        if np.isfinite(at) and 0 < step < len(k) and step not in knees:
            knees.append(step)
    for step in knees:
        chosen |= set(_inside(int(k[step - 1]), int(k[step]), points // len(knees)))
    while len(chosen) < points:
        marks = np.array(sorted({*k.tolist(), *chosen}))
        moves = np.abs(np.diff(np.interp(marks, k, shares)))
        moves[np.diff(marks) < 2] = -1
        widest = int(np.argmax(moves))
        if moves[widest] < 0:
            break
        chosen.add(int(marks[widest] + marks[widest + 1]) // 2)
    return sorted(chosen)


def _inside(low: int, high: int, points: int) -> Iterable[int]:
    """At most `points` whole numbers between two, evenly spread."""
    if high - low - 1 <= points:
        return range(low + 1, high)
    return (low + round((high - low) * (i + 1) / (points + 1)) for i in range(points))


# ---- families of examples: a mean over all of them can hide a kind that is not explained ----------------

FEWEST = 20
"""Examples below which the explained effect of a level is not read."""
SMALLEST_EFFECT = 0.2
"""A level whose own effect is a smaller share of the task's has too little to explain, and is left out."""
Families = Mapping[str, Mapping[str, Sequence[int]]]
"""Facet -> level -> indices of examples, as `Task.families` gives them."""
LOWEST = ("lowest_family", "lowest_family_lo", "lowest_family_hi")


@dataclass(frozen=True)
class Level:
    """The explained effect of one level of a facet."""

    facet: str
    level: str
    n: int
    value: np.ndarray  # K
    lo: np.ndarray  # K
    hi: np.ndarray  # K
    left_out: str
    """Why it does not count; empty where it does."""


def levels_of(
    gains: np.ndarray, effects: np.ndarray, families: Families, groups: Sequence[str | None] | None = None
) -> list[Level]:
    """Every level of each facet with several levels. gains `[K, E]`, effects `[E]`.

    A level counts if it has at least `FEWEST` examples and an effect of its own that is clear of 0 and at least
    `SMALLEST_EFFECT` of that of all examples. The intervals hold for all levels that count together (Bonferroni).
    """
    listed = [
        (facet, str(level), np.asarray(indices))
        for facet, levels in families.items()
        if len(levels) > 1
        for level, indices in levels.items()
    ]

    def explained(indices: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        some = None if groups is None else [groups[i] for i in indices]
        return stats.ratio_interval(gains[:, indices].T, effects[indices], groups=some, level=level)

    def problem(indices: np.ndarray) -> str:
        if len(indices) < FEWEST:
            return f"fewer than {FEWEST} examples"
        if np.isnan(explained(indices, 0.95)[0]).any():
            return "no effect of its own to explain"
        if abs(effects[indices].mean()) < SMALLEST_EFFECT * abs(effects.mean()):
            return f"its own effect is below {SMALLEST_EFFECT:.0%} of the task's"
        return ""

    problems = [problem(indices) for _, _, indices in listed]
    together = 1 - 0.05 / max(1, problems.count(""))
    found = []
    for (facet, level, indices), left_out in zip(listed, problems, strict=True):
        ends = explained(indices, together)
        if not left_out and np.isnan(ends[0]).any():
            left_out = "no effect of its own to explain"
        found.append(Level(facet, level, len(indices), *ends, left_out))
    return found


def lowest_family(
    gains: np.ndarray, effects: np.ndarray, families: Families, groups: Sequence[str | None] | None = None
) -> dict[str, Any]:
    """At each k the lowest explained effect of a level that counts, its interval, and which level that is
    (`order = BAB`). NaN, and no level, where none counts."""
    counted = [one for one in levels_of(gains, effects, families, groups) if not one.left_out]
    if not counted:
        return {name: np.full(len(gains), np.nan) for name in LOWEST} | {"family": [""] * len(gains)}
    shares = np.array([(one.value, one.lo, one.hi) for one in counted])  # F, 3, K
    lowest = shares[:, 0].argmin(axis=0)
    found = shares[lowest, :, np.arange(len(gains))].T
    names = [f"{one.facet} = {one.level}" for one in counted]
    return dict(zip(LOWEST, found, strict=True)) | {"family": [names[number] for number in lowest]}
