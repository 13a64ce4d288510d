"""The study `reach`: which heads need to see far, and how much of the KV cache can go?

The reference is `window`: a head sees the first and the last tokens only. On one half of the examples heads are ranked;
on the other half the first of each ranking see everything and all others a window. Tables: `reach` (effect and accuracy
against the number of key/value heads that see far and the share of the cache), `needed` (how many reach the threshold),
`budgets` (rankings at an equal cache, paired; also at other lengths and on other tasks, without refitting), `families`
(effect by depth), `text` (cross-entropy by position), and the common tables of scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Order, Scores
from headwise.model.model import Model
from headwise.runs import Call, Job, step
from headwise.runs.step import SHARED
from headwise.studies.base import study
from headwise.studies.plan import some_heads
from headwise.studies.reach.charts import section
from headwise.studies.reach.kept import (
    CONTROLS,
    GROUPS,
    Cache,
    Kept,
    all_sets,
    by_group,
    far_points,
    measure_kept,
)
from headwise.studies.reach.settings import PATTERN, ReachSettings
from headwise.studies.reach.texts import text_task
from headwise.studies.run import Pair, Run
from headwise.studies.steps import input_table, score_heads
from headwise.sweeps.curve import Sweep
from headwise.tasks import Task

# ---- steps -----------------------------------------------------------------------------------------------


def _sets(orders: Mapping[str, Order], options: Mapping[str, Any], far: Sequence[int]) -> int:
    return (len(orders) + len(CONTROLS) * options["draws"]) * len(far)


@step(
    unit=SHARED,
    cost=lambda task, orders, far, options, **_: _sets(orders, options, far) * len(task),
    label="kept heads on {task.name} with {model.name}",
)
def keep_far(
    job: Job, model: Model, task: Task, orders: dict[str, Order], far: list[int], options: dict[str, Any]
) -> dict[str, Kept]:
    """Metric and right answers as the first heads of each order, or of random draws, see everything."""
    how = dict(options)
    draws, seed, unit = how.pop("draws"), how["seed"], how["unit"]
    sets = all_sets(model, unit, orders, far, draws, seed, next(iter(orders)))
    return measure_kept(model, task, sets, **how, advance=job.advance)


# ---- the study -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Case:
    """One model on one task, and what is found out about it as the study goes on."""

    source: tuple[str, str]
    pair: Pair
    find: Task
    test: Task
    cache: Cache
    options: dict[str, Any]
    """Of `keep_far`."""
    orders: dict[str, Order] = field(default_factory=dict)
    """By the name of the ranking, the one that is compared with the others first."""
    needed: int = 0
    """How many key/value heads the first ranking needs."""

    def tokens(self, task: Task) -> float:
        return float(np.mean([len(self.pair.model.tokens(example.prompt)) for example in task]))

    def kept(self, task: Task, far: Sequence[int], **options: Any) -> Call[dict[str, Kept]]:
        return keep_far(self.pair.model, task, self.orders, sorted(set(far)), self.options | options)


def plan(run: Run, s: ReachSettings) -> Iterator[Call[Any]]:
    for case in open_cases(run, s):
        yield from rankings_of(s, case).values()
        groups = len(case.cache.groups)
        case.orders = dict.fromkeys(s.methods, some_heads(case.pair.model, 2))
        yield case.kept(case.test, far_points(groups, s.points))
        for task in elsewhere(run, s, case).values():
            yield case.kept(task, [0, 1, 2, groups])
        if s.texts:
            yield case.kept(text_of(s, case), [0, 1, 2, groups])


@study("Which heads need to see far, and how much of the KV cache can go?", ReachSettings, section, plan)
def reach(run: Run, s: ReachSettings) -> None:
    cases = open_cases(run, s)
    rank(run, s, cases)
    measure_curves(run, s, cases)
    compare(run, s, cases)
    if s.texts:
        read_text(run, s, cases)


def open_cases(run: Run, s: ReachSettings) -> list[Case]:
    sources = [(model, task) for model in s.models for task in s.tasks]

    def opened(task: str, model: Model) -> Task:
        return run.task(task, model, s.task_options_of(task, s.length))

    options: dict[str, Any] = {"metric": s.metric, "reference": s.reference, "unit": s.unit}
    options |= {"seed": s.seed, "draws": s.draws}
    return [
        Case(source, pair, *pair.task.halves(), Cache.of(pair.model, s.sink, s.window), options)
        for source, pair in zip(sources, run.pairs(sources, opened), strict=True)
    ]


def rankings_of(s: ReachSettings, case: Case) -> dict[str, Call[Any]]:
    how: dict[str, Any] = {"metric": s.metric, "reference": s.reference, "seed": s.seed}
    return {
        name: score_heads(case.pair.model, case.find, name, **how, options=s.options(name))
        for name in s.methods
    }


def rank(run: Run, s: ReachSettings, cases: list[Case]) -> None:
    """Scores on the finding half, and the orders that they give."""
    calls = {(case, name): call for case in cases for name, call in rankings_of(s, case).items()}
    for (case, name), scored in run.all(calls, "rankings").items():
        scores: Scores = scored.scores
        case.orders[name] = (
            by_group(case.pair.model, scores) if name == PATTERN and s.unit == GROUPS else scores.order()
        )
        run.tables(scored.tables(case.find), **case.pair.columns)
        if note := scores.details.get("said"):
            run.say(f"{calls[case, name].label}: {note}")


def measure_curves(run: Run, s: ReachSettings, cases: list[Case]) -> None:
    """Effect and accuracy against the cache on the held-out half; how many key/value heads reach the threshold."""
    calls = {}
    for case in cases:
        budget = case.cache.far(s.budget, case.tokens(case.test))
        calls[case] = case.kept(case.test, far_points(len(case.cache.groups), s.points, budget))
    for case, kept in run.all(calls, "curves").items():
        columns = {**case.pair.columns, "reference": s.reference, "unit": s.unit}
        first = kept[s.methods[0]]
        needed = first.curve.k_at(s.threshold).k
        case.needed = case.cache.far(s.budget, first.tokens) if np.isnan(needed) else int(np.ceil(needed))
        run.table("inputs", input_table(case.test, "curves").assign(**case.pair.columns))
        for series, some in by_series(kept).items():
            run.table("reach", curve_rows(case, series, some).assign(**columns))
            run.table("needed", needed_rows(s, case, series, some).assign(**columns))


def by_series(kept: Mapping[str, Kept]) -> dict[str, list[Kept]]:
    """The draws of each control together; an order is alone."""
    found: dict[str, list[Kept]] = {}
    for name, one in kept.items():
        control, _, draw = name.rpartition(" ")
        found.setdefault(control if control in CONTROLS and draw.isdigit() else name, []).append(one)
    return found


def curve_rows(case: Case, series: str, some: Sequence[Kept]) -> pd.DataFrame:
    """A row for each number of key/value heads; of a control the mean over its draws."""
    curve, tokens = some[0].curve, some[0].tokens
    rows = [
        {"far": int(far), "share": float(case.cache.share(far, tokens)), **estimates(some, place)}
        for place, far in enumerate(curve.k)
    ]
    about: dict[str, Any] = {"series": series, "of": len(case.cache.groups), "tokens": tokens}
    return pd.DataFrame(rows).assign(**about, metric=curve.metric, n=curve.n, draws=len(some))


def estimates(some: Sequence[Kept], place: int) -> dict[str, float]:
    """Explained effect and accuracy at one point, with intervals over examples and draws."""
    curve = some[0].curve
    groups: Any = curve.groups
    values = np.stack([one.curve.values[place] for one in some])
    right = np.stack([one.right[place] for one in some])
    explained = (values - curve.none).mean() / curve.effects.mean()
    lo, hi = (
        stats.crossed_interval(values - curve.none, denominator=curve.effects, groups=groups)
        if curve.defined
        else (np.nan, np.nan)
    )
    row = {"explained": explained if curve.defined else np.nan, "lo": lo, "hi": hi, "value": values.mean()}
    known = not np.isnan(right).any()
    ends = stats.crossed_interval(right, groups=groups) if known else (np.nan, np.nan)
    return row | {"accuracy": right.mean(), "accuracy_lo": ends[0], "accuracy_hi": ends[1]}


def needed_rows(s: ReachSettings, case: Case, series: str, some: Sequence[Kept]) -> pd.DataFrame:
    """For each draw: how many key/value heads reach the threshold, and the share of the cache that they are."""
    rows = []
    for draw, one in enumerate(some):
        needed, effect = one.curve.k_at(s.threshold), one.curve.effect
        row = {"needed": needed.k, "lo": needed.lo, "hi": needed.hi, "stays": needed.stays}
        row |= {"share": case.cache.share(needed.k, one.tokens), "effect": effect.value}
        row |= {"effect_lo": effect.lo, "effect_hi": effect.hi, "defined": one.curve.defined}
        row |= {
            "full_accuracy": one.right[-1].mean() if one.curve.k[-1] == len(case.cache.groups) else np.nan
        }
        rows.append(row | {"draw": draw})
    about: dict[str, Any] = {"series": series, "of": len(case.cache.groups), "tokens": some[0].tokens}
    return pd.DataFrame(rows).assign(
        **about, n=some[0].curve.n, threshold=s.threshold, metric=some[0].curve.metric
    )


def elsewhere(run: Run, s: ReachSettings, case: Case) -> dict[tuple[str, int], Task]:
    """The held-out half, then other lengths and other tasks, by task and length; no ranking saw any of them."""
    model, name = case.pair.model, case.source[1]
    tasks = {(case.pair.columns["task"], s.length): case.test}
    if "length" in s.task_options_of(name, s.length):
        for length in s.lengths or ():
            task = run.task(name, model, s.task_options_of(name, length))
            tasks[task.name, length] = task.take(range(len(case.test)))
    for other in s.transfer:
        options = s.task_options_of(other, s.length) if other in s.tasks else {}
        if "length" in s.task_options_of(other, s.length):
            options = {"length": s.length}
        task = run.task(other, model, options)
        tasks[task.name, s.length] = task.take(range(min(len(task), len(case.test))))
    return tasks


def compare(run: Run, s: ReachSettings, cases: list[Case]) -> None:
    """Rankings at the same number of key/value heads, paired; also at other lengths and on other tasks."""
    calls: dict[Any, Call[dict[str, Kept]]] = {}
    budgets: dict[Any, int] = {}
    for case in cases:
        for which, task in elsewhere(run, s, case).items():
            budgets[case, which] = case.cache.far(s.budget, case.tokens(task))
            points = [0, budgets[case, which], case.needed, len(case.cache.groups)]
            calls[case, which] = case.kept(task, points)
    for (case, which), kept in run.all(calls, "comparisons").items():
        columns = {**case.pair.columns, "tested_on": which[0], "length": which[1], "unit": s.unit}
        columns |= {"reference": s.reference}
        held_out = which == (case.pair.columns["task"], s.length)
        for at, far in (("budget", budgets[case, which]), ("needed", case.needed)):
            rows = budget_rows(case, by_series(kept), far, s.methods[0])
            run.table("budgets", rows.assign(**columns, at=at, held_out=held_out))
        if held_out:
            one = kept[s.methods[0]]
            run.table("families", family_rows(case.test, one, case.needed).assign(**columns))


def budget_rows(case: Case, kept: Mapping[str, Sequence[Kept]], far: int, first: str) -> pd.DataFrame:
    """Every ranking at one number of key/value heads; `difference`: the first ranking minus this one, paired."""
    rows = []
    (main,) = kept[first]
    place = int(np.flatnonzero(main.curve.k == far)[0])
    groups: Any = main.curve.groups
    for series, some in kept.items():
        if far not in some[0].curve.k:  # more than a layer-matched draw can have
            continue
        at = int(np.flatnonzero(some[0].curve.k == far)[0])
        row: dict[str, Any] = {"series": series, "draws": len(some), **estimates(some, at)}
        for name, of in (("", lambda one: one.curve.values), ("accuracy_", lambda one: one.right)):
            others, ours = np.stack([of(one)[at] for one in some]), of(main)[place]
            row[f"{name}difference"] = ours.mean() - others.mean()
            ends = (np.nan, np.nan)
            if series != first and not np.isnan(others).any():
                ends = stats.crossed_interval(others, before=ours, groups=groups)
            row |= {f"{name}difference_lo": -ends[1], f"{name}difference_hi": -ends[0]}
        rows.append(row)
    whole = {"full": main.curve.full.mean(), "none": main.curve.none.mean()}
    whole |= {"full_accuracy": main.right[-1].mean(), "none_accuracy": main.right[0].mean()}
    share, total = float(case.cache.share(far, main.tokens)), len(case.cache.groups)
    about: dict[str, Any] = {
        "far": far,
        "of": total,
        "share": share,
        "tokens": main.tokens,
    }
    return pd.DataFrame(rows).assign(
        **about, **whole, metric=main.curve.metric, n=main.curve.n, defined=main.curve.defined
    )


def family_rows(task: Task, one: Kept, far: int) -> pd.DataFrame:
    """The effect that the kept heads explain in each family of prompts: each depth."""
    curve: Sweep = one.curve
    place = int(np.flatnonzero(curve.k == far)[0])
    rows = []
    for facet, levels in task.families().items():
        for level, members in levels.items() if len(levels) > 1 else ():
            gains, effects = (curve.values[place] - curve.none)[members], curve.effects[members]
            lo, hi = (
                stats.crossed_interval(gains[None], denominator=effects)
                if len(members) > 1
                else (np.nan,) * 2
            )
            rows.append(
                {"facet": facet, "level": level, "n": len(members), "far": far}
                | {"explained": gains.mean() / effects.mean(), "lo": lo, "hi": hi}
                | {"accuracy": one.right[place][members].mean()}
            )
    columns = ["facet", "level", "n", "far", "explained", "lo", "hi", "accuracy"]
    return pd.DataFrame(rows, columns=columns)


def text_of(s: ReachSettings, case: Case) -> Task:
    return text_task(case.pair.model, s.text, s.length, s.texts, s.seed)


def read_text(run: Run, s: ReachSettings, cases: list[Case]) -> None:
    """Cross-entropy of plain text by position, with the heads that the task needs and with none."""
    calls = {
        case: case.kept(text_of(s, case), [0, case.needed, len(case.cache.groups)], metric="mean_logprob")
        for case in cases
    }
    for case, kept in run.all(calls, "plain text").items():
        task: Task = calls[case].arguments["task"]
        rows = []
        for series, some in {**by_series(kept), "window alone": [kept[s.methods[0]]]}.items():
            if case.needed not in some[0].curve.k:
                continue
            place = 0 if series == "window alone" else int(np.flatnonzero(some[0].curve.k == case.needed)[0])
            for position, members in task.families()["position"].items():
                full = some[0].curve.full[members]
                values = np.stack([one.curve.values[place][members] for one in some])
                lo, hi = stats.crossed_interval(values, before=full) if len(members) > 1 else (np.nan,) * 2
                row = {"series": series, "position": int(position), "n": len(members), "full": -full.mean()}
                row |= {"cross_entropy": -values.mean(), "rise": full.mean() - values.mean()}
                rows.append(row | {"lo": -hi, "hi": -lo})
        about: dict[str, Any] = {"far": case.needed, "reference": s.reference, **case.pair.columns}
        run.table("text", pd.DataFrame(rows).assign(**about))
