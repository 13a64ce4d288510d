"""`headwise verify`: recompute a sample of a run's steps."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.output import Failed, echo
from headwise.cli.root import app, with_options
from headwise.errors import HeadwiseError, quoted, visible


@app.command()
@with_options("device", "dtype", "trust_remote_code")
def verify(
    run: Annotated[Path, typer.Argument(help="a finished run folder", metavar="RUN")],
    steps: Annotated[str, typer.Option(help="number of steps to recompute, or all")] = "3",
    seed: Annotated[
        int | None,
        typer.Option(help="random seed that chooses the steps; by default another one each time", min=0),
    ] = None,
    **options: Any,
) -> dict[str, Any]:
    """Rebuild a run's tables from its steps, recompute a sample of the steps, and report whether they match."""
    from headwise.studies.verify import summary
    from headwise.studies.verify import verify as compute_again

    if steps != "all" and not (steps.isdecimal() and int(steps[:9]) > 0):
        raise HeadwiseError(f"--steps is {quoted(steps)}; give a number from 1, or all")
    seed = secrets.randbelow(2**32) if seed is None else seed
    results = compute_again(run, steps="all" if steps == "all" else int(steps[:9]), seed=seed, **options)
    for result in results:
        echo(visible(f"{'same' if result.same else 'DIFFERS'}  {result.label}: {result.said}"))
    again = "" if steps == "all" else f" (--seed {seed} chooses the same steps)"
    echo(f"{summary(results)}{again}")
    shown = {
        "run": run,
        "seed": seed,
        "same": all(result.same for result in results),
        "summary": summary(results),
        "results": [asdict(result) for result in results],
    }
    if not shown["same"]:
        raise Failed(shown)
    return shown
