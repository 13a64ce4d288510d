"""The proof that heads are backups: hold them at their plain output while the set is removed.

Where a removed set is backed up, other heads react: they write something else than on the plain run, and repair a part
of the damage. A frozen head (`model.forward.gate.Frozen`) writes what it writes on the plain run, so it cannot react.
The repair is what removing the set costs more when every other head is frozen (compare the direct and the total effect
of McGrath et al. 2023, arXiv 2307.15771, and of Rushing & Nanda 2024, arXiv 2402.15390; MLPs and norms still react).

E examples, S sets of frozen heads, R draws of random heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Head, Order, mask_gates
from headwise.heads.controls import layer_matched_heads
from headwise.model.measure.engine import Engine
from headwise.stats.resampling import Groups

REMOVED, BACKUPS, RANDOM, ALL = "none", "backups", "random", "all"


class Freezing(NamedTuple):
    """What removing a set costs while other heads are frozen, per example, in the metric's unit."""

    removed: np.ndarray  # E: nothing frozen
    backups: np.ndarray  # E
    random: np.ndarray  # R, E: as many heads of the same layers
    all: np.ndarray  # E: every other head
    draws: list[Order]


def effects_frozen(engine: Engine, removed: Sequence[Head], sets: Sequence[Sequence[Head]]) -> np.ndarray:
    """The effect of removing heads while each of the sets is frozen, per example `[S, E]`."""
    shape = engine.model.shape
    gates = np.repeat(mask_gates(removed, shape)[None], len(sets), axis=0)
    frozen = np.stack([mask_gates(heads, shape) == 0 for heads in sets])
    frozen &= gates != 0  # a removed head stays removed
    return engine.measure(gates, frozen=frozen).effects


def freezing(
    engine: Engine, removed: Sequence[Head], backups: Sequence[Head], *, draws: int, seed: int = 0
) -> Freezing:
    """The effects with nothing, the backups, random heads of the same layers and all other heads frozen."""
    others = [head for head in engine.model.heads() if head not in removed]
    drawn = [layer_matched_heads(others, list(backups), f"{seed}/{draw}").heads for draw in range(draws)]
    effects = effects_frozen(engine, removed, [[], backups, others, *drawn])
    return Freezing(effects[0], effects[1], effects[3:], effects[2], drawn)


def freezing_table(found: Freezing, backups: int, *, groups: Groups = None, seed: int = 0) -> pd.DataFrame:
    """One row for each set of frozen heads: the `effect` of removing the primary set, and the `repair` that is gone.

    `repair`: the effect minus the effect with nothing frozen, positive where freezing makes the removal cost more.
    `share`: repair / repair with all other heads frozen; NaN where that is not above 0. `repaired`: the repair with all
    other heads frozen / the effect then, the part of the damage that other heads repair (the same in every row). Both
    are ratios of means. Intervals are over examples, those of random heads over draws and examples.
    """
    how: dict[str, Any] = {"groups": groups, "seed": seed}
    whole = found.all - found.removed
    there_is_one = bool(stats.bootstrap_mean(whole, **how)[0] > 0)
    repaired = tuple(map(float, stats.bootstrap_ratio(whole, found.all, **how)))
    sets = {REMOVED: found.removed, BACKUPS: found.backups, RANDOM: found.random, ALL: found.all}
    rows = []
    for name, effects in sets.items():
        draws = np.atleast_2d(effects)
        repair, share = draws - found.removed, (np.nan, np.nan, np.nan)
        if there_is_one:
            share = (repair.mean() / whole.mean(), *stats.bootstrap_crossed(repair, denominator=whole, **how))
        row: dict[str, Any] = {"frozen": name, "effect": draws.mean(), "repair": repair.mean()}
        row |= dict(zip(("lo", "hi"), stats.bootstrap_crossed(draws, **how), strict=True))
        row |= dict(zip(("repair_lo", "repair_hi"), stats.bootstrap_crossed(repair, **how), strict=True))
        row |= dict(zip(("share", "share_lo", "share_hi"), share, strict=True))
        row |= dict(zip(("repaired", "repaired_lo", "repaired_hi"), repaired, strict=True))
        rows.append(row | {"heads": backups, "draws": len(draws)})
    return pd.DataFrame(rows).assign(n=len(found.removed))
