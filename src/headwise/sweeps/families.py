"""The explained effect of each family of examples: a mean over all of them can hide a kind that is not explained.

K points of a curve, E examples, F levels of all facets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise import stats

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
