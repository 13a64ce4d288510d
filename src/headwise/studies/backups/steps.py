"""The steps of the study `backups`: both halves of the examples in, tables and results out.

Each costs a forward row for every variant of the gates and every row of an example, and one for a row of a backward
pass. E examples, K numbers of removed heads, R draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Head, Order, mask_gates, ones, ranked
from headwise.heads.controls import control_sets
from headwise.heads.head import head_columns
from headwise.metrics import metric as metric_named
from headwise.model.measure.engine import Engine, Metric
from headwise.model.model import Model
from headwise.model.tokens.encode import encode_rows
from headwise.runs import Job, step
from headwise.scores.interactions.interactions import Interactions, tested
from headwise.scores.interactions.pairs import (
    Unit,
    agreement_with_estimate,
    all_pairs,
    estimated_interactions,
    pair_effects,
)
from headwise.scores.interactions.sets import (
    POOL,
    backup_table,
    candidates_after,
    conditional_effects,
    effects_given,
    freezing,
    freezing_table,
    greedy_order,
    group_table,
    primary_set,
)
from headwise.stats.resampling import Groups
from headwise.tables.frames import long_table
from headwise.tasks import Task

GREEDY, SINGLE, RANDOM = "greedy", "single", "random"
ON = "on {case.find.name} with {case.model.name}"


@dataclass(frozen=True, eq=False)
class Case:
    """A model and both halves of a task: what every step is measured with."""

    model: Model
    find: Task
    test: Task
    single: np.ndarray
    """Effects of single heads on the finding half `[E, heads]`."""
    metric_name: str
    reference: str
    seed: int

    @property
    def heads(self) -> list[Head]:
        return self.model.heads()

    @property
    def metric(self) -> Metric:
        return metric_named(self.metric_name)

    @cached_property
    def find_rows(self) -> int:
        return self._rows(self.find)

    @cached_property
    def test_rows(self) -> int:
        return self._rows(self.test)

    def _rows(self, half: Task) -> int:
        return len(encode_rows(self.model.text, half.examples, self.metric.needs))

    def engine(self, half: Task, job: Job) -> Engine:
        options: dict[str, Any] = {"reference": self.reference, "seed": self.seed}
        return Engine(self.model, half, self.metric, advance=job.advance, **options)


# ---- the primary set and the greedy order, on the finding half -----------------------------------------------


def _primary_cost(case: Case, given: Order, most: int) -> int:
    """At most: the greedy search ends where no head is significant."""
    greedy = sum(min(POOL, len(case.heads)) - taken for taken in range(1, most))
    return max(len(given) or greedy, 0) * case.find_rows


@step(cost=_primary_cost, label=f"primary set {ON}")
def find_primary(job: Job, case: Case, given: Order, most: int) -> pd.DataFrame:
    """The greedy primary set, of at most so many heads; or the given heads."""
    engine, groups = case.engine(case.find, job), case.find.shared_groups()
    if not given:
        table = primary_set(engine, case.single, case.heads, most=most, groups=groups)
        return table.assign(metric=case.metric.name)
    rows = []
    for number, head in enumerate(given):
        (effect,) = conditional_effects(engine, given[:number], [head])
        lo, hi = stats.effect_interval(effect, groups=groups)
        p = float(stats.sign_flip(effect[:, None], groups=groups, seed=case.seed)[0])
        single = case.single[:, case.heads.index(head)].mean()
        row = {"step": number + 1, "layer": head.layer, "head": head.head, "single": single}
        row |= {"conditional": effect.mean(), "lo": float(lo), "hi": float(hi), "p": p, "q": p}
        rows.append(row | {"candidates": 1, "accepted": True, "n": len(effect)})
    return pd.DataFrame(rows).assign(metric=case.metric.name)


def _order_cost(case: Case, length: int) -> int:
    heads, backward = len(case.heads), int(case.metric.differentiable)
    taken = range(1, min(length, heads))
    return sum(min(POOL, heads - count) + backward for count in taken) * case.find_rows


@step(cost=_order_cost, label=f"greedy order {ON}")
def find_order(job: Job, case: Case, length: int) -> Order:
    """Heads in the order of greedy joint removal."""
    return greedy_order(case.engine(case.find, job), case.single, case.heads, length)


# ---- backups, pairs and joint removal ------------------------------------------------------------------------


def _estimate_cost(case: Case, rows: int) -> int:
    """Two backward passes, where the metric has a gradient at all gates 1."""
    return 2 * rows * int(case.metric.first_order)


def _backups_cost(case: Case, primary: Order, most: int | None, **_: Any) -> int:
    candidates = len(candidates_after(case.heads, primary))
    tested_heads = min(most or candidates, candidates)
    screening = _estimate_cost(case, case.find_rows) if tested_heads < candidates else 0
    return screening + tested_heads * case.test_rows + _estimate_cost(case, case.test_rows)


@step(cost=_backups_cost, label=f"backups of the primary set {ON}")
def find_backups(
    job: Job, case: Case, primary: Order, most: int | None, least: float
) -> dict[str, pd.DataFrame]:
    """Each candidate's effect alone and given the primary set, on the testing half.

    most: candidates, chosen on the finding half; all by default.
    """
    candidates = candidates_after(case.heads, primary)
    if most is not None and most < len(candidates):
        candidates = sorted(ranked(candidates, _screening(case, job, primary, candidates))[:most])
    engine, metric = case.engine(case.test, job), case.metric.name
    effects = effects_given(engine, primary, candidates)
    table = backup_table(
        effects, candidates, least=least, groups=case.test.shared_groups(), seed=case.seed
    ).assign(metric=metric)
    places = head_columns(candidates)
    axes: list[dict[str, Any]] = [{"example": case.test.numbers}, places]
    examples = long_table({"method": "backup", "metric": metric}, axes, {"value": effects.interaction})
    if not case.metric.first_order:
        return {"backups": table, "examples": examples}
    estimate = _estimate_given(engine, primary, candidates)
    agreement = agreement_with_estimate(effects.interaction.mean(axis=0), estimate)
    return {
        "backups": table.merge(pd.DataFrame({**places, "estimate": estimate}), on=["layer", "head"]),
        "examples": examples,
        "agreement": pd.DataFrame([{"of": "backups", **agreement._asdict()}]),
    }


def _screening(case: Case, job: Job, primary: Order, candidates: Order) -> np.ndarray:
    """How much each candidate's effect grows, by the first-order estimate on the finding half; where the metric has no
    gradient, how large its effect alone is."""
    if case.metric.first_order:
        return _estimate_given(case.engine(case.find, job), primary, candidates)
    return np.abs([case.single[:, case.heads.index(head)].mean() for head in candidates])


def _estimate_given(engine: Engine, removed: Order, candidates: Order) -> np.ndarray:
    """The mean first-order estimate of each candidate's difference where the set is removed `[C]`."""
    units = [tuple(removed), *((head,) for head in candidates)]
    pairs = np.array([[0, number] for number in range(1, len(units))])
    return estimated_interactions(engine, units, pairs, both=False).mean(axis=0)


