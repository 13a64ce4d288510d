"""The study `backups`: which heads stand in for one another?

Of each model and task, one half of the examples finds: the effects of single heads, the greedy primary set, the greedy
order of joint removal, the interaction matrix and its groups. The other half tests: the backups of the primary set, the
groups, the curves. The proof by freezing runs on the finding half, whose examples did not choose the backups. Tables
beside the common ones: `primary`, `backups`, `interactions`, `groups`, `freezing`, `agreement` (the first-order
estimate against the exact differences).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headwise.charts.section import Tables, table_of
from headwise.heads import Order, head_list
from headwise.metrics import metric as metric_named
from headwise.model.measure.engine import Engine
from headwise.runs import Cell, CellResult
from headwise.scores.interactions.groups import redundant_groups
from headwise.studies.backups import measures, steps
from headwise.studies.backups.charts import section
from headwise.studies.backups.settings import BackupsSettings
from headwise.studies.backups.tables import backups_of, primary_of
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.halves import halves
from headwise.studies.tables import input_table, score_result


def stages(context: Context[BackupsSettings]) -> Iterator[Sequence[Cell]]:
    s = context.settings
    both = [(model, task) for task in s.tasks for model in s.models]
    for model, _ in both:
        context.model(model).check_heads(head_list(s.primary))
    yield [_cell(context, "single", *pair) for pair in both]
    for pair in both:
        context.once(_single_effects, *pair)
    search = [
        (
            _cell(context, "primary", *pair, primary_heads=s.primary_heads, primary=list(s.primary)),
            _cell(context, "order", *pair, length=s.curve),
        )
        for pair in both
    ]
    yield [cell for cells in search for cell in cells]
    yield [cell for pair in both for cell in _third(context, *pair)]
    yield [cell for pair in both for cell in _fourth(context, *pair)]


def _cell(context: Context[BackupsSettings], kind: str, model: str, task: str, **more: Any) -> Cell:
    half = context.once(halves, model, task)
    about = half.about | {"reference": context.settings.reference}
    prints = {"model": context.model(model).fingerprint}
    prints |= {"find": half.find.fingerprint, "test": half.test.fingerprint}
    return context.cell(kind, model, task, NAMES[kind], about | more, prints)


def _third(context: Context[BackupsSettings], model: str, task: str) -> Iterator[Cell]:
    """The backups of the primary set, the interaction matrix, the curves."""
    s = context.settings
    primary = [str(head) for head in context.once(_primary, model, task)]
    later = context.model(model).heads()[-1].layer > min(map(_layer, primary), default=10**9)
    if primary and later:
        how = {"primary": primary, "candidates": s.candidates, "least": s.least}
        yield _cell(context, "backups", model, task, **how)
    yield _cell(context, "matrix", model, task, primary=primary, first=s.first)
    orders = context.table("orders", kind="order", model=model, task=task)
    order = [f"L{row.layer}H{row.head}" for row in orders.itertuples()]
    yield _cell(context, "curve", model, task, order=order, draws=s.draws)


def _fourth(context: Context[BackupsSettings], model: str, task: str) -> Iterator[Cell]:
    """The proof by freezing, and the groups against random heads."""
    s, primary = context.settings, context.once(_primary, model, task)
    backups = backups_of(context.table("backups", kind="backups", model=model, task=task))
    if backups:
        sets = {"primary": list(map(str, primary)), "backups": list(map(str, backups))}
        yield _cell(context, "freezing", model, task, **sets, draws=s.draws)
    pairs = context.table("interactions", kind="matrix", model=model, task=task)
    names = head_list(sorted(set(pairs["a"]) | set(pairs["b"])))
    least = s.least * _scale(context, model, task)
    groups = [list(map(str, group)) for group in redundant_groups(sorted(names), pairs, least)]
    if groups:
        yield _cell(context, "groups", model, task, groups=groups[: measures.MOST_GROUPS], draws=s.draws)


def _scale(context: Context[BackupsSettings], model: str, task: str) -> float:
    """The largest effect of a single head, by which the smallest interaction of a group is measured."""
    return float(np.abs(context.once(_single_effects, model, task).mean(axis=0)).max())


def _layer(head: str) -> int:
    return head_list(head)[0].layer


def _single_effects(context: Context[BackupsSettings], model: str, task: str) -> np.ndarray:
    """Effects of single heads on the finding half `[E, heads]`."""
    values = context.table("examples", kind="single", model=model, task=task)["value"].to_numpy(dtype=float)
    return values.reshape(-1, len(context.model(model).heads()))


def _primary(context: Context[BackupsSettings], model: str, task: str) -> Order:
    return primary_of(context.table("primary", kind="primary", model=model, task=task))


# ---- cells ----------------------------------------------------------------------------------------------------------


def score_single(context: Context[BackupsSettings], cell: Cell) -> CellResult:
    """Effects of single heads on the finding half."""
    s, half = context.settings, context.once(halves, cell.model, cell.task)
    scores = context.scores(
        cell.label, context.model(cell.model), half.find, "ablation", metric=s.metric, reference=s.reference
    )
    scores = replace(scores, model=context.display_name(cell.model), task=cell.task)
    about = {"model": scores.model, "task": scores.task}
    return score_result(
        scores, s.seed, half.find_numbers, input_table(half.find, about, "scores", half.find_numbers)
    )


def _measured(
    measure: Callable[[measures.Setting, Cell], CellResult], count: Callable[[measures.Setting, Cell], int]
) -> Any:
    """The function of a cell: it runs a measure with the engines of both halves, and names model and task.

    count: the steps of its progress.
    """

    def compute(context: Context[BackupsSettings], cell: Cell) -> CellResult:
        s, model = context.settings, context.model(cell.model)
        half = context.once(halves, cell.model, cell.task)
        how: dict[str, Any] = {"reference": s.reference, "seed": s.seed, "batch_tokens": s.batch_tokens}
        find, test = (
            Engine(model, task, metric_named(s.metric or task.metric), **how)
            for task in (half.find, half.test)
        )
        single = context.once(_single_effects, cell.model, cell.task)
        setting = measures.Setting(find, test, single, half.test_numbers, s.seed)
        with context.progress(cell.label, count(setting, cell)) as advance:
            find.advance = test.advance = advance
            result = measure(setting, cell)
        about = {"model": context.display_name(cell.model), "task": cell.task}
        tables = {name: table.assign(**about) for name, table in result.tables.items() if len(table)}
        return CellResult(tables, result.notes)

    return compute


# ---- notices --------------------------------------------------------------------------------------------------------


def notices(context: Context[BackupsSettings], tables: Tables) -> Iterator[str]:
    primary, backups = table_of(tables, "primary"), table_of(tables, "backups")
    for task in context.settings.tasks:
        for source in context.settings.models:
            model = context.display_name(source)
            if not len(_of(primary, model, task)) or not _of(primary, model, task)["accepted"].any():
                yield (
                    f"{model} on {task}: no head has a significant effect of its own, so there is no primary set; use "
                    "more examples, or name heads with primary"
                )
            elif not len(_of(backups, model, task)):
                yield f"{model} on {task}: no head comes after the primary set, so nothing can react to its removal"
            elif not _of(backups, model, task)["backup"].any():
                yield f"{model} on {task}: none of the {len(_of(backups, model, task))} heads is a backup at q < .05"


def _of(table: Any, model: str, task: str) -> Any:
    return table[(table["model"] == model) & (table["task"] == task)] if len(table) else table


NAMES = {
    "single": "single effects",
    "primary": "primary set",
    "order": "greedy order",
    "backups": "backups of the primary set",
    "matrix": "interaction matrix",
    "curve": "joint removal",
    "freezing": "freezing",
    "groups": "groups",
}
register(
    Study(
        name="backups",
        question="Which heads stand in for one another?",
        settings=BackupsSettings,
        stages=stages,
        stage_names=lambda settings: (
            "single effects",
            "primary set",
            "backups and pairs",
            "freezing and groups",
        ),
        compute={
            "single": score_single,
            "primary": _measured(measures.find_primary, steps.primary_steps),
            "order": _measured(measures.find_order, steps.order_steps),
            "backups": _measured(measures.find_backups, steps.backups_steps),
            "matrix": _measured(measures.measure_matrix, steps.matrix_steps),
            "curve": _measured(measures.measure_curve, steps.curve_steps),
            "freezing": _measured(measures.freeze, steps.freezing_steps),
            "groups": _measured(measures.compare_groups, steps.groups_steps),
        },
        section=section,
        notices=notices,
    )
)
