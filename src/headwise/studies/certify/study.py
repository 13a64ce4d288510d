"""The study `certify`: is this set of heads really a circuit of this behaviour?

The set is given, or found on other examples than it is tested on. Tables: `certificates` (one row for each set: verdict
and sentence), `checks` (every line of every check), `levels` (explained effect of every family), `circuit` (what the
set loses without each of its heads), `followed` (every example: all heads, the set alone, none).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from headwise.certificates.certificate import Certificate
from headwise.certificates.certify import NEGATIVES, Request, planned_rows
from headwise.certificates.certify import certify as certify_heads
from headwise.certificates.checks import Thresholds, all_alike
from headwise.certificates.refits import RankingFit, RefitPlan, announcement, order_of
from headwise.certificates.reported import Bench
from headwise.errors import HeadwiseError
from headwise.heads import Head, Order
from headwise.heads.heads_file import read_heads
from headwise.model.model import Model
from headwise.runs import Call, Job, step
from headwise.scores.registry import SHARED_ROW
from headwise.scores.registry import method as method_named
from headwise.studies.base import study
from headwise.studies.certify.section import section
from headwise.studies.certify.settings import RANKING, CertifySettings, settings_of, study_of
from headwise.studies.plan import some_heads
from headwise.studies.run import Pair, Run
from headwise.studies.steps import score_heads
from headwise.sweeps.explained import tracking
from headwise.sweeps.sweep import sweep
from headwise.tasks import Task

log = logging.getLogger("headwise")
OTHER_SEED = 7_919
"""Added to the seed where heads are given: another study with the same seed found them on its prompts."""
POINTS = 31
"""Sizes at which a circuit is searched for."""
USUAL_SIZE = 32
"""Heads of a set whose size is not known yet, for the plan of its cost."""
FEWEST_NEW = 4
"""Examples that a certificate needs at least."""


@step(
    version=2,
    cost=lambda task, **_: POINTS * len(task),
    label="size of the circuit on {task.name} with {model.name}",
)
def choose_size(
    job: Job, model: Model, task: Task, order: Order, thresholds: dict[str, float], options: dict[str, Any]
) -> tuple[int, str]:
    """The smallest number of heads whose checks 1 to 3 pass on the examples that rank them, by their values alone; or
    the number from which on 90 % of the effect is explained, and what was not reached."""
    limits = Thresholds(**thresholds)
    curve = sweep(model, task, order, points=POINTS, controls=(), progress=job.advance, **options)
    levels = [np.asarray(level) for of in task.families().values() if len(of) > 1 for level in of.values()]
    effect = float(curve.effects.mean())
    for k, kept, share in zip(curve.k, curve.values, curve.shares, strict=True):
        if not 0 < k < curve.total or abs(1 - share) > limits.sufficient:
            continue
        gains, effects = kept - curve.none, curve.effects
        by_level = [gains[level].mean() / effects[level].mean() for level in levels]
        if any(abs(1 - value) > limits.family for value in by_level):
            continue
        found = tracking(float(k), kept, curve.full, effect)
        if found.within >= limits.within if all_alike(curve.full, curve.effects) else found.r2 >= limits.r2:
            return int(k), ""
    reached = curve.k_at(1 - limits.sufficient).stays
    k = int(reached) if reached == reached and reached < curve.total else max(1, curve.total // 2)
    return k, "no number of heads passes checks 1 to 3 on the examples that rank them"


@step(
    version=2,
    cost=lambda task, heads, options, **_: planned_rows(task, heads, Request(**options)),
    label="certificate on {task.name} with {model.name}",
)
def certify_set(
    job: Job, model: Model, task: Task, heads: Order, options: dict[str, Any], tasks: dict[str, Any]
) -> Certificate:
    """The certificate of one set of heads. options, tasks: of `hw.certify`."""
    return certify_heads(model, task, heads, **options, **tasks, progress=job.advance)


def plan(run: Run, s: CertifySettings) -> Iterator[Call[Any]]:
    """The size of a set that the study finds is not known before: a tenth of the heads stands for it."""
    for pair, (find, test) in _opened(run, s).items():
        heads = (
            given_heads(s, pair)
            if s.heads
            else some_heads(pair.model, s.top or len(pair.model.heads()) // 10)
        )
        if find is not None:
            yield score_heads(pair.model, find, s.method, **s.ablation, options=s.method_options)
            if s.top is None:
                yield choose_size(pair.model, find, pair.model.heads(), dict(s.thresholds), s.ablation)
            if not s.quick:
                again = replace(plan_of(s, find), chosen=heads)
                for fit in (*again.fits(), *(again.repelled(heads, i) for i in range(s.alternatives))):
                    ablation = s.ablation | {"seed": fit.seed}
                    yield score_heads(pair.model, fit.task, fit.method, **ablation, options=fit.options)
        yield certify_set(pair.model, test, heads, s.options(), {})


def _opened(run: Run, s: CertifySettings) -> dict[Pair, tuple[Task | None, Task]]:
    """Every model and task with the examples that find the set, where none is given, and those that test it."""

    def opened(source: str, model: Model) -> Task:
        if s.heads:
            return other_examples(run, s, source, model)
        return run.bench.task(source, model, 2 * s.n, s.seed, s.task_options)

    return {pair: (None, pair.task) if s.heads else pair.task.halves() for pair in run.pairs(task=opened)}


@study("Is this set of heads really a circuit of this behaviour?", CertifySettings, section, plan)
def certify(run: Run, s: CertifySettings) -> None:
    halves = _opened(run, s)
    pairs = list(halves)
    finding = {pair: find for pair, (find, _) in halves.items() if find is not None}
    plans = {pair: plan_of(s, find) for pair, find in finding.items()}
    for pair in pairs:
        log.info(cost(s, pair, halves[pair][1], plans.get(pair)))
    sets = {pair: given_heads(s, pair) for pair in pairs} if s.heads else found_heads(run, s, finding)
    calls = {}
    for pair in pairs:
        tasks: dict[str, Any] = {"others": [run.task(one, pair.model, {}) for one in s.others]}
        tasks["negatives"] = (
            pair.task.negatives(NEGATIVES, model=pair.model)
            if s.negatives is None
            else run.task(s.negatives, pair.model, {})
        )
        if pair in plans and not s.quick:
            again = replace(plans[pair], chosen=sets[pair])
            tasks["refits"] = again.carried_out(partial(rank, run, s, pair.model))
        calls[pair] = certify_set(pair.model, halves[pair][1], sets[pair], s.options(), tasks)
    for pair, found in run.all(calls, "certificates").items():
        row = {"verdict": found.verdict, "sentence": found.sentence, "k": len(found.heads), "of": found.total}
        row |= {"n": found.n, "metric": found.metric}
        row |= {name: " ".join(map(str, getattr(found, name))) for name in ("heads", "core", "shell")}
        tables = {"certificates": pd.DataFrame([row]), "checks": found.table()}
        tables |= {
            "levels": found.levels,
            "circuit": found.changes,
            "followed": found.examples.assign(metric=found.metric),
        }
        run.tables(tables, **pair.columns, reference=found.reference)


def plan_of(s: CertifySettings, finding: Task) -> RefitPlan:
    """The rankings of checks 8, 10 and 11; the set is not known yet."""
    names = ("method", "stable", "alternatives", "seed")
    plan: dict[str, Any] = {name: getattr(s, name) for name in names} | {
        "beside": () if s.quick else s.beside
    }
    return RefitPlan(finding=finding, chosen=[], options=s.method_options, **plan)


def rank(run: Run, s: CertifySettings, model: Model, fits: Sequence[RankingFit]) -> list[Order]:
    """The order of each fit, a step each."""
    calls = {
        number: score_heads(
            model, fit.task, fit.method, **s.ablation | {"seed": fit.seed}, options=fit.options
        )
        for number, fit in enumerate(fits)
    }
    scored: Mapping[int, Any] = run.all(calls, "rankings again")
    return [order_of(one.scores) for one in scored.values()]


def cost(s: CertifySettings, pair: Pair, test: Task, plan: RefitPlan | None) -> str:
    """What the certificate of one model and task will cost, for the log."""
    bench = Bench(pair.model, [Head(0, 0)], s.metric, s.reference, s.seed)
    rows = SHARED_ROW * planned_rows(test, [Head(0, 0)] * (s.top or USUAL_SIZE), Request(**s.options()))
    if plan is not None:
        rows += method_named(s.method).cost(pair.model, plan.finding, s.reference, s.method_options)
        rows += SHARED_ROW * POINTS * len(plan.finding) * (s.top is None)
    return announcement(bench, test, rows, plan)


def given_heads(s: CertifySettings, pair: Pair) -> Order:
    """The set that the settings name, for one model."""
    assert s.heads is not None
    prefer = {"task": pair.columns["task"], "reference": s.reference}
    return read_heads(s.heads, s.top, model=pair.model.name, existing=pair.model.heads(), prefer=prefer)


def other_examples(run: Run, s: CertifySettings, source: str, model: Model) -> Task:
    """Examples that did not find the given set: of another seed, without those of the run that found it."""
    assert s.heads is not None
    used: set[str] = set()
    if (study := study_of(s.heads)) in RANKING and source in (before := settings_of(s.heads)).tasks:
        found = run.bench.task(source, model, before.n, before.seed, before.task_options)
        used = {example.prompt for example in (found if study == "score" else found.halves()[0])}
    task = run.bench.task(source, model, s.n + len(used), s.seed + OTHER_SEED, s.task_options)
    new = [index for index, example in enumerate(task) if example.prompt not in used][: s.n]
    if len(new) < FEWEST_NEW:
        raise HeadwiseError(
            f"{source} has {len(new)} examples that the run {s.heads} did not rank heads on; a certificate needs "
            "others: give another file, headwise certify MODEL FILE --heads RUN"
        )
    return task.take(new)


def found_heads(run: Run, s: CertifySettings, finding: Mapping[Pair, Task]) -> dict[Pair, Order]:
    """For each model and task the heads that these examples give, ranked by the method."""
    calls = {
        pair: score_heads(pair.model, task, s.method, **s.ablation, options=s.method_options)
        for pair, task in finding.items()
    }
    ranked: Mapping[Pair, Any] = run.all(calls, "rankings")
    orders = {pair: scored.scores.order() for pair, scored in ranked.items()}
    if s.top is not None:
        return {pair: order[: s.top] for pair, order in orders.items()}
    limits = dict(s.thresholds)
    calls_of_sizes = {
        pair: choose_size(pair.model, task, orders[pair], limits, s.ablation)
        for pair, task in finding.items()
    }
    sizes = run.all(calls_of_sizes, "sizes")
    for pair, (k, problem) in sizes.items():
        if problem:
            run.say_of(pair.columns, f"{problem}; {k} heads are tested")
    return {pair: order[: sizes[pair][0]] for pair, order in orders.items()}
