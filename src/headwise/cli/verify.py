"""`headwise verify`: recompute a sample of a run's cells."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.output import Failed
from headwise.cli.root import app, with_options


@app.command()
@with_options("seed", "trust_remote_code")
def verify(
    run: Annotated[Path, typer.Argument(help="a finished run folder", metavar="RUN")],
    cells: Annotated[int, typer.Option(help="number of cells to recompute", min=1)] = 3,
    **options: Any,
) -> dict[str, Any]:
    """Rebuild a run's tables from its cells, recompute a sample of the cells, and report whether they match."""
    from headwise.studies.verify import summary
    from headwise.studies.verify import verify as compute_again

    results = compute_again(run, cells=cells, **options)
    for result in results:
        typer.echo(f"{'same' if result.same else 'DIFFERS'}  {result.label}: {result.said}")
    typer.echo(summary(results))
    shown = {
        "run": run,
        "same": all(result.same for result in results),
        "summary": summary(results),
        "results": [asdict(result) for result in results],
    }
    if not shown["same"]:
        raise Failed(shown)
    return shown
