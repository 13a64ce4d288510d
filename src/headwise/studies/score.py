"""The plain study: score every head of each model on each task by each method."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError
from headwise.figures.heatmap import score_map
from headwise.figures.style import save
from headwise.heads import Scores
from headwise.runs import Cell, CellResult, RunFolder, execute, progress, read_table
from headwise.scores import method, score
from headwise.studies.registry import register
from headwise.studies.workbench import Workbench


@dataclass(frozen=True, kw_only=True)
class ScoreSettings:
    """Settings of the study `score`."""

    models: tuple[str, ...] = ("smollm2",)
    tasks: tuple[str, ...] = ("ioi",)
    """Built-in names, files, or hub:owner/name."""
    methods: tuple[str, ...] = ("ablation",)
    n: int = 64
    """Examples per task."""
    seed: int = 0
    metric: str | None = None
    """By default each task's own."""
    reference: str = "zero"
    """What a gated-out head is replaced by."""
    positions: str = "all"
    """Where gates act."""
    task_options: dict[str, Any] = field(default_factory=dict)
    """Options of the task (pattern: ABB), of its prompts (shots, template, separator) or of its file (columns)."""
    method_options: dict[str, Any] = field(default_factory=dict)
    """Options of the method."""
    quick: bool = False
    """At most 16 examples."""
    device: str | None = None
    dtype: str | None = None
    batch_tokens: int | None = None


@register("score", question="Which heads matter for this task?", settings=ScoreSettings)
def carry_out(settings: ScoreSettings, bench: Workbench, folder: RunFolder) -> None:
    n = min(settings.n, 16) if settings.quick else settings.n
    for name in settings.methods:
        method(name)  # an unknown one should end the run before it begins
    cells = []
    for model_name in settings.models:
        model = bench.model(model_name)
        for task_name in settings.tasks:
            examples = bench.task(task_name, model, n, settings.seed, settings.task_options)
            for name in settings.methods:
                about = {
                    "n": n,
                    "seed": settings.seed,
                    "metric": settings.metric or examples.metric,
                    "reference": settings.reference,
                    "positions": settings.positions,
                    "dtype": str(model.dtype).removeprefix("torch."),
                    "options": settings.method_options,
                }
                prints = {"model": model.fingerprint, "task": examples.fingerprint}
                cells.append(Cell("score", model_name, task_name, name, about, prints))
    execute(folder, cells, partial(_compute, settings, bench, n), progress=bench.progress)
    _draw(folder)


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
            **settings.method_options,
        )
    if np.isnan(scores.values[model.exists]).all():
        raise HeadwiseError(f"{cell.part} gave no finite score for any head of {cell.model} on {cell.task}")
    return CellResult(
        {"scores": scores.table(settings.seed), "examples": example_table(scores)}, dict(scores.details)
    )


def example_table(scores: Scores) -> pd.DataFrame:
    """The per-example values behind a score: one row per example and head."""
    heads = scores.heads()
    values = np.stack([scores.examples[:, h.layer, h.head] for h in heads], axis=1)  # E, heads
    return pd.DataFrame(
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


def _draw(folder: RunFolder) -> None:
    table = read_table(folder, "scores")
    for (model, task, name), part in table.groupby(["model", "task", "method"], sort=False):
        figure = score_map(part.reset_index(drop=True), signed=method(str(name)).signed)
        parts = [str(p).replace("/", "-") for p in (model, task, name)]
        save(figure, folder.path / "figures", "-".join(parts))
