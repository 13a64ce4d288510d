"""What the commands that compute something share: starting a study, resuming, showing scores."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer


def run_study(
    study: str,
    out: Path,
    file: Path | None,
    settings: dict[str, Any],
    option: list[str] | None,
    fresh: bool,
    device: str | None,
    dtype: str | None,
    batch_tokens: int | None,
    where: dict[str, Any],
) -> None:
    from headwise.studies.base import run as carry_out
    from headwise.studies.settings.resolve import assignments, merge

    flags = {"device": device, "dtype": dtype, "batch_tokens": batch_tokens}
    settings |= {name: value for name, value in flags.items() if value is not None}
    settings = {name: value for name, value in settings.items() if value is not None}
    merge(settings, assignments(option or []))
    with resumable() as command:
        folder = carry_out(study, out, file, fresh=fresh, command=command, **where, **settings)
    for notice in folder.notices:
        typer.echo(f"note: {notice}", err=True)
    typer.echo(
        f"{out}: tables{', figures and report.html' if folder.report else ' and figures, but no report'}"
    )


def where_to_run(
    engine: str, address: str | None, workers: int | None, cores: int | None, devices: int | None
) -> dict[str, Any]:
    """Where the cells are computed, which is no setting of the study: it changes nothing in the run."""
    given = {"address": address, "workers": workers, "cores_per_worker": cores, "devices_per_worker": devices}
    return {"engine": engine, **given}


@contextmanager
def resumable() -> Iterator[str]:
    """The command line of this process; after Ctrl-C or SIGTERM the user is told that it goes on from there."""
    from headwise.runs.stopping import stoppable

    command = shlex.join(["headwise", *sys.argv[1:]])
    try:
        with stoppable():
            yield command
    except KeyboardInterrupt:
        typer.echo(
            f"stopped; what is finished is kept, and the same command goes on from there:\n  {command}",
            err=True,
        )
        raise typer.Exit(1) from None


def show_scores(out: Path) -> None:
    """The heads that stand out, on the terminal."""
    from headwise.runs import read_table

    table = read_table(out, "scores")
    for (model, task, name), part in table.groupby(["model", "task", "method"], sort=False):
        typer.echo(
            f"{name} on {task}, {model}: the ten largest of {len(part)}, n = {span(part['n'].tolist())}"
        )
        largest = part.reindex(part["score"].abs().sort_values(ascending=False, kind="stable").index)[:10]
        for row in largest.to_dict("records"):
            head = f"L{row['layer']}H{row['head']}"
            q = "" if row["q"] != row["q"] else f"  q = {row['q']:.2g}"
            typer.echo(f"  {head:<8}{row['score']:+8.3f}  [{row['lo']:+.3f}, {row['hi']:+.3f}]{q}")


def span(numbers: list[int]) -> str:
    """One number, or the range where layers differ."""
    return str(numbers[0]) if len(set(numbers)) == 1 else f"{min(numbers)}–{max(numbers)}"
