"""The proof that heads are backups: hold them at their plain output while the set is removed.

Where a removed set A is backed up by heads B, these react: they write something else than on the plain run, and repair
a part of the damage. The repair is the interaction of the two sets, I(A, B) = E(A ∪ B) − E(A) − E(B): what B is worth
once A is gone, beyond what B is worth anyway. A frozen head (`model.forward.gate.Frozen`) writes what it writes on the
plain run, so it cannot react. If the repair is B's reaction, removing A costs E(A) + I(A, B) while B is frozen. MLPs
and norms still react. Self-repair: McGrath et al. 2023 (arXiv 2307.15771), Rushing & Nanda 2024 (arXiv 2402.15390).

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
from headwise.scores.interactions.pairs import pair_effects
from headwise.stats.resampling import Groups

REMOVED, BACKUPS, RANDOM, ALL = "none", "backups", "random", "all"


class Freezing(NamedTuple):
    """What removing a set costs while other heads are frozen, per example, in the metric's unit."""

    removed: np.ndarray  # E: nothing frozen
    backups: np.ndarray  # E
    random: np.ndarray  # R, E: as many heads of the same layers
    all: np.ndarray  # E: every other head
    repair: np.ndarray  # E: I(A, B), from removing both sets
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
    units = [tuple(removed), tuple(backups)]
    repair = pair_effects(engine, units, np.array([[0, 1]])).interaction[:, 0]
    return Freezing(effects[0], effects[1], effects[3:], effects[2], repair, drawn)


def freezing_table(found: Freezing, backups: int, *, groups: Groups = None) -> pd.DataFrame:
    """One row for each set of frozen heads: the `effect` of removing the primary set, and the repair that is `gone`.

    `gone`: the effect minus the effect with nothing frozen, positive where freezing makes the removal cost more.
    `share`: gone / repair, where the repair is the interaction of the set and its backups (`repair` with interval, the
    same in every row); NaN where the repair is not above 0. `repaired`: repair / (effect of the set + repair), the part
    of the damage that the backups repair. Shares are ratios of means. Intervals are over examples, those of random
    heads over draws and examples.
    """
    lo, hi = map(float, stats.mean_interval(found.repair, groups=groups))
    about: dict[str, Any] = {"repair": found.repair.mean(), "repair_lo": lo, "repair_hi": hi}
    repaired = stats.ratio_interval(found.repair, found.removed + found.repair, groups=groups)
    about |= dict(zip(("repaired", "repaired_lo", "repaired_hi"), map(float, repaired), strict=True))
    sets = {REMOVED: found.removed, BACKUPS: found.backups, RANDOM: found.random, ALL: found.all}
    rows = []
    for name, effects in sets.items():
        draws = np.atleast_2d(effects)
        gone, share = draws - found.removed, (np.nan, np.nan, np.nan)
        if lo > 0:
            band = stats.crossed_interval(gone, denominator=found.repair, groups=groups)
            share = (gone.mean() / found.repair.mean(), *band)
        row: dict[str, Any] = {"frozen": name, "effect": draws.mean(), "gone": gone.mean()}
        row |= dict(zip(("lo", "hi"), stats.crossed_interval(draws, groups=groups), strict=True))
        row |= dict(zip(("gone_lo", "gone_hi"), stats.crossed_interval(gone, groups=groups), strict=True))
        row |= dict(zip(("share", "share_lo", "share_hi"), share, strict=True))
        rows.append(row | about | {"heads": backups, "draws": len(draws)})
    return pd.DataFrame(rows).assign(n=len(found.removed))