def _matrix_cost(case: Case, primary: Order, first: int, heads: Order) -> int:
    first = len(heads) or min(first, len(case.heads))
    estimate = _estimate_cost(case, case.find_rows) if primary and not heads else 0
    return first * (first - 1) // 2 * case.find_rows + estimate


@step(cost=_matrix_cost, label=f"interaction matrix {ON}")
def measure_matrix(job: Job, case: Case, primary: Order, first: int, heads: Order) -> Interactions:
    """Interactions of every two of these heads, on the finding half; where none are given, of the first heads."""
    engine, groups = case.engine(case.find, job), case.find.shared_groups()
    estimate = np.zeros(len(case.heads))
    if primary and not heads and case.metric.first_order:
        estimate = _estimate_given(engine, primary, case.heads)
    chosen = heads or matrix_heads(case.heads, case.single.mean(axis=0), estimate, primary, first)
    units: list[Unit] = [(head,) for head in chosen]
    pairs = all_pairs(len(chosen))
    interaction = pair_effects(engine, units, pairs).interaction
    single = case.single[:, [case.heads.index(head) for head in chosen]]
    names = (case.model.name, case.find.name, case.metric.name, case.reference)
    tests = tested(interaction, groups, 0)
    return Interactions(units, pairs, single, interaction, *names, tests=tests, groups=groups)


