"""The explained effect of each family of examples: a mean over all of them can hide a kind that is not explained.

K points of a curve, E examples, F levels of all facets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwise import stats

FEWEST = 20
"""Examples below which the explained effect of a level is not read."""
Families = Mapping[str, Mapping[str, Sequence[int]]]
"""Facet -> level -> indices of examples, as `Task.families` gives them."""
WORST = ("worst_family", "worst_family_lo", "worst_family_hi")


def worst_family(
    gains: np.ndarray, effects: np.ndarray, families: Families, groups: Sequence[str | None] | None = None
) -> dict[str, Any]:
    """At each k the lowest explained effect of a level, its interval, and which level that is (`order = BAB`).

    gains `[K, E]`, effects `[E]`. Of each facet with several levels, those count that have at least `FEWEST` examples
    and whose own effect is clear of 0. The intervals hold for all these levels together (Bonferroni). NaN, and no
    level, where none counts.
    """
    listed = {
        f"{facet} = {level}": np.asarray(indices)
        for facet, levels in families.items()
        if len(levels) > 1
        for level, indices in levels.items()
        if len(indices) >= FEWEST
    }

    def explained(indices: np.ndarray, level: float) -> np.ndarray:
        some = None if groups is None else [groups[i] for i in indices]
        return np.stack(stats.ratio_interval(gains[:, indices].T, effects[indices], groups=some, level=level))

    clear = {name: at for name, at in listed.items() if not np.isnan(explained(at, 0.95)[0]).any()}
    each = [explained(indices, 1 - 0.05 / len(clear)) for indices in clear.values()]
    names = [name for name, found in zip(clear, each, strict=True) if not np.isnan(found[0]).any()]
    each = [found for found in each if not np.isnan(found[0]).any()]
    if not each:
        return {name: np.full(len(gains), np.nan) for name in WORST} | {"family": [""] * len(gains)}
    levels = np.stack(each)  # F, 3, K
    lowest = levels[:, 0].argmin(axis=0)
    found = levels[lowest, :, np.arange(len(gains))].T
    return dict(zip(WORST, found, strict=True)) | {"family": [names[number] for number in lowest]}
