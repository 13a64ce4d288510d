"""The plain study: score every head of each model on each task by each method, a cell for each of the three. A second
stage makes cards of the heads with the largest scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headwise.cards.measured import STEPS, measure_heads
from headwise.charts.heatmap import by_size, significant
from headwise.charts.section import Tables
from headwise.errors import HeadwiseError
from headwise.heads import head_list, heads_of
from headwise.runs import Cell, CellResult
from headwise.scores.registry import own_options, versions
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.score.charts import section
from headwise.studies.score.settings import ScoreSettings
from headwise.studies.tables import input_table, score_result
from headwise.tasks import Task


def stages(context: Context[ScoreSettings]) -> Iterator[Sequence[Cell]]:
    pairs = list(_pairs(context))
    yield [_cell(context, *pair, method) for pair in pairs for method in context.settings.methods]
    if context.settings.cards:
        cells = [_card_cell(context, *pair) for pair in pairs]
        yield [cell for cell in cells if cell is not None]


def _pairs(context: Context[ScoreSettings]) -> Iterator[tuple[str, str]]:
    """Every model with every task."""
    display_names: dict[tuple[str, str], tuple[str, str]] = {}
    for model in context.settings.models:
        for task in context.settings.tasks:
            names = context.model(model).name, _task(context, model, task).name
            other = display_names.setdefault(names, (model, task))
            if other != (model, task):  # their rows could not be told apart in the tables
                raise HeadwiseError(
                    f"{other} and {(model, task)} would both be called {names[1]!r} with {names[0]!r} "
                    "in the tables; rename the file or the folder of one of them"
                )
            yield model, task


def _task(context: Context[ScoreSettings], model: str, task: str) -> Task:
    s = context.settings
    return context.bench.task(task, context.model(model), s.n, s.seed, s.task_options)


def _cell(context: Context[ScoreSettings], model: str, task: str, method: str) -> Cell:
    s, examples = context.settings, _task(context, model, task)
    about = {"n": s.n, "seed": s.seed, "metric": s.metric or examples.metric, "reference": s.reference}
    about |= {"positions": s.positions, "dtype": context.dtype(model)}
    about |= {"options": own_options(method, s.method_options)}
    prints = {"model": context.model(model).fingerprint, "task": examples.fingerprint}
    return context.cell("score", model, task, method, about, prints | versions(method, examples))


def score_heads(context: Context[ScoreSettings], cell: Cell) -> CellResult:
    s, examples = context.settings, _task(context, cell.model, cell.task)
    scores = context.scores(
        f"{cell.part} on {cell.task}",
        context.model(cell.model),
        examples,
        cell.part,
        metric=s.metric,
        reference=s.reference,
        positions=s.positions,
        **own_options(cell.part, s.method_options),
    )
    about = {"model": scores.model, "task": scores.task}
    return score_result(scores, s.seed, inputs=input_table(examples, about, "scores"))


def _card_cell(context: Context[ScoreSettings], model: str, task: str) -> Cell | None:
    """The cell of the cards of the heads with the largest significant scores, by any method; None without any."""
    s, examples = context.settings, _task(context, model, task)
    scores = context.table("scores", model=model, task=task)
    scores = scores[scores["head"] >= 0]  # a card is about an attention head
    tops = [by_size(significant(rows)).head(s.cards) for _, rows in scores.groupby("method", sort=False)]
    heads = list(dict.fromkeys(str(head) for top in tops for head in heads_of(top)))
    if not heads:
        return None
    about = {"n": s.n, "seed": s.seed, "metric": s.metric or examples.metric, "reference": s.reference}
    about |= {"positions": s.positions, "dtype": context.dtype(model), "heads": heads}
    prints = {"model": context.model(model).fingerprint, "task": examples.fingerprint}
    return context.cell("card", model, task, "cards", about, prints)


def make_cards(context: Context[ScoreSettings], cell: Cell) -> CellResult:
    """The tables of the head pages. A task that does not allow them has scores all the same."""
    s, examples = context.settings, _task(context, cell.model, cell.task)
    model, heads = context.model(cell.model), head_list(cell.settings["heads"])
    how: dict[str, Any] = {
        "metric": s.metric,
        "reference": s.reference,
        "positions": s.positions,
        "seed": s.seed,
    }
    try:
        with context.progress(f"cards of {len(heads)} heads on {cell.task}", STEPS) as advance:
            measured = measure_heads(model, examples, heads, advance=advance, **how)
    except HeadwiseError as error:
        return CellResult(notes={"said": f"no cards: {error}"})
    said = {"said": "; ".join(measured.notes)} if measured.notes else {}
    return CellResult(measured.tables, said)


def notices(context: Context[ScoreSettings], tables: Tables) -> Iterator[str]:
    for cell in context.cells:
        if said := context.notes(cell).get("said"):
            yield f"{cell.label}: {said}"


register(
    Study(
        name="score",
        question="Which heads matter for this task?",
        settings=ScoreSettings,
        stages=stages,
        stage_names=lambda settings: ("scores", "cards") if settings.cards else ("scores",),
        compute={"score": score_heads, "card": make_cards},
        section=section,
        notices=notices,
    )
)
