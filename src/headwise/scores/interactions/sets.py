"""A primary set of heads, found greedily, and the heads that back it up.

The primary set is found on one half of the examples, its backups are tested on the other half: on the same half, the
best of many sets would look better than it is.

E examples, C candidates, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Head, Order, mask_gates
from headwise.model.measure.engine import Engine
from headwise.scores.interactions.pairs import PairEffects, pair_effects
from headwise.stats.resampling import Groups

LEVEL = 0.05
STEP_COLUMNS = "step layer head single conditional lo hi p q candidates accepted n".split()
POOL = 24
"""Heads that a greedy step runs: those with the largest effects alone, and by attribution given the set."""


def conditional_effects(engine: Engine, removed: Sequence[Head], candidates: Sequence[Head]) -> np.ndarray:
    """What removing each candidate adds where `removed` are gone: E(A ∪ {j}) − E(A), per example `[C, E]`."""
    shape = engine.model.shape
    gates = np.stack([mask_gates([*removed, head], shape) for head in candidates])
    return engine.measure(gates, baseline=mask_gates(removed, shape)).effects


def primary_set(
    engine: Engine,
    single: np.ndarray,
    heads: Sequence[Head],
    *,
    most: int,
    groups: Groups = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The greedy primary set: one row per step, the last one not accepted where the set ended by itself.

    single: effects of the heads alone `[E, heads]`. Candidates are the heads that help by themselves (positive effect,
    q < .05 over all heads); of them the 24 largest. Each step takes, of the candidates whose effect given the heads
    taken before is significant (q < .05 over the step's candidates), the one with the largest. It ends where there is
    none, or the set has `most` heads. A head whose effect has more than doubled by then is left out: it stands in for
    the set rather than belonging to it, and the greedy choice would otherwise take the backups into the set.
    """
    q = stats.benjamini_hochberg(stats.sign_flip(single, groups=groups, seed=seed))
    mean = single.mean(axis=0)
    helping = [i for i in np.argsort(-mean, kind="stable") if mean[i] > 0 and q[i] < LEVEL][:POOL]
    pool, rows = [heads[i] for i in helping], list[dict[str, Any]]()
    alone = {heads[i]: float(mean[i]) for i in helping}
    removed: Order = []
    while pool and len(removed) < most:
        given = conditional_effects(engine, removed, pool).T if removed else single[:, helping]
        p = stats.sign_flip(given, groups=groups, seed=seed)
        tests, effects = stats.benjamini_hochberg(p), given.mean(axis=0)
        doubled = np.array([effect > 2 * alone[head] for effect, head in zip(effects, pool, strict=True)])
        eligible = (tests < LEVEL) & (effects > 0) & ~doubled
        best = int(np.where(eligible if eligible.any() else ~doubled, effects, -np.inf).argmax())
        lo, hi = stats.effect_interval(given[:, best], groups=groups)
        accepted = bool(eligible[best])
        head = pool[best]
        rows.append(
            {"step": len(rows) + 1, "layer": head.layer, "head": head.head, "single": alone[head]}
            | {"conditional": effects[best], "lo": float(lo), "hi": float(hi), "p": p[best], "q": tests[best]}
            | {"candidates": len(pool), "accepted": accepted, "n": len(given)}
        )
        if not accepted:
            break
        removed.append(pool.pop(best))
    return pd.DataFrame(rows, columns=STEP_COLUMNS).astype({"accepted": bool})


def greedy_order(engine: Engine, single: np.ndarray, heads: Sequence[Head], length: int) -> Order:
    """Heads in the order in which removing one more costs most, whether significant or not.

    Each step runs 24 heads exactly: half of them with the largest effects alone, half with the largest attribution
    where the heads before are removed (where the metric has a gradient).
    """
    by_single = [heads[i] for i in np.argsort(-single.mean(axis=0), kind="stable")]
    order: Order = by_single[:1]
    while len(order) < min(length, len(heads)):
        pool = [head for head in by_single if head not in order][:POOL]
        if engine.metric.differentiable:
            slope = engine.gradients(mask_gates(order, engine.model.shape))[1].mean(axis=0)
            by_slope = sorted((h for h in heads if h not in order), key=lambda h: -slope[h.layer, h.head])
            pool = list(dict.fromkeys([*pool[: POOL // 2], *by_slope]))[:POOL]
        order.append(pool[int(conditional_effects(engine, order, pool).mean(axis=1).argmax())])
    return order


def candidates_after(heads: Sequence[Head], removed: Sequence[Head]) -> Order:
    """Heads that could react to the removal: those of later layers than the first removed head."""
    first = min(removed).layer
    return [head for head in heads if head.layer > first and head not in removed]


def effects_given(engine: Engine, removed: Sequence[Head], candidates: Sequence[Head]) -> PairEffects:
    """The removed set as one unit with each candidate: effects per example `[E, C]`."""
    units = [tuple(removed), *((head,) for head in candidates)]
    pairs = np.array([[0, number] for number in range(1, len(units))])
    return pair_effects(engine, units, pairs)


def backup_table(
    effects: PairEffects, candidates: Sequence[Head], *, least: float, groups: Groups = None, seed: int = 0
) -> pd.DataFrame:
    """One row per candidate, the largest difference first: is it a backup of the removed set?

    `single`: its effect alone; `conditional`: its effect where the set is removed; `difference`: the second minus the
    first, with interval, p (sign-flip test on the per-example difference) and q (Benjamini–Hochberg over candidates);
    `ratio`: conditional / (|single| + the median of |single| over the candidates), a score without a unit. `share`:
    difference / effect of removing the set. A head is a `backup` with q < .05, a positive difference, and a share of at
    least `least`: through the final norm alone every head's effect changes a little. With a positive conditional effect
    it takes over; with a negative one it hinders less than before (as negative heads do, which repair as well).
    """
    difference, conditional, single = effects.interaction, effects.conditional, effects.second
    lo, hi = stats.effect_interval(difference, groups=groups)
    conditional_lo, conditional_hi = stats.effect_interval(conditional, groups=groups)
    p = stats.sign_flip(difference, groups=groups, seed=seed)
    q = stats.benjamini_hochberg(p)
    means = {"single": single.mean(axis=0), "conditional": conditional.mean(axis=0)}
    floor = np.median(np.abs(means["single"])) or np.finfo(float).tiny
    set_effect = effects.first[:, 0].mean()
    share = difference.mean(axis=0) / set_effect if set_effect else np.full(len(candidates), np.nan)
    backup = (q < LEVEL) & (difference.mean(axis=0) > 0) & (share >= least)
    columns = {"layer": [h.layer for h in candidates], "head": [h.head for h in candidates], **means}
    columns |= {"conditional_lo": conditional_lo, "conditional_hi": conditional_hi}
    columns |= {"difference": difference.mean(axis=0), "lo": lo, "hi": hi, "p": p, "q": q}
    columns |= {"ratio": means["conditional"] / (np.abs(means["single"]) + floor), "share": share}
    set_lo, set_hi = map(float, stats.effect_interval(effects.first[:, 0], groups=groups))
    columns |= {"backup": backup, "n": len(difference), "set_effect": set_effect}
    columns |= {"set_lo": set_lo, "set_hi": set_hi}
    table = pd.DataFrame(columns).sort_values("difference", ascending=False, kind="stable")
    return table.reset_index(drop=True)
