"""`headwise score`: score every head of a model on a task."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headwise.cli.root import (
    STUDY,
    Components,
    MethodNames,
    ModelName,
    PositionsOrEach,
    TaskName,
    app,
    with_options,
)
from headwise.cli.running import run_study, show_scores


@app.command()
@with_options(*STUDY)
def score(
    model: ModelName,
    task: TaskName,
    method: MethodNames = None,
    components: Components = None,
    positions: PositionsOrEach = None,
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

    Short for `headwise run score MODEL TASK`. With --positions each: every head at every token position.
    """
    options = {
        "precision": _number(precision),
        "top": top,
        "confidence": confidence,
        "components": components,
    }
    settings: dict[str, Any] = {"models": [model], "tasks": [task], "method": method, "positions": positions}
    settings["method_options"] = {name: value for name, value in options.items() if value is not None}
    return {"model": model, "task": task, **run_study("score", settings, flags, show_scores)}


def _number(given: str | None) -> float | str | None:
    """A number where it is one; `auto` and mistakes as they are, for the method to judge."""
    try:
        return None if given is None else float(given)
    except ValueError:
        return given
