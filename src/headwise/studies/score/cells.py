"""The cells of the study `score`: one for each model, task and method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwise.errors import HeadwiseError
from headwise.runs import Cell, CellResult
from headwise.scores import method, score
from headwise.scores.registry import own_options, versions
from headwise.studies.context import Context
from headwise.studies.score.settings import ScoreSettings
from headwise.studies.score.tables import example_table
from headwise.tasks import Task


def stages(context: Context[ScoreSettings]) -> Iterator[Sequence[Cell]]:
    yield [
        _cell(context, model, task, name)
        for model, task in _pairs(context)
        for name in context.settings.methods
    ]


def _pairs(context: Context[ScoreSettings]) -> Iterator[tuple[str, str]]:
    """Every model with every task."""
    called: dict[tuple[str, str], tuple[str, str]] = {}
    for model in context.settings.models:
        for task in context.settings.tasks:
            names = context.model(model).name, _task(context, model, task).name
            other = called.setdefault(names, (model, task))
            if other != (model, task):  # their rows could not be told apart in the tables
                raise HeadwiseError(
                    f"{other} and {(model, task)} would both be called {names[1]!r} with {names[0]!r} "
                    "in the tables; rename the file or the folder of one of them"
                )
            yield model, task


def _task(context: Context[ScoreSettings], model: str, task: str) -> Task:
    s = context.settings
    return context.bench.task(task, context.model(model), s.n, s.seed, s.task_options)


def _cell(context: Context[ScoreSettings], model: str, task: str, name: str) -> Cell:
    s, loaded, examples = context.settings, context.model(model), _task(context, model, task)
    about = {
        "n": s.n,
        "seed": s.seed,
        "metric": s.metric or examples.metric,
        "reference": s.reference,
        "positions": s.positions,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "options": own_options(name, s.method_options),
    }
    prints = {"model": loaded.fingerprint, "task": examples.fingerprint} | versions(name, examples)
    return context.cell("score", model, task, name, about, prints)


def score_heads(context: Context[ScoreSettings], cell: Cell) -> CellResult:
    s, model, examples = context.settings, context.model(cell.model), _task(context, cell.model, cell.task)
    with context.progress(f"{cell.part} on {cell.task}", method(cell.part).steps(model, examples)) as advance:
        scores = score(
            model,
            examples,
            cell.part,
            metric=s.metric,
            reference=s.reference,
            positions=s.positions,
            seed=s.seed,
            advance=advance,
            **own_options(cell.part, s.method_options),
        )
    return CellResult(
        {"scores": scores.table(s.seed), "examples": example_table(scores)}, dict(scores.details)
    )
