"""The study `reach`: which heads need to see far, and how much of the KV cache can go?

The reference is `window`: a head sees the first and the last tokens only. On one half of the examples heads are ranked;
on the other half the first of each ranking see everything and all others a window. Tables: `reach` (effect and accuracy
against the number of key/value heads that see far and the share of the cache), `needed` (how many reach the threshold),
`budgets` (rankings at an equal cache, paired; also at other lengths and on other tasks, without refitting), `families`
(effect by depth), `text` (cross-entropy by position), and the common tables of scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headwise.heads import Order, Scores
from headwise.model.model import Model
from headwise.runs import Call, Job, step
from headwise.runs.step import SHARED
from headwise.studies.base import study
from headwise.studies.plan import some_heads
from headwise.studies.reach.kept import (
    CONTROLS,
    GROUPS,
    Cache,
    Kept,
    Point,
    all_sets,
    budget_rows,
    by_group,
    by_series,
    curve_rows,
    family_rows,
    far_points,
    measure_kept,
    needed_rows,
    points_at,
    text_rows,
)
from headwise.studies.reach.section import section
from headwise.studies.reach.settings import PATTERN, ReachSettings
from headwise.studies.run import Pair, Run
from headwise.studies.steps import input_table, score_heads
from headwise.tasks import Task
from headwise.tasks.plain_text import text_by_position

# ---- steps -----------------------------------------------------------------------------------------------


@step(
    unit=SHARED,
    cost=lambda task, orders, far, options, **_: (
        (len(orders) + len(CONTROLS) * options["draws"]) * len(far) * len(task)
    ),
    label="kept heads on {task.name} with {model.name}",
)
def keep_far(
    job: Job, model: Model, task: Task, orders: dict[str, Order], far: list[int], options: dict[str, Any]
) -> dict[str, Kept]:
    """Metric and right answers as the first heads of each order, or of random draws, see everything."""
    settings = dict(options)
    draws, seed, unit = settings.pop("draws"), settings["seed"], settings["unit"]
    sets = all_sets(model, unit, orders, far, draws, seed, next(iter(orders)))
    return measure_kept(model, task, sets, **settings, advance=job.advance)


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

    options = s.ablation | {"unit": s.unit, "draws": s.draws}
    return [
        Case(source, pair, *pair.task.halves(), Cache.of(pair.model, s.sink, s.window), options)
        for source, pair in zip(sources, run.pairs(sources, opened), strict=True)
    ]


def rankings_of(s: ReachSettings, case: Case) -> dict[str, Call[Any]]:
    return {
        name: score_heads(case.pair.model, case.find, name, **s.ablation, options=s.options(name))
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
            run.table("reach", curve_rows(case.cache, series, some).assign(**columns))
            run.table("needed", needed_rows(case.cache, series, some, s.threshold).assign(**columns))


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
            rows = budget_rows(case.cache, kept, far, s.methods[0])
            run.table("budgets", rows.assign(**columns, at=at, held_out=held_out))
        if held_out:
            rows = family_rows(case.test, kept[s.methods[0]], case.needed)
            run.table("families", rows.assign(**columns))


def text_of(s: ReachSettings, case: Case) -> Task:
    return text_by_position(case.pair.model.tokens, s.text, s.length, s.texts, s.seed)


def read_text(run: Run, s: ReachSettings, cases: list[Case]) -> None:
    """Cross-entropy of plain text by position, with the heads that the task needs and with none."""
    calls = {
        case: case.kept(text_of(s, case), [0, case.needed, len(case.cache.groups)], metric="mean_logprob")
        for case in cases
    }
    for case, kept in run.all(calls, "plain text").items():
        task: Task = calls[case].arguments["task"]
        points = points_at(kept, case.needed) | {"window alone": Point.of([kept[s.methods[0]]], 0)}
        rows = text_rows(points, task.families()["position"])
        run.table("text", rows.assign(far=case.needed, reference=s.reference, **case.pair.columns))
