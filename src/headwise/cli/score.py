"""`headwise score`: score every head of a model on a task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.root import (
    STUDY,
    Limit,
    MethodNames,
    MetricName,
    ModelName,
    PositionsOrEach,
    ReferenceName,
    TaskName,
    app,
    with_options,
)
from headwise.cli.running import default_folder, run_study, show_scores


@app.command()
@with_options("seed", *STUDY)
def score(
    model: ModelName,
    task: TaskName,
    method: MethodNames = None,
    out: Annotated[Path | None, typer.Option(help="the run folder; by default runs/score-MODEL-TASK")] = None,
    n: Limit = 64,
    metric: MetricName = None,
    reference: ReferenceName = "mean",
    positions: PositionsOrEach = "all",
    precision: Annotated[
        str | None,
        typer.Option(
            help="ablation: run only as many examples as give ± this; auto: 5 % of the largest score"
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="ablation: run only as many examples as find the top K heads")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="confidence level of --precision or --top; by default 0.95")
    ] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Score every head of a model on a task; the same command again resumes.

    With --positions each: every head at every token position.
    """
    early = {"precision": _number(precision), "top": top, "confidence": confidence}
    settings = {
        "models": [model],
        "tasks": [task],
        "method": method or ["ablation"],
        "n": n,
        "metric": metric,
        "reference": reference,
        "positions": positions,
        "method_options": {name: value for name, value in early.items() if value is not None},
    }
    folder = out or default_folder("score", model, task)
    result = run_study("score", folder, None, settings, flags)
    return {"model": model, "task": task, **result, "scores": show_scores(folder, result["tables"])}


def _number(given: str | None) -> float | str | None:
    """A number where it is one; `auto` and mistakes as they are, for the method to judge."""
    try:
        return None if given is None else float(given)
    except ValueError:
        return given
