"""The study `diff`: which heads changed between two models?

Both models are scored on the same examples; then each head's values are paired. Tables: `scores` and `examples` of both
models, `answers` (accuracy and metric of every example with all heads), `outcomes` (both models' means, their paired
difference and its test), `diff` (each head's paired difference, tuned − base).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.heatmap import significant
from headwise.charts.section import Tables, too_few
from headwise.heads import Scores, heads_of
from headwise.runs import Cell, CellResult
from headwise.scores.difference import (
    check_same_heads,
    check_same_tokens,
    compare_weights,
    diff_table,
    full_values,
    outcome,
)
from headwise.scores.registry import own_options, versions
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.diff.charts import section
from headwise.studies.diff.settings import DiffSettings
from headwise.studies.head_cards import card_cell, make_cards, strongest
from headwise.studies.score.study import score_heads
from headwise.studies.tables import fingerprint, long_table
from headwise.tasks import Task

PAIR = "both"
"""What the model of a cell is called that compares the two."""


def stages(context: Context[DiffSettings]) -> Iterator[Sequence[Cell]]:
    s = context.settings
    check_same_heads(*map(context.model, s.models))
    for task in s.tasks:
        tasks = [_task(context, model, task) for model in s.models]
        check_same_tokens([context.model(model) for model in s.models], tasks)
    yield [cell for task in s.tasks for model in s.models for cell in _model_cells(context, model, task)]
    yield [cell for task in s.tasks for cell in _pair_cells(context, task)]
    if s.cards:
        cells = [_card_cell(context, model, task) for task in s.tasks for model in s.models]
        yield [cell for cell in cells if cell is not None]


def _task(context: Context[DiffSettings], model: str, task: str) -> Task:
    s = context.settings
    return context.bench.task(task, context.model(model), s.n, s.seed, s.task_options)


def _model_cells(context: Context[DiffSettings], model: str, task: str) -> Iterator[Cell]:
    """One model's answers, and its scores by each method."""
    s, examples = context.settings, _task(context, model, task)
    about = {"n": s.n, "seed": s.seed, "metric": s.metric or examples.metric, "dtype": context.dtype(model)}
    prints = {"model": context.model(model).fingerprint, "task": examples.fingerprint}
    yield context.cell("answers", model, task, "answers", about, prints)
    for method in s.methods:
        how: dict[str, Any] = {"reference": s.reference, "positions": s.positions}
        how |= {"options": own_options(method, s.method_options)}
        yield context.cell("score", model, task, method, about | how, prints | versions(method, examples))


def _pair_cells(context: Context[DiffSettings], task: str) -> Iterator[Cell]:
    """The comparison of the two models by each method, and of their answers."""
    answers = [context.once(_answers, model, task) for model in context.settings.models]
    values = [part["value"].to_numpy() for part in answers]
    about = {"seed": context.settings.seed}
    yield context.cell("outcomes", PAIR, task, "outcomes", about, {"answers": fingerprint(task, *values)})
    for method in context.settings.methods:
        arrays = [context.once(_scores, model, task, method).examples for model in context.settings.models]
        prints = {"scores": fingerprint(method, *arrays)}
        prints |= {"weights": " ".join(context.model(name).fingerprint for name in context.settings.models)}
        yield context.cell("diff", PAIR, task, method, about, prints)


def _card_cell(context: Context[DiffSettings], model: str, task: str) -> Cell | None:
    """The cell of one model's cards of the heads that changed most."""
    s, examples = context.settings, _task(context, model, task)
    changes = context.table("diff", task=task, kind="diff")
    heads = strongest(significant(changes).assign(score=changes["difference"]), s.cards)
    how = {"n": s.n, "reference": s.reference, "positions": s.positions}
    return card_cell(context, model, task, examples, heads, how)


# ---- one model ------------------------------------------------------------------------------------------------------


def score_model(context: Context[Any], cell: Cell) -> CellResult:
    result, name = score_heads(context, cell), context.display_name(cell.model)
    return CellResult({key: table.assign(model=name) for key, table in result.tables.items()}, result.notes)


