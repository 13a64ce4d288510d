"""The metric as a few heads see everything and all others a short window, against the share of the KV cache that stays.

A key/value head (a group of query heads) keeps its whole cache if one of its heads sees far; every other keeps the
first `sink` and the last `window` tokens.

    share = (far · T + (KV − far) · min(T, sink + window)) / (KV · T)

KV key/value heads of all layers, `far` of them whole, T tokens, K points of a curve, E examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.errors import HeadwiseError
from headwise.heads import KV_HEADS, Head, Order, Scores
from headwise.heads.controls import control_sets, most_k
from headwise.metrics import metric as metric_named
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.names import KV
from headwise.sweeps.curve import Sweep
from headwise.sweeps.sweep import Curves
from headwise.tables.codec import stored
from headwise.tasks import Task

HEADS, GROUPS = "heads", "kv_heads"
UNITS = (GROUPS, HEADS)
CONTROLS = ("random", "random_layer")


@dataclass(frozen=True)
class Cache:
    """The KV cache of a model whose near-sighted key/value heads keep the first and last tokens only."""

    groups: tuple[Head, ...]
    """Every key/value head."""
    sink: int
    window: int

    @classmethod
    def of(cls, model: Model, sink: int, window: int) -> Cache:
        return cls(tuple(model.layout(KV_HEADS).listed()), sink, window)

    def share(self, far: Any, tokens: Any) -> Any:
        """The share of the whole cache that stays, where `far` key/value heads keep all of `tokens`."""
        total = len(self.groups)
        return (far * tokens + (total - far) * np.minimum(tokens, self.sink + self.window)) / (total * tokens)

    def far(self, share: float, tokens: float) -> int:
        """How many key/value heads may keep everything within a share of the cache."""
        least = self.share(0, tokens)
        if share < least:
            raise HeadwiseError(
                f"a budget of {share:.0%} of the cache is less than the first {self.sink} and the last {self.window} "
                f"of {tokens:.0f} tokens take ({least:.0%}); give a larger budget, a smaller window or longer prompts"
            )
        return int(np.floor((share - least) / (1 - least) * len(self.groups) + 1e-9))


def group_of(model: Model, head: Head) -> Head:
    """The key/value head that a head reads; a key/value head is its own."""
    layer, column = head.cell
    group = int(model.layout(KV_HEADS).groups[layer, column]) if head.head >= 0 else column  # type: ignore[index]
    return Head(layer, KV - group)


def touched(model: Model, order: Sequence[Head]) -> Order:
    """The key/value heads of an order, each where the first of its heads stands."""
    return list(dict.fromkeys(group_of(model, head) for head in order))


def first_sets(model: Model, order: Sequence[Head], far: Sequence[int]) -> list[Order]:
    """For each number of key/value heads the longest beginning of an order that touches no more of them."""
    groups = [group_of(model, head) for head in order]
    seen: set[Head] = set()
    counts = []
    for group in groups:
        seen.add(group)
        counts.append(len(seen))
    return [list(order[: int(np.searchsorted(counts, most, side="right"))]) for most in far]


def drawn_sets(
    model: Model, unit: str, kind: str, order: Sequence[Head], far: Sequence[int], seed: str
) -> list[Order]:
    """Whole key/value heads drawn at random; `random_layer`: as many from each layer as the order's first ones."""
    groups = model.layout(KV_HEADS).listed()
    if kind == "random":
        shuffled = np.random.default_rng([*seed.encode()]).permutation(len(groups))
        sets = [[groups[i] for i in shuffled[:most]] for most in far]
    else:
        some = [most for most in far if most <= most_k(len(groups))]
        sets = [drawn.heads for drawn in control_sets(kind, groups, touched(model, order), some, seed)]
    return sets if unit == GROUPS else [model.query_heads(heads) for heads in sets]


def by_group(model: Model, scores: Scores) -> Order:
    """Key/value heads ranked by the largest score among the query heads of their group."""
    return touched(model, scores.order())


def far_points(total: int, points: int, *further: int) -> list[int]:
    """Numbers of key/value heads for a curve, none and all included: one by one at first, then further apart."""
    spread = np.round(np.geomspace(1, total, max(2, points - 1))).astype(int)
    return sorted({0, total, *spread.tolist(), *(far for far in further if 0 <= far <= total)})


