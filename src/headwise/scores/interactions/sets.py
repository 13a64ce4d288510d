"""A primary set of heads, found greedily; the heads that back it up; groups of heads that only matter together.

The primary set is found on one half of the examples, its backups are tested on the other half: on the same half, the
best of many sets would look better than it is.

The proof that heads are backups: hold them at their plain output while the set is removed. Where a removed set A is
backed up by heads B, these react: they write something else than on the plain run, and repair a part of the damage.
The repair is the interaction of the two sets, I(A, B) = E(A ∪ B) − E(A) − E(B): what B is worth once A is gone, beyond
what B is worth anyway. A frozen head (`model.forward.gate.Frozen`) writes what it writes on the plain run, so it cannot
react. If the repair is B's reaction, removing A costs E(A) + I(A, B) while B is frozen. MLPs and norms still react.
Self-repair: McGrath et al. 2023 (arXiv 2307.15771), Rushing & Nanda 2024 (arXiv 2402.15390).

E examples, C candidates, K heads, S sets of frozen heads, R draws of random heads, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Head, Order, mask_gates
from headwise.heads.controls import layer_matched_heads
from headwise.heads.head import head_columns
from headwise.model.measure.engine import Engine
from headwise.scores.interactions.pairs import PairEffects, pair_effects, unit_gates
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
    columns = head_columns(candidates) | means
    columns |= {"conditional_lo": conditional_lo, "conditional_hi": conditional_hi}
    columns |= {"difference": difference.mean(axis=0), "lo": lo, "hi": hi, "p": p, "q": q}
    columns |= {"ratio": means["conditional"] / (np.abs(means["single"]) + floor), "share": share}
    set_lo, set_hi = map(float, stats.effect_interval(effects.first[:, 0], groups=groups))
    columns |= {"backup": backup, "n": len(difference), "set_effect": set_effect}
    columns |= {"set_lo": set_lo, "set_hi": set_hi}
    table = pd.DataFrame(columns).sort_values("difference", ascending=False, kind="stable")
    return table.reset_index(drop=True)


# ---- the proof that heads are backups -----------------------------------------------------------------


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
    repair: dict[str, Any] = {"repair": found.repair.mean(), "repair_lo": lo, "repair_hi": hi}
    repaired = stats.ratio_interval(found.repair, found.removed + found.repair, groups=groups)
    repair |= dict(zip(("repaired", "repaired_lo", "repaired_hi"), map(float, repaired), strict=True))
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
        rows.append(row | repair | {"heads": backups, "draws": len(draws)})
    return pd.DataFrame(rows).assign(n=len(found.removed))


# ---- groups of heads that only matter together --------------------------------------------------------


LARGEST = 8
"""Most heads of a group."""


def redundant_groups(heads: Sequence[Head], pairs: pd.DataFrame, least: float = 0.0) -> list[Order]:
    """Groups in which every two heads back each other up, the strongest first.

    pairs: the table of interactions of the heads, `a`, `b`, `interaction`, `q`. Complete linkage: starting with single
    heads, the two groups are joined whose weakest interaction across is largest, as long as every interaction across
    has q < .05 and is above `least`. Groups have two to eight heads.
    """
    place = {str(head): number for number, head in enumerate(heads)}
    link = np.full((len(heads), len(heads)), -np.inf)
    sure = pairs[(pairs["q"] < LEVEL) & (pairs["interaction"] > least)]
    for a, b, value in zip(sure["a"], sure["b"], sure["interaction"], strict=True):
        link[place[a], place[b]] = link[place[b], place[a]] = value
    np.fill_diagonal(link, -np.inf)
    members, strength = [[number] for number in range(len(heads))], dict[int, float]()
    while True:
        sizes = np.array([len(group) for group in members])
        allowed = np.where(sizes[:, None] + sizes[None, :] <= LARGEST, link, -np.inf)
        one, other = sorted(divmod(int(allowed.argmax()), len(heads))) if len(heads) else (0, 0)
        if not len(heads) or allowed[one, other] == -np.inf:
            break
        strength[one] = float(allowed[one, other])
        members[one] += members[other]
        members[other] = []
        link[one] = link[:, one] = np.minimum(link[one], link[other])
        link[other], link[:, other], link[one, one] = -np.inf, -np.inf, -np.inf
    joined = [number for number, group in enumerate(members) if len(group) > 1]
    return [sorted(heads[i] for i in members[n]) for n in sorted(joined, key=lambda n: -strength[n])]


def group_table(
    engine: Engine, groups: Sequence[Order], *, draws: int, examples: Groups = None, seed: int = 0
) -> pd.DataFrame:
    """One row per group of heads: its joint effect, the sum of its heads' single effects, and the excess.

    `excess` = joint effect − sum of the single effects, with its interval: positive where the heads matter together
    more than alone. `random_excess`: the mean over draws of as many heads of the same layers; `p_random`: the share of
    draws (this group counted too) whose excess is at least as large. examples: the group of every example.
    """
    rows = []
    for number, heads in enumerate(groups):
        others = [head for head in engine.model.heads() if head not in heads]
        drawn = [layer_matched_heads(others, heads, f"group {number}/{seed}/{draw}") for draw in range(draws)]
        effects = [_excess(engine, one) for one in (heads, *(draw.heads for draw in drawn))]
        joint, excess = effects[0]
        random = np.array([part.mean() for _, part in effects[1:]])
        both = stats.effect_interval(np.stack([joint, excess], axis=1), groups=examples)
        (lo, excess_lo), (hi, excess_hi) = both
        p = float(stats.sign_flip(excess[:, None], groups=examples, seed=seed)[0])
        beaten = int((random >= excess.mean()).sum())
        row: dict[str, Any] = {"group": number + 1, "heads": " ".join(map(str, heads)), "size": len(heads)}
        row |= {"joint": joint.mean(), "lo": lo, "hi": hi, "sum": joint.mean() - excess.mean()}
        row |= {"excess": excess.mean(), "excess_lo": excess_lo, "excess_hi": excess_hi, "p": p}
        row |= {"random_excess": random.mean(), "random_largest": random.max()}
        row |= {"p_random": (1 + beaten) / (1 + draws), "draws": draws}
        rows.append(row | {"moved": sum(draw.moved for draw in drawn), "n": len(joint)})
    table = pd.DataFrame(rows)
    return table.assign(q=stats.benjamini_hochberg(table["p"].to_numpy())) if rows else table


def _excess(engine: Engine, heads: Sequence[Head]) -> tuple[np.ndarray, np.ndarray]:
    """The joint effect of heads and its excess over the sum of their single effects, per example `[E]`."""
    units = [tuple(heads), *((head,) for head in heads)]
    effects = engine.measure(unit_gates(units, engine.model.shape)).effects
    return effects[0], effects[0] - effects[1:].sum(axis=0)
