"""`headwise run`: carry out a study into a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.root import STUDY, app, with_options
from headwise.cli.running import run_study


@app.command()
@with_options(*STUDY)
def run(
    study: Annotated[str, typer.Argument(help="which one: headwise list studies")],
    file: Annotated[Path | None, typer.Argument(help="a study file (YAML), or: published")] = None,
    out: Annotated[Path | None, typer.Option(help="the run folder; by default runs/STUDY")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="bundled alias, hub id, folder or GGUF file; repeat for several")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="name or file; repeat for several")] = None,
    data: Annotated[list[Path] | None, typer.Option(help="a task file, beside or instead of --task")] = None,
    **flags: Any,
) -> None:
    """Carry out a study into a run folder; the same command again resumes."""
    tasks = [*(task or []), *map(str, data or [])]
    run_study(
        study, out or Path("runs") / study, file, {"models": model or None, "tasks": tasks or None}, flags
    )