@stored
@dataclass(frozen=True)
class Kept:
    """A curve over the number of key/value heads that see far, and which answers are right."""

    curve: Sweep
    """`k` counts key/value heads; kept are the first heads of the order that touch so many."""
    right: np.ndarray
    """`[K, E]`: whether the target beats every foil; NaN without foils."""
    tokens: float
    """Of a prompt, the mean."""


def measure_kept(
    model: Model,
    task: Task,
    sets: Mapping[str, tuple[Sequence[int], Sequence[Order]]],
    *,
    metric: str | None,
    reference: str,
    unit: str,
    seed: int = 0,
    advance: Any = None,
) -> dict[str, Kept]:
    """The curve of each series: for each number of key/value heads the heads that see far, all others short-sighted."""
    components: Any = (unit,)
    engine = Engine(
        model,
        task,
        metric_named(metric or task.metric),
        reference=reference,
        components=components,
        seed=seed,
        advance=advance,
    )
    curves = Curves(engine, "keep")
    points = curves.points([some for _, some in sets.values()])
    tokens = float(np.mean([len(model.tokens(example.prompt)) for example in task]))
    total = len(model.layout(KV_HEADS).listed())
    kept = {}
    for (name, (far, some)), values in zip(sets.items(), points, strict=True):
        curve = curves.sweep(far, values, touched(model, max(some, key=len)), seed)
        answers = values[..., 1] == 0 if values.shape[-1] > 1 else np.full(values.shape[:-1], np.nan)
        kept[name] = Kept(replace(curve, series=name, total=total), answers.astype(float), tokens)
    return kept


def all_sets(
    model: Model,
    unit: str,
    orders: Mapping[str, Order],
    far: Sequence[int],
    draws: int,
    seed: int,
    matched: str,
) -> dict[str, tuple[list[int], list[Order]]]:
    """The sets of every order, and of each draw of the controls (`random 1`); `matched`: the order whose layers
    `random_layer` has."""
    sets = {name: (list(far), first_sets(model, order, far)) for name, order in orders.items()}
    for kind in CONTROLS:
        for draw in range(draws):
            drawn = drawn_sets(model, unit, kind, orders[matched], far, f"{seed}/{draw}")
            sets[f"{kind} {draw + 1}"] = (list(far)[: len(drawn)], drawn)
    return sets


# ---- tables ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A ranking, or all R draws of a control, at one number of key/value heads."""

    curve: Sweep
    values: np.ndarray  # R, E
    right: np.ndarray  # R, E

    @classmethod
    def of(cls, some: Sequence[Kept], far: int) -> Point:
        (place,) = np.flatnonzero(some[0].curve.k == far)
        values = np.stack([one.curve.values[place] for one in some])
        return cls(some[0].curve, values, np.stack([one.right[place] for one in some]))

    def estimates(self) -> dict[str, float]:
        """Explained effect and accuracy, with intervals over examples and draws."""
        gains, effects, groups = self.values - self.curve.none, self.curve.effects, self.curve.groups
        row = {"explained": np.nan, "lo": np.nan, "hi": np.nan, "value": self.values.mean()}
        if self.curve.defined:
            lo, hi = stats.crossed_interval(gains, denominator=effects, groups=groups)
            row |= {"explained": gains.mean() / effects.mean(), "lo": lo, "hi": hi}
        lo, hi = stats.crossed_interval(self.right, groups=groups)
        return row | {"accuracy": self.right.mean(), "accuracy_lo": lo, "accuracy_hi": hi}


def by_series(kept: Mapping[str, Kept]) -> dict[str, list[Kept]]:
    """The draws of each control together; an order is alone."""
    found: dict[str, list[Kept]] = {}
    for name, one in kept.items():
        control, _, draw = name.rpartition(" ")
        found.setdefault(control if control in CONTROLS and draw.isdigit() else name, []).append(one)
    return found


def points_at(kept: Mapping[str, Kept], far: int) -> dict[str, Point]:
    """Every series at one number of key/value heads; a layer-matched draw may not have so many."""
    series = by_series(kept).items()
    return {name: Point.of(some, far) for name, some in series if far in some[0].curve.k}


