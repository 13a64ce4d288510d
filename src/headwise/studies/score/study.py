"""The plain study: score every head of each model on each task by each method, a cell for each of the three. A second
stage makes cards of the heads with the largest scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwise.charts.section import Tables
from headwise.errors import HeadwiseError
from headwise.heads import PositionScores
from headwise.model.measure.positions import EACH
from headwise.runs import Cell, CellResult
from headwise.scores.registry import own_options, versions
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.head_cards import card_cell, make_cards, strongest
from headwise.studies.score.charts import section
from headwise.studies.score.settings import ScoreSettings
from headwise.studies.tables import input_table, score_result
from headwise.tasks import Task


def stages(context: Context[ScoreSettings]) -> Iterator[Sequence[Cell]]:
    pairs = list(_pairs(context))
    yield [_cell(context, *pair, method) for pair in pairs for method in context.settings.methods]
    if _with_cards(context.settings):
        cells = [_card_cell(context, *pair) for pair in pairs]
        yield [cell for cell in cells if cell is not None]


def _with_cards(settings: ScoreSettings) -> bool:
    """Cards are of heads with a large score; scores of every position have none for the head as a whole."""
    return settings.cards > 0 and settings.positions != EACH


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
                    "in the tables; name one of the models (NAME=path), or rename the file of one of the tasks"
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
        reference=cell.settings["reference"],
        positions=s.positions,
        **own_options(cell.part, s.method_options),
    )
    about = {"model": scores.model, "task": scores.task}
    if isinstance(scores, PositionScores):
        named = about | {"method": scores.method, "metric": scores.metric}
        tables = {"positions": scores.table(), "position_examples": scores.example_table().assign(**named)}
        tables["inputs"] = input_table(examples, about, "positions")
        return CellResult(tables, dict(scores.details))
    return score_result(scores, s.seed, inputs=input_table(examples, about, "scores"))


def _card_cell(context: Context[ScoreSettings], model: str, task: str) -> Cell | None:
    s, examples = context.settings, _task(context, model, task)
    scores = context.table("scores", model=model, task=task)
    heads = strongest(scores, s.cards)
    how = {"n": s.n, "reference": s.reference, "positions": s.positions}
    return card_cell(context, model, task, examples, heads, how)


def cards(context: Context[ScoreSettings], cell: Cell) -> CellResult:
    s, examples = context.settings, _task(context, cell.model, cell.task)
    return make_cards(context, cell, examples, reference=s.reference, positions=s.positions)


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
        stage_names=lambda settings: ("scores", "cards") if _with_cards(settings) else ("scores",),
        compute={"score": score_heads, "card": cards},
        section=section,
        notices=notices,
    )
)
