"""The study `contrast`: which heads carry one behaviour and not another?

Gates are fitted on some (keep, lose) pairs of tasks so that what is kept stays likely and what is lost does not, and
tested on the pairs that were held out; one cell for each model. Tables: `contrast` (every held-out pair, side and seed;
seed −1 is the ungated model), `scores` (each head's gate), `gates` and `objective` (how the fit went).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from headwise.charts.section import Tables
from headwise.heads import Scores
from headwise.runs import Cell, CellResult
from headwise.scores.gates.contrastive import contrastive
from headwise.scores.gates.gating import UNIT, check_reference, default_reference
from headwise.studies.abilities import together
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.contrast.charts import section
from headwise.studies.contrast.findings import kept_and_lost
from headwise.studies.contrast.settings import ContrastSettings
from headwise.studies.roles.tables import gate_rows, objective_rows
from headwise.tasks import Task


def stages(context: Context[ContrastSettings]) -> Iterator[Sequence[Cell]]:
    yield [_cell(context, model) for model in context.settings.models]


def _pairs(context: Context[ContrastSettings], model: str) -> dict[str, tuple[Task, Task]]:
    """What is kept and what is lost in each pair, in one model's tokens."""
    s, loaded, task = context.settings, context.model(model), context.bench.task
    return {
        name: (
            task(pair.keep, loaded, s.n, s.seed, pair.keep_options),
            task(pair.lose, loaded, s.n, s.seed, pair.lose_options),
        )
        for name, pair in s.pairs.items()
    }


def _reference(context: Context[ContrastSettings], model: str) -> str:
    reference = context.settings.reference or default_reference(context.model(model))
    check_reference(context.model(model), reference)
    return reference


def _cell(context: Context[ContrastSettings], model: str) -> Cell:
    s, pairs = context.settings, _pairs(context, model)
    about = {"seed": s.seed, "seeds": s.seeds, "fit": s.fit.model_dump(), "floor": s.floor}
    about |= {
        "reference": _reference(context, model),
        "held_out": sorted(s.tested),
        "dtype": context.dtype(model),
    }
    prints = {"model": context.model(model).fingerprint}
    for name, (keep, lose) in pairs.items():
        prints |= {f"{name}/keep": keep.fingerprint, f"{name}/lose": lose.fingerprint}
    fitted = " ".join(name for name in pairs if name not in s.tested)
    return context.cell("fit", model, fitted, "contrast", about, prints)


def fit(context: Context[ContrastSettings], cell: Cell) -> CellResult:
    s, model, pairs = context.settings, context.model(cell.model), _pairs(context, cell.model)
    seeds = list(range(s.seed, s.seed + s.seeds))
    fitted = [pair for name, pair in pairs.items() if name not in s.tested]
    keep = together([kept for kept, _ in fitted], "keep")
    lose = together([lost for _, lost in fitted], "lose")
    with context.progress("contrastive fit", s.fit.updates) as advance:
        fitting = contrastive(
            model,
            keep,
            lose,
            {name: pairs[name] for name in s.tested},
            seeds=seeds,
            settings=s.fit,
            floor=s.floor,
            reference=cell.settings["reference"],
            batch_tokens=s.batch_tokens,
            advance=advance,
        )
    names = {"model": context.display_name(cell.model), "task": cell.task}
    gates = np.where(model.exists, fitting.gates, np.nan)
    meaning = {"method": "contrastive", "metric": UNIT, "details": {"reference": cell.settings["reference"]}}
    scores = Scores.from_examples(gates, **names, **meaning, signed=False)
    about = {**names, "fit": "contrast"}
    tables = {
        "contrast": fitting.table.assign(model=names["model"]),
        "scores": scores.table(s.seed),
        "gates": gate_rows(fitting.fit, seeds, model.heads(), about),
        "objective": objective_rows(fitting.fit, seeds, about),
    }
    return CellResult(tables, {"updates": fitting.fit.updates.tolist()})


def notices(context: Context[ContrastSettings], tables: Tables) -> Iterator[str]:
    for display_name, part in tables["contrast"].groupby("model", sort=False):
        yield f"{display_name}: {kept_and_lost(part)}"


register(
    Study(
        name="contrast",
        question="Which heads carry one behaviour and not another?",
        settings=ContrastSettings,
        stages=stages,
        stage_names=lambda settings: ("fits",),
        compute={"fit": fit},
        section=section,
        notices=notices,
    )
)
