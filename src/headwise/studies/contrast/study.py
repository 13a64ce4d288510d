"""The study `contrast`: which heads carry one behaviour and not another?

Gates are fitted on some (keep, lose) pairs of tasks so that what is kept stays likely and what is lost does not, and
tested on the pairs that were held out. Tables: `contrast` (every held-out pair, side and seed; seed −1 is the ungated
model), `scores` (each head's gate), `gates` and `objective` (how the fit went).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from headwise.heads import Scores
from headwise.model.model import Model
from headwise.progress import progress
from headwise.runs import Cell, CellResult, RunFolder, execute, read_table
from headwise.scores.gates.contrastive import contrastive
from headwise.scores.gates.fit import FitSettings
from headwise.scores.gates.gating import UNIT
from headwise.studies.base import register
from headwise.studies.contrast.charts import charts
from headwise.studies.contrast.findings import kept_and_lost
from headwise.studies.contrast.settings import ContrastSettings
from headwise.studies.figures import save_figures
from headwise.studies.roles.tables import gate_rows, objective_rows
from headwise.studies.workbench import Workbench
from headwise.tasks import Task

QUICK_FIT = FitSettings(updates=30, batch=4, rate=(1.0, 0.2), stop=None, keep=5)


@register(
    "contrast",
    question="Which heads carry one behaviour and not another?",
    settings=ContrastSettings,
)
def carry_out(settings: ContrastSettings, bench: Workbench, folder: RunFolder) -> None:
    if settings.quick:
        fit = settings.fit if settings.fit != FitSettings() else QUICK_FIT
        settings = settings.at_most(n=8, seeds=2).replaced(fit=fit)
    held_out = settings.tested
    made = {name: _made(settings, bench, bench.model(name)) for name in settings.models}
    cells = []
    for name, pairs in made.items():
        model = bench.model(name)
        about = {"seed": settings.seed, "seeds": settings.seeds, "fit": settings.fit.model_dump()}
        about |= {"floor": settings.floor, "reference": settings.reference, "held_out": sorted(held_out)}
        about |= {"dtype": str(model.dtype).removeprefix("torch.")}
        prints = {f"{pair}/{side}": t.fingerprint for pair, p in pairs.items() for side, t in p.items()}
        fitted = " ".join(pair for pair in pairs if pair not in held_out)
        cells.append(
            Cell("contrast", name, fitted, "contrast", about, {"model": model.fingerprint, **prints})
        )
    execute(folder, cells, partial(_compute, settings, bench, made, held_out), progress=bench.progress)
    for shown, part in read_table(folder, "contrast").groupby("model", sort=False):
        folder.notice(f"{shown}: {kept_and_lost(part)}")
    save_figures(folder, charts)


def _made(settings: ContrastSettings, bench: Workbench, model: Model) -> dict[str, dict[str, Task]]:
    return {
        name: {
            "keep": bench.task(pair.keep, model, settings.n, settings.seed, pair.keep_options),
            "lose": bench.task(pair.lose, model, settings.n, settings.seed, pair.lose_options),
        }
        for name, pair in settings.pairs.items()
    }


def _compute(
    settings: ContrastSettings,
    bench: Workbench,
    made: dict[str, dict[str, dict[str, Task]]],
    held_out: tuple[str, ...],
    cell: Cell,
) -> CellResult:
    model, pairs = bench.model(cell.model), made[cell.model]
    seeds = list(range(settings.seed, settings.seed + settings.seeds))
    fitted = [pair for name, pair in pairs.items() if name not in held_out]
    keep, lose = (_together(side, [pair[side] for pair in fitted]) for side in ("keep", "lose"))
    with progress("contrastive fit", settings.fit.updates, show=bench.progress) as advance:
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
    shown = bench.shown(settings.models)[cell.model]
    names = {"model": shown, "task": cell.task}
    scores = Scores.from_examples(
        np.where(model.exists, found.gates, np.nan), **names, method="contrastive", signed=False, metric=UNIT
    )
    about = {**names, "fit": "contrast"}
    return CellResult(
        {
            "contrast": found.table.assign(model=shown),
            "scores": scores.table(settings.seed),
            "gates": gate_rows(found.fit, seeds, model.heads(), about),
            "objective": objective_rows(found.fit, seeds, about),
        },
        {"updates": found.fit.updates.tolist()},
    )


def _together(name: str, tasks: Sequence[Task]) -> Task:
    return Task(name, tuple(example for task in tasks for example in task), tasks[0].metric)