def matrix_heads(
    heads: Sequence[Head], single: np.ndarray, estimate: np.ndarray, primary: Sequence[Head], first: int
) -> Order:
    """The heads of the interaction matrix, by layer: the primary set; then in turn the heads with the largest effect
    alone, and those whose effect grows most where the primary set is removed, by the first-order estimate.

    single, estimate: means of the heads, in their order.
    """
    rankings = [ranked(heads, values, "absolute") for values in (single, estimate)]
    in_turn = [head for pair in zip(*rankings, strict=True) for head in pair]
    return sorted(list(dict.fromkeys([*primary, *in_turn]))[:first])


@step(
    cost=lambda case, order, draws: (2 + draws) * (len(order) + 1) * case.test_rows,
    label=f"joint removal {ON}",
)
def remove_jointly(job: Job, case: Case, order: Order, draws: int) -> dict[str, pd.DataFrame]:
    """The metric on the testing half as the first k heads of an order are removed together."""
    single, ks = ranked(case.heads, case.single.mean(axis=0))[: len(order)], list(range(len(order) + 1))
    sizes = [min(k, len(case.heads) // 2) for k in ks]
    sets = [one[:k] for one in (order, single) for k in ks]
    for draw in range(draws):
        sets += [d.heads for d in control_sets("random", case.heads, order, sizes, f"{case.seed}/{draw}")]
    shape = case.model.shape
    gates = np.stack([mask_gates(heads, shape) if heads else ones(shape) for heads in sets])
    values = case.engine(case.test, job).measure(gates).values.reshape(2 + draws, len(ks), -1)
    series = {GREEDY: values[:1], SINGLE: values[1:2], RANDOM: values[2:]}
    axes: list[dict[str, Any]] = [{"series": [GREEDY, SINGLE]}, {"k": ks}, {"example": case.test.numbers}]
    columns = {"action": "mask", "metric": case.metric.name}
    return {
        "curves": _curve_rows(series, ks, case.test.shared_groups()).assign(metric=case.metric.name),
        "examples": long_table(columns, axes, {"value": values[:2]}),
    }


def _curve_rows(values: Mapping[str, np.ndarray], ks: Sequence[int], groups: Groups) -> pd.DataFrame:
    """The mean of each series `[R, K, E]` at every k, with its interval; R draws, 1 for an order."""
    rows: list[dict[str, Any]] = []
    for series, table in values.items():
        for number, k in enumerate(ks):
            at_k = table[:, number]
            lo, hi = stats.crossed_interval(at_k, groups=groups)
            row = {"series": series, "action": "mask", "k": k, "value": at_k.mean(), "lo": lo, "hi": hi}
            rows.append(row | {"n": at_k.shape[1], "draws": len(at_k)})
    return pd.DataFrame(rows).assign(draw=pd.array([None] * len(rows), dtype="Int32"))


# ---- freezing and groups -------------------------------------------------------------------------------------


# Nothing, the backups, all other heads and each draw frozen; the set with its backups.
@step(cost=lambda case, draws, **_: (4 + draws) * case.find_rows, label=f"freezing {ON}")
def freeze(job: Job, case: Case, primary: Order, backups: Order, draws: int) -> pd.DataFrame:
    """The proof by freezing, on the finding half: its examples did not choose the backups."""
    found = freezing(case.engine(case.find, job), primary, backups, draws=draws, seed=case.seed)
    table = freezing_table(found, len(backups), groups=case.find.shared_groups())
    return table.assign(metric=case.metric.name)


# Of each group and of each draw beside it: all heads together, and each alone.
@step(
    cost=lambda case, groups, draws: sum(1 + len(group) for group in groups) * (1 + draws) * case.test_rows,
    label=f"groups {ON}",
)
def compare_groups(job: Job, case: Case, groups: Sequence[Order], draws: int) -> pd.DataFrame:
    """The groups of the finding half, on the testing half, against random heads of the same layers."""
    examples = case.test.shared_groups()
    engine = case.engine(case.test, job)
    table = group_table(engine, groups, draws=draws, examples=examples, seed=case.seed)
    return table.assign(metric=case.metric.name)
