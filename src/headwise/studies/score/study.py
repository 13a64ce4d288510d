"""The plain study: score every head of each model on each task by each method."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError
from headwise.heads import Scores
from headwise.progress import progress
from headwise.runs import Cell, CellResult, RunFolder, execute
from headwise.scores import method, score
from headwise.scores.registry import versions
from headwise.studies.base import register
from headwise.studies.figures import save_figures
from headwise.studies.score.charts import charts
from headwise.studies.score.settings import ScoreSettings
from headwise.studies.workbench import Workbench

QUICK = 16
"""Most examples with `quick`."""


@register("score", question="Which heads matter for this task?", settings=ScoreSettings)
def carry_out(settings: ScoreSettings, bench: Workbench, folder: RunFolder) -> None:
    n = min(settings.n, QUICK) if settings.quick else settings.n
    cells = []
    called: dict[tuple[str, str], tuple[str, str]] = {}
    for model_name in settings.models:
        model = bench.model(model_name)
        for task_name in settings.tasks:
            examples = bench.task(task_name, model, n, settings.seed, settings.task_options)
            other = called.setdefault((model.name, examples.name), (model_name, task_name))
            if other != (model_name, task_name):  # their rows could not be told apart in the tables
                raise HeadwiseError(
                    f"{other} and {(model_name, task_name)} would both be called {examples.name!r} with {model.name!r} "
                    "in the tables; rename the file or the folder of one of them"
                )
            for name in settings.methods:
                about = {
                    "n": n,
                    "seed": settings.seed,
                    "metric": settings.metric or examples.metric,
                    "reference": settings.reference,
                    "positions": settings.positions,
                    "dtype": str(model.dtype).removeprefix("torch."),
                    "options": _options(settings, name),
                }
                prints = {"model": model.fingerprint, "task": examples.fingerprint}
                prints |= versions(name, examples)
                cells.append(Cell("score", model_name, task_name, name, about, prints))
    execute(folder, cells, partial(_compute, settings, bench, n), progress=bench.progress)
    for cell in cells:
        said = folder.store.notes(cell.key).get("said")
        if said:
            folder.notice(f"{cell.label}: {said}")
    save_figures(folder, charts)


def _options(settings: ScoreSettings, name: str) -> dict[str, Any]:
    """Of the method options those that this method takes."""
    known = method(name).options
    return {option: value for option, value in settings.method_options.items() if option in known}


def _compute(settings: ScoreSettings, bench: Workbench, n: int, cell: Cell) -> CellResult:
    model = bench.model(cell.model)
    examples = bench.task(cell.task, model, n, settings.seed, settings.task_options)
    steps = method(cell.part).steps(model, examples)
    with progress(f"{cell.part} on {cell.task}", steps, show=bench.progress) as advance:
        scores = score(
            model,
            examples,
            cell.part,
            metric=settings.metric,
            reference=settings.reference,
            positions=settings.positions,
            seed=settings.seed,
            advance=advance,
            **_options(settings, cell.part),
        )
    return CellResult(
        {"scores": scores.table(settings.seed), "examples": example_table(scores)}, dict(scores.details)
    )


def example_table(scores: Scores) -> pd.DataFrame:
    """The per-example values behind a score: one row per example and head."""
    heads = scores.heads()
    values = np.stack([scores.examples[:, h.layer, h.head] for h in heads], axis=1)  # E, heads
    table = pd.DataFrame(
        {
            "model": scores.model,
            "task": scores.task,
            "method": scores.method,
            "metric": scores.metric,
            "example": np.repeat(np.arange(scores.n, dtype=np.int32), len(heads)),
            "layer": np.tile(np.array([h.layer for h in heads], dtype=np.int32), scores.n),
            "head": np.tile(np.array([h.head for h in heads], dtype=np.int32), scores.n),
            "value": values.ravel(),
        }
    )
    if scores.groups is not None:
        table["group"] = np.repeat(np.array(scores.groups, dtype=object), len(heads))
    # Where a method chose not to run an example there is no row, rather than a value that went missing.
    return table.dropna(subset=["value"]).reset_index(drop=True) if scores.own else table
