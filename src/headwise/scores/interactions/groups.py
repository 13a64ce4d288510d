"""Groups of heads that only matter together, against random heads of the same layers.

K heads, E examples, R draws of random heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Head, Order
from headwise.heads.controls import layer_matched_heads
from headwise.model.measure.engine import Engine
from headwise.scores.interactions.pairs import unit_gates
from headwise.scores.interactions.sets import LEVEL
from headwise.stats.resampling import Groups

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
        rows.append(
            {
                "group": number + 1,
                "heads": " ".join(map(str, heads)),
                "size": len(heads),
                "joint": joint.mean(),
            }
            | {"lo": lo, "hi": hi, "sum": joint.mean() - excess.mean(), "excess": excess.mean()}
            | {"excess_lo": excess_lo, "excess_hi": excess_hi, "p": p, "random_excess": random.mean()}
            | {"random_largest": random.max(), "p_random": (1 + beaten) / (1 + draws), "draws": draws}
            | {"moved": sum(draw.moved for draw in drawn), "n": len(joint)}
        )
    table = pd.DataFrame(rows)
    return table.assign(q=stats.benjamini_hochberg(table["p"].to_numpy())) if rows else table


def _excess(engine: Engine, heads: Sequence[Head]) -> tuple[np.ndarray, np.ndarray]:
    """The joint effect of heads and its excess over the sum of their single effects, per example `[E]`."""
    units = [tuple(heads), *((head,) for head in heads)]
    effects = engine.measure(unit_gates(units, engine.model.shape)).effects
    return effects[0], effects[0] - effects[1:].sum(axis=0)
