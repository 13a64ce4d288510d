"""`headwise verify`: compute a sample of a run's cells again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.root import (
    Trust,
    app,
)


@app.command()
def verify(
    run: Annotated[Path, typer.Argument(help="a finished run folder")],
    cells: Annotated[int, typer.Option(help="how many to compute again", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="random seed: which ones", min=0)] = 0,
    trust_remote_code: Trust = False,
) -> None:
    """Make a run's tables again from its cells, compute a sample of the cells again, and say whether they match."""
    from headwise.studies.verify import summary
    from headwise.studies.verify import verify as compute_again

    results = compute_again(run, cells=cells, seed=seed, trust_remote_code=trust_remote_code)
    for one in results:
        typer.echo(f"{'same' if one.same else 'DIFFERS'}  {one.label}: {one.said}")
    typer.echo(summary(results))
    if not all(one.same for one in results):
        raise typer.Exit(1)
