"""The cells of the study `contrast`: a fit for each model, tested on the pairs that were held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from headwise.heads import Scores
from headwise.runs import Cell, CellResult
from headwise.scores.gates.contrastive import contrastive
from headwise.scores.gates.gating import UNIT
from headwise.studies.context import Context
from headwise.studies.contrast.settings import ContrastSettings
from headwise.studies.roles.tables import gate_rows, objective_rows
from headwise.tasks import Task


def stages(context: Context[ContrastSettings]) -> Iterator[Sequence[Cell]]:
    made = {name: _pairs(context, name) for name in context.settings.models}
    yield [_cell(context, name, pairs) for name, pairs in made.items()]


def _pairs(context: Context[ContrastSettings], name: str) -> dict[str, dict[str, Task]]:
    """Both sides of each pair, as one model is given them."""
    s, model, task = context.settings, context.model(name), context.bench.task
    return {
        name: {
            "keep": task(pair.keep, model, s.n, s.seed, pair.keep_options),
            "lose": task(pair.lose, model, s.n, s.seed, pair.lose_options),
        }
        for name, pair in s.pairs.items()
    }


def _cell(context: Context[ContrastSettings], name: str, pairs: dict[str, dict[str, Task]]) -> Cell:
    s, model = context.settings, context.model(name)
    about = {"seed": s.seed, "seeds": s.seeds, "fit": s.fit.model_dump()}
    about |= {"floor": s.floor, "reference": s.reference, "held_out": sorted(s.tested)}
    about |= {"dtype": str(model.dtype).removeprefix("torch.")}
    prints = {f"{pair}/{side}": t.fingerprint for pair, p in pairs.items() for side, t in p.items()}
    fitted = " ".join(pair for pair in pairs if pair not in s.tested)
    return context.cell("fit", name, fitted, "contrast", about, {"model": model.fingerprint, **prints})


def fit(context: Context[ContrastSettings], cell: Cell) -> CellResult:
    settings, held_out = context.settings, context.settings.tested
    model, pairs = context.model(cell.model), _pairs(context, cell.model)
    seeds = list(range(settings.seed, settings.seed + settings.seeds))
    fitted = [pair for name, pair in pairs.items() if name not in held_out]
    keep, lose = (_together(side, [pair[side] for pair in fitted]) for side in ("keep", "lose"))
    with context.progress("contrastive fit", settings.fit.updates) as advance:
        found = contrastive(
            model,
            keep,
            lose,
            {name: (pairs[name]["keep"], pairs[name]["lose"]) for name in held_out},
            seeds=seeds,
            settings=settings.fit,
            floor=settings.floor,
            reference=settings.reference,
            batch_tokens=settings.batch_tokens,
            advance=advance,
        )
    display_name = context.display_name(cell.model)
    names = {"model": display_name, "task": cell.task}
    scores = Scores.from_examples(
        np.where(model.exists, found.gates, np.nan), **names, method="contrastive", signed=False, metric=UNIT
    )
    about = {**names, "fit": "contrast"}
    return CellResult(
        {
            "contrast": found.table.assign(model=display_name),
            "scores": scores.table(settings.seed),
            "gates": gate_rows(found.fit, seeds, model.heads(), about),
            "objective": objective_rows(found.fit, seeds, about),
        },
        {"updates": found.fit.updates.tolist()},
    )


def _together(name: str, tasks: Sequence[Task]) -> Task:
    return Task(name, tuple(example for task in tasks for example in task), tasks[0].metric)