def curve_rows(cache: Cache, series: str, some: Sequence[Kept]) -> pd.DataFrame:
    """A row for each number of key/value heads; of a control the mean over its draws."""
    curve, tokens = some[0].curve, some[0].tokens
    rows = [
        {"far": far, "share": float(cache.share(far, tokens)), **Point.of(some, far).estimates()}
        for far in map(int, curve.k)
    ]
    columns: dict[str, Any] = {"series": series, "of": len(cache.groups), "tokens": tokens}
    return pd.DataFrame(rows).assign(**columns, metric=curve.metric, n=curve.n, draws=len(some))


def needed_rows(cache: Cache, series: str, some: Sequence[Kept], threshold: float) -> pd.DataFrame:
    """For each draw: how many key/value heads reach the threshold, and the share of the cache that they are."""
    rows, total, curve = [], len(cache.groups), some[0].curve
    for draw, one in enumerate(some):
        needed, effect = one.curve.k_at(threshold), one.curve.effect
        row = {"needed": needed.k, "lo": needed.lo, "hi": needed.hi, "stays": needed.stays}
        row |= {"share": cache.share(needed.k, one.tokens), "effect": effect.value}
        row |= {"effect_lo": effect.lo, "effect_hi": effect.hi, "defined": one.curve.defined}
        row |= {"full_accuracy": one.right[-1].mean() if one.curve.k[-1] == total else np.nan}
        rows.append(row | {"draw": draw})
    columns: dict[str, Any] = {"series": series, "of": total, "tokens": some[0].tokens}
    return pd.DataFrame(rows).assign(**columns, n=curve.n, threshold=threshold, metric=curve.metric)


def budget_rows(cache: Cache, kept: Mapping[str, Kept], far: int, first: str) -> pd.DataFrame:
    """Every ranking at one number of key/value heads; `difference`: the first ranking minus this one, paired."""
    points, rows, main = points_at(kept, far), [], kept[first]
    ours = points[first]
    for series, point in points.items():
        row: dict[str, Any] = {"series": series, "draws": len(point.values), **point.estimates()}
        pairs = (("", ours.values[0], point.values), ("accuracy_", ours.right[0], point.right))
        for name, mine, theirs in pairs:
            lo, hi = np.nan, np.nan
            if series != first:
                lo, hi = stats.crossed_interval(theirs, before=mine, groups=ours.curve.groups)
            row[f"{name}difference"] = mine.mean() - theirs.mean()
            row |= {f"{name}difference_lo": -hi, f"{name}difference_hi": -lo}
        rows.append(row)
    whole = {"full": main.curve.full.mean(), "none": main.curve.none.mean()}
    whole |= {"full_accuracy": main.right[-1].mean(), "none_accuracy": main.right[0].mean()}
    columns: dict[str, Any] = {"far": far, "of": len(cache.groups)}
    columns |= {"share": float(cache.share(far, main.tokens)), "tokens": main.tokens, **whole}
    columns |= {"metric": main.curve.metric, "n": main.curve.n, "defined": main.curve.defined}
    return pd.DataFrame(rows).assign(**columns)


def family_rows(task: Task, one: Kept, far: int) -> pd.DataFrame:
    """The effect that the kept heads explain in each family of prompts: each depth."""
    point, curve, rows = Point.of([one], far), one.curve, []
    for facet, levels in task.families().items():
        for level, members in levels.items() if len(levels) > 1 else ():
            gains, effects = (point.values - curve.none)[:, members], curve.effects[members]
            lo, hi = stats.crossed_interval(gains, denominator=effects)
            row = {"facet": facet, "level": level, "n": len(members), "far": far}
            row |= {"explained": gains.mean() / effects.mean(), "lo": lo, "hi": hi}
            rows.append(row | {"accuracy": point.right[0][members].mean()})
    columns = ["facet", "level", "n", "far", "explained", "lo", "hi", "accuracy"]
    return pd.DataFrame(rows, columns=columns)


def text_rows(points: Mapping[str, Point], positions: Mapping[str, Sequence[int]]) -> pd.DataFrame:
    """The cross-entropy at each position, and its rise above that of all heads."""
    rows = []
    for series, point in points.items():
        for position, members in positions.items():
            full, values = point.curve.full[members], point.values[:, members]
            lo, hi = stats.crossed_interval(values, before=full) if len(members) > 1 else (np.nan, np.nan)
            row = {"series": series, "position": int(position), "n": len(members), "full": -full.mean()}
            row |= {"cross_entropy": -values.mean(), "rise": full.mean() - values.mean()}
            rows.append(row | {"lo": -hi, "hi": -lo})
    return pd.DataFrame(rows)