def answer(context: Context[DiffSettings], cell: Cell) -> CellResult:
    """Accuracy and metric of every example with all heads."""
    s, task, model = context.settings, _task(context, cell.model, cell.task), context.model(cell.model)
    values = full_values(model, task, s.metric, batch_tokens=s.batch_tokens)
    about = {"model": context.display_name(cell.model), "task": task.name}
    axes: list[dict[str, Any]] = [{"metric": list(values)}, {"example": range(len(task))}]
    return CellResult({"answers": long_table(about, axes, {"value": np.stack(list(values.values()))})})


def cards(context: Context[DiffSettings], cell: Cell) -> CellResult:
    s, examples = context.settings, _task(context, cell.model, cell.task)
    return make_cards(context, cell, examples, reference=s.reference, positions=s.positions)


# ---- both models ----------------------------------------------------------------------------------------------------


def _answers(context: Context[DiffSettings], model: str, task: str) -> pd.DataFrame:
    return context.table("answers", model=model, task=task, kind="answers")


def _scores(context: Context[DiffSettings], model: str, task: str, method: str) -> Scores:
    """The scores of one cell, from its tables."""
    which = {"model": model, "task": task, "part": method, "kind": "score"}
    table, examples = context.table("scores", **which), context.table("examples", **which)
    layers, heads = np.array(heads_of(table)).T
    first, shape = table.iloc[0], context.model(model).shape
    values = np.full((int(first["n"]), *shape), np.nan)
    values[:, layers, heads] = examples["value"].to_numpy().reshape(-1, len(table))  # E, heads
    groups = tuple(examples["group"][:: len(table)]) if "group" in examples else None
    about = {name: str(first[name]) for name in ("model", "task", "method", "metric")}
    more = {"signed": bool(first["signed"]), "details": {"reference": first["reference"]}}
    return Scores.from_examples(values, **about, **more, exists=context.model(model).exists, groups=groups)


def compare_heads(context: Context[DiffSettings], cell: Cell) -> CellResult:
    base, tuned = (context.once(_scores, model, cell.task, cell.part) for model in context.settings.models)
    weights, why = compare_weights(*map(context.model, context.settings.models))
    table = diff_table(base, tuned, context.settings.seed, weights)
    return CellResult({"diff": table}, {"said": why} if why else {})


def compare_answers(context: Context[DiffSettings], cell: Cell) -> CellResult:
    s = context.settings
    base, tuned = (context.once(_answers, model, cell.task) for model in s.models)
    task = _task(context, s.models[0], cell.task)
    names = {"task": task.name, "base": base["model"].iloc[0], "tuned": tuned["model"].iloc[0]}
    rows = []
    for metric in map(str, base["metric"].unique()):
        before, after = (part["value"][part["metric"] == metric].to_numpy() for part in (base, tuned))
        tested = outcome(metric, before, after, task.shared_groups(), s.seed)
        rows.append(names | {"metric": metric} | tested)
    return CellResult({"outcomes": pd.DataFrame(rows)})


def notices(context: Context[DiffSettings], tables: Tables) -> Iterator[str]:
    base, tuned = map(context.model, context.settings.models)
    if base.fingerprint == tuned.fingerprint:
        yield f"{base.name} and {tuned.name} have the same weights, so every difference is 0"
    for cell in context.cells:
        if note := context.notes(cell).get("said"):
            yield f"{cell.label}: {note}"
    for (task, method), rows in tables["diff"].groupby(["task", "method"], sort=False):
        if few := too_few(rows):
            yield f"{method} on {task}: {few}"


def _stage_names(settings: DiffSettings) -> Sequence[str]:
    return ("scores of both models", "differences", *(["cards"] if settings.cards else []))


register(
    Study(
        name="diff",
        question="Which heads changed between two models?",
        settings=DiffSettings,
        stages=stages,
        compute={
            "score": score_model,
            "card": cards,
            "answers": answer,
            "diff": compare_heads,
            "outcomes": compare_answers,
        },
        stage_names=_stage_names,
        section=section,
        notices=notices,
    )
)
