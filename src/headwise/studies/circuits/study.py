"""The study `circuits`: how few heads explain a behaviour, and does sparse attention need fewer?

For each model, task and ablation type, heads are ranked on one half of the examples (the finding half) by several
methods. The order with the smallest circuit on that half is chosen. All orders are then swept on the other half, and
the numbers of the chosen one are the answer: a choice among orders on the examples that are reported would favour the
order that is lucky on them (the winner's curse). A learned ranking is fitted again, with other seeds on other halves,
to show how far its answer depends on the fit. Tables beside the common ones: `choices` (the finding half: the size of
every order's circuit, and which is chosen), `circuits` (the held-out half: how many heads each curve takes, its areas,
the effect it explains, and how far the circuit follows single examples), `refits` (the same for rankings that were
fitted again), `overshoot` (heads that lift a curve clearly above the whole model), `ratios` (how many
times more heads one model of a pair needs than the other), `members` (which models are shown together), `attention`
(the maps of the first heads of each chosen order).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError
from headwise.heads import Order, Scores
from headwise.model.attention.attention import attention
from headwise.model.model import Model
from headwise.runs import Call, Job, step
from headwise.runs.step import SHARED
from headwise.scores.registry import method as method_named
from headwise.scores.registry import own_options
from headwise.studies.base import study
from headwise.studies.circuits.section import section
from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.plan import some_heads
from headwise.studies.run import Pair, Run
from headwise.studies.steps import Scored, input_table, make_cards, score_heads, top_cards
from headwise.sweeps.curve import Sweep
from headwise.sweeps.readings import overshoot_rows, overshoots, ratio_row, rise_points
from headwise.sweeps.sweep import most_rows, ranking, sweep
from headwise.tasks import Task

SEED_STEP = 1_000
"""Between the seeds of two fits, each of which counts its own seeds from there."""
SHOWN = 64
"""Heads of an order that a table names."""
IN_ORDER = ("dense", "control", "sparse")
"""Every two of these roles are read "the first over the second"."""


# ---- steps -----------------------------------------------------------------------------------------------


def _curve_rows(options: Mapping[str, Any]) -> int:
    """Forward rows of one curve for each example, at most."""
    points, controls = len(options["k"] or ()) or options["points"], len(options["controls"])
    return most_rows(points, controls, options.get("draws", 0), options.get("control_points", 0))


@step(
    version=2,
    unit=SHARED,
    cost=lambda task, options, **_: _curve_rows(options) * len(task),
    label="curve by {scores.method} on {task.name} with {model.name}, {options[reference]}",
)
def sweep_heads(
    job: Job, model: Model, task: Task, scores: Scores, by: str, options: dict[str, Any]
) -> Sweep:
    """The curve of one order on one half of the examples. options: of `sweep`."""
    return sweep(model, task, scores, by=by, **options, progress=job.advance)


@step(cost=lambda **_: 1, label="attention of {model.name}")
def map_attention(job: Job, model: Model, prompt: str, heads: Order) -> pd.DataFrame:
    """The attention maps of some heads as rows, each query with itself and the tokens before it."""
    seen = attention(model, prompt, heads, maps=True)
    assert seen.maps is not None, "whole maps are what this table holds"
    query, key = np.tril_indices(len(seen.tokens))
    tokens = [seen.tokens[position] for position in key]
    columns = {"query": query.astype(np.int32), "key": key.astype(np.int32), "token": tokens}
    frames = [
        pd.DataFrame(
            {"rank": rank, "layer": head.layer, "head": head.head, **columns}
            | {"attention": seen.maps[rank, query, key].astype(np.float64)}
        )
        for rank, head in enumerate(seen.heads)
    ]
    return pd.concat(frames, ignore_index=True)


# ---- the study -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ranked:
    """One order of the heads."""

    scores: Scores
    by: str
    """Signed, absolute or hinders."""

    def curve(self, case: Case, task: Task, **options: Any) -> Call[Sweep]:
        """The curve on these examples. options: of `sweep`, where they are not those of the case."""
        return sweep_heads(case.pair.model, task, self.scores, self.by, case.options | options)


@dataclass(eq=False)
class Case:
    """One model on one task under one ablation type, and what is found out about it as the study goes on."""

    source: tuple[str, str]
    """Model and task, as the settings name them."""
    pair: Pair
    reference: str
    halves: list[tuple[Task, Task]]
    """The finding half and the held-out half; then those of every refit."""
    options: dict[str, Any]
    """Of its curves: options of `sweep`."""
    scored: dict[str, Scored] = field(default_factory=dict)
    """On the finding half, by method."""
    orders: dict[str, Ranked] = field(default_factory=dict)
    """By name."""
    chosen: str = ""
    """The name of the order with the smallest circuit on the finding half."""
    curves: dict[str, Sweep] = field(default_factory=dict)
    """On the held-out half, by the name of the order."""

    @property
    def find(self) -> Task:
        return self.halves[0][0]

    @property
    def test(self) -> Task:
        return self.halves[0][1]


Fits = Mapping[tuple[Case, str, int], Call[Any]]
"""Scores by case, method and number of the fit: 0, then those of the refits."""


def plan(run: Run, s: CircuitsSettings) -> Iterator[Call[Any]]:
    """Without the closer curves of an overshoot, which nobody can know before."""
    nothing: Any = None
    for case in (cases := open_cases(run, s)):
        fits = fits_of(s, case)
        yield from fits.values()
        ranked = [Ranked(nothing, by) for by in s.by]
        for number, (_, fit) in enumerate(fits):
            of_find = [one.curve(case, case.find) for one in ranked] if fit == 0 else []
            controls = s.control_options if number == 0 else {}
            of_test = [one.curve(case, case.halves[fit][1]) for one in ranked[1:]]
            yield from (*of_find, ranked[0].curve(case, case.halves[fit][1], **controls), *of_test)
    for pair in dict.fromkeys(case.pair for case in cases) if s.cards else ():
        heads = some_heads(pair.model, s.cards * len(s.orders))
        yield make_cards(pair.model, pair.task.halves()[0], heads, metric=s.metric, seed=s.seed)


@study(
    "How few heads explain the behaviour, and does sparse attention need fewer?",
    CircuitsSettings,
    section,
    plan,
)
def circuits(run: Run, s: CircuitsSettings) -> None:
    cases = open_cases(run, s)
    fits = {(case, *which): call for case in cases for which, call in fits_of(s, case).items()}
    rank(run, s, {key: call for key, call in fits.items() if key[-1] == 0})
    choose(run, s, cases)
    measure(run, s, cases)
    if s.action == "keep":
        explain_overshoots(run, cases)
    refit(run, s, {key: call for key, call in fits.items() if key[-1] > 0})
    compare(run, s, cases)
    show_cards(run, s, cases)


def open_cases(run: Run, s: CircuitsSettings) -> list[Case]:
    """All that is ranked: every model, task and ablation type."""
    cases = []
    for source, pair in zip(s.curves(), run.pairs(s.curves()), strict=True):
        total = len(pair.model.heads())
        if max(s.k, default=0) > total:
            raise HeadwiseError(
                f"k is {', '.join(map(str, s.k))}; {source[0]} has {total} heads, so k runs from 0 to {total}"
            )
        shuffled = [
            pair.task.take(np.random.default_rng([s.seed, number]).permutation(len(pair.task)).tolist())
            for number in range(1, (s.refits or 0) + 1)
        ]
        halves = [task.halves() for task in (pair.task, *shuffled)]
        options: dict[str, Any] = {"action": s.action, "metric": s.metric, "seed": s.seed, "controls": ()}
        # The ends are always there: they are known, and the ratio is read between them.
        grid = (0, *s.k, total) if s.k else None
        options |= {"k": grid, "points": s.points, "threshold": s.threshold}
        patched = all(example.counterfactual is not None for example in pair.task)
        for reference in s.references or ("mean", *(("patch",) if patched else ())):
            cases.append(Case(source, pair, reference, halves, options | {"reference": reference}))
    return cases


def fits_of(s: CircuitsSettings, case: Case) -> dict[tuple[str, int], Call[Any]]:
    """The scores by every method on the finding half; by learned ones also with other seeds on other halves."""
    return {
        (name, number): score_heads(
            case.pair.model,
            find,
            name,
            metric=s.metric,
            reference=case.reference,
            seed=s.seed + SEED_STEP * number,
            options=own_options(name, s.method_options),
        )
        for name in s.orders
        for number, (find, _) in enumerate(case.halves if method_named(name).learned else case.halves[:1])
    }


def rank(run: Run, s: CircuitsSettings, fits: Fits) -> None:
    """Scores on the finding half, and the orders that they give."""
    for (case, name, _), scored in run.all(fits, "orders").items():
        check_whole(case, scored.scores)
        case.scored[name] = scored
        case.orders |= orders_of(s, scored.scores)
        for table, frame in scored.tables(case.find).items():
            reference = {} if table == "inputs" else {"reference": case.reference}
            run.table(table, frame.assign(**case.pair.columns, **reference))


def orders_of(s: CircuitsSettings, scores: Scores) -> dict[str, Ranked]:
    """By name; an unsigned score gives one order, however many rankings are asked for."""
    orders = {}
    for requested in s.by:
        by, series = ranking(scores.method, scores.signed, requested)
        orders[series] = Ranked(scores, "signed" if by == "unsigned" else by)
    return orders


def check_whole(case: Case, scores: Scores) -> None:
    """Refuse scores without a number for every head: every head needs a place in an order."""
    heads = scores.heads()
    without = sum(bool(np.isnan(scores[head])) for head in heads)
    if without:
        layers, columns = np.array([head.cell for head in heads]).T
        values = scores.examples[:, layers, columns]
        odd = np.flatnonzero(~np.isfinite(values).all(axis=1))[:8]
        numbers = range(scores.n) if scores.numbers is None else scores.numbers
        named = f" (examples {', '.join(str(numbers[i]) for i in odd)} are not finite)" if len(odd) else ""
        model, task = case.pair.columns.values()
        raise HeadwiseError(
            f"{scores.method} gave no finite score for {without} heads of {model} on {task}{named}; use another "
            "metric or ablation type, or a wider dtype"
        )


def choose(run: Run, s: CircuitsSettings, cases: list[Case]) -> None:
    """The order with the smallest circuit on the finding half; table `choices`."""
    calls = {(case, name): one.curve(case, case.find) for case in cases for name, one in case.orders.items()}
    curves = run.all(calls, "choice of an order")
    for case in cases:
        rows = [
            curves[case, name].summary(s.threshold) | {"order": one.scores.method}
            for name, one in case.orders.items()
        ]
        best = smallest(table := pd.DataFrame(rows))
        case.chosen = list(case.orders)[best]
        run.table("choices", table.assign(chosen=np.arange(len(table)) == best, **case.pair.columns))


def smallest(finding: pd.DataFrame) -> int:
    """The row of the smallest circuit among the orders of one model, task and ablation type.

    `finding` has a row per order: `stays` (heads from which on the threshold is held), `k` (heads that first reach it),
    both on the finding half. Equal sizes are told apart by `k`, then by `cmd`, then by their place. Where the explained
    effect is undefined there is no size, and the first row is taken.
    """
    columns = [finding[name].fillna(np.inf).to_numpy(dtype=float) for name in ("cmd", "k", "stays")]
    return int(np.lexsort(columns)[0])


def measure(run: Run, s: CircuitsSettings, cases: list[Case]) -> None:
    """The curve of every order on the held-out half; that of the chosen one with controls and attention maps."""
    calls: dict[Any, Call[Any]] = {}
    for case in cases:
        for name, one in case.orders.items():
            controls = s.control_options if name == case.chosen else {}
            calls[case, name] = one.curve(case, case.test, **controls)
        best = case.orders[case.chosen]
        # An MLP or a key/value head has no attention map.
        if heads := [head for head in best.scores.order(best.by) if head.head >= 0][: s.maps]:
            calls[case] = map_attention(case.pair.model, case.test.examples[0].prompt, heads)
    results = run.all(calls, "curves")
    for case in cases:
        columns = case.pair.columns
        for name, one in case.orders.items():
            curve, chosen = results[case, name], name == case.chosen
            case.curves[name] = curve
            row = curve.summary(s.threshold) | {"order": one.scores.method, "chosen": chosen}
            row |= {"heads": " ".join(map(str, curve.order[:SHOWN])), "examples": case.test.fingerprint}
            run.table("curves", curve.table().assign(chosen=chosen, **columns))
            run.table("examples", curve.example_table().assign(**columns))
            run.table("circuits", pd.DataFrame([row | columns]))
            run.table("inputs", input_table(case.test, "curves").assign(**columns))
        if case in results:
            columns = {**columns, "series": case.chosen, "reference": case.reference}
            run.table("attention", results[case].assign(**columns)[[*columns, *results[case]]])


def explain_overshoots(run: Run, cases: list[Case]) -> None:
    """Chosen curves clearly above the whole model, measured more closely on their rise; table `overshoot`."""
    calls = {}
    for case in cases:
        curve = case.curves[case.chosen]
        if overshoots(curve):
            k = rise_points(curve.k, curve.shares)
            calls[case] = case.orders[case.chosen].curve(case, case.test, k=tuple(k))
    for case, closer in run.all(calls, "overshoots").items():
        columns = {**case.pair.columns, "series": case.chosen, "reference": case.reference}
        run.table("overshoot", overshoot_rows(closer).assign(**columns))


def refit(run: Run, s: CircuitsSettings, fits: Fits) -> None:
    """Learned rankings from other halves of the examples with other seeds, and their curves; table `refits`."""
    calls = {
        (case, method, number, name): one.curve(case, case.halves[number][1])
        for (case, method, number), scored in run.all(fits, "refits").items()
        for name, one in orders_of(s, scored.scores).items()
    }
    for (case, method, number, name), curve in run.all(calls, "curves of refits").items():
        row = curve.summary(s.threshold) | {"order": method, "series": name, "refit": number}
        row |= {"heads": " ".join(map(str, curve.order[:SHOWN]))}
        run.table("refits", pd.DataFrame([row | case.pair.columns]))


def compare(run: Run, s: CircuitsSettings, cases: list[Case]) -> None:
    """Which models are shown together, and how many times more heads one needs; tables `members` and `ratios`."""
    for number, pair, task in s.panels():
        members = {
            role: [case for case in cases if case.source == (model, task)]
            for role, model in pair.members.items()
        }
        for role, (case, *_) in members.items():
            model, name = case.pair.columns.values()
            row = {"pair": number, "task": name, "role": role, "model": model}
            run.table("members", pd.DataFrame([row]))
        for role, other in combinations([role for role in IN_ORDER if role in members], 2):
            columns = {"pair": number, "task": name, "compared": f"{role}/{other}"}
            for one, two in product(members[role], members[other]):
                if one.reference == two.reference:
                    rows = [columns | row for row in ratios(s, one, two)]
                    run.table("ratios", pd.DataFrame(rows).assign(threshold=s.threshold))


def ratios(s: CircuitsSettings, case: Case, other: Case) -> Iterator[dict[str, Any]]:
    """The ratio of two models by each order, and with the order that was chosen for each."""

    @cache
    def ratio(name: str, other_name: str) -> dict[str, Any]:
        paired = case.test.fingerprint == other.test.fingerprint
        return ratio_row(case.curves[name], other.curves[other_name], threshold=s.threshold, paired=paired)

    same = [(name, name, False) for name in case.curves if name in other.curves]
    for name, other_name, chosen in [*same, (case.chosen, other.chosen, True)]:
        columns: dict[str, Any] = {"reference": case.reference, "series": name, "other_series": other_name}
        columns |= {"chosen": chosen, "by": case.curves[name].by}
        columns |= {"model": case.pair.columns["model"], "other": other.pair.columns["model"]}
        yield columns | ratio(name, other_name)


def show_cards(run: Run, s: CircuitsSettings, cases: list[Case]) -> None:
    """Cards of the heads with the largest scores, under the first ablation type of each model and task."""
    first: dict[Pair, Case] = {}
    for case in cases:
        first.setdefault(case.pair, case)
    calls = []
    for pair, case in first.items():
        scores = [scored.table for scored in case.scored.values()]
        options: dict[str, Any] = {"metric": s.metric, "reference": case.reference, "seed": s.seed}
        calls.append((pair.columns, top_cards(pair.model, case.find, scores, s.cards, **options)))
    run.add_cards(calls)
