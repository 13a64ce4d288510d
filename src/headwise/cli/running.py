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
    study: str, out: Path, file: Path | None, settings: dict[str, Any], flags: dict[str, Any]
) -> None:
    """Carry out a study with these settings and `StudyFlags`; what was not given keeps its default."""
    from headwise.studies.settings.resolve import assignments, merge
    from headwise.tasks.opening import check_given

    assigned = assignments(flags.pop("option") or [])
    chosen = {**settings, **flags}
    given = {name: value for name, value in chosen.items() if value is not None and value is not False}
    merge(given, assigned)
    check_given(given)
    from headwise.studies.base import (
        run as carry_out,  # imports torch: seconds, which a bad file need not wait for
    )

    with resumable() as command:
        folder = carry_out(study, out, file, command=command, **given)
    for notice in folder.notices:
        typer.echo(f"note: {notice}", err=True)
    outputs = "tables, figures and report.html" if folder.report else "tables and figures, but no report"
    typer.echo(f"{out}: {outputs}")


@contextmanager
def resumable() -> Iterator[str]:
    """Yield the command line of this process; after Ctrl-C or SIGTERM, say that the same command resumes."""
    from headwise.runs.stopping import stoppable

    command = shlex.join(["headwise", *sys.argv[1:]])
    try:
        with stoppable():
            yield command
    except KeyboardInterrupt:
        typer.echo(f"stopped; finished cells are kept, and the same command resumes:\n  {command}", err=True)
        raise typer.Exit(1) from None


def show_scores(out: Path) -> None:
    """The heads that stand out, on the terminal."""
    from headwise.runs import read_table

    table = read_table(out, "scores")
    for (model, task, name), part in table.groupby(["model", "task", "method"], sort=False):
        n = span(part["n"].tolist())
        typer.echo(f"{name} on {task}, {model}: the ten largest of {len(part)}, n = {n}")
        largest = part.reindex(part["score"].abs().sort_values(ascending=False, kind="stable").index)[:10]
        for row in largest.to_dict("records"):
            head = f"L{row['layer']}H{row['head']}"
            q = "" if row["q"] != row["q"] else f"  q = {row['q']:.2g}"
            typer.echo(f"  {head:<8}{row['score']:+8.3f}  [{row['lo']:+.3f}, {row['hi']:+.3f}]{q}")


def span(numbers: list[int]) -> str:
    """One number, or the range where layers differ."""
    return str(numbers[0]) if len(set(numbers)) == 1 else f"{min(numbers)}–{max(numbers)}"
