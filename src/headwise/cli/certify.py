"""`headwise certify`: is this set of heads really a circuit?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.output import echo
from headwise.cli.root import STUDY, ModelName, TaskName, app, with_options
from headwise.cli.running import run_study


@app.command()
@with_options(*STUDY)
def certify(
    model: ModelName,
    task: TaskName,
    heads: Annotated[
        str | None,
        typer.Option(
            help="the set: names (L23H3,L20H0), a heads file, or a run folder or scores with --top; by default a set "
            "is found on other examples than it is tested on"
        ),
    ] = None,
    top: Annotated[int | None, typer.Option(help="how many of the first heads form the set", min=1)] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Test whether a set of heads is a circuit of a behaviour: eleven checks, a verdict, one page.

    --quick: checks 1 to 4 on fewer examples. Exit code 0 whatever the verdict; --json has it.
    """
    settings = {"models": [model], "tasks": [task], "heads": heads, "top": top}
    return {"model": model, "task": task, **run_study("certify", settings, flags, show_certificate)}


def show_certificate(out: Path) -> dict[str, Any]:
    """Print every check; returns verdict, sentence and checks."""
    from headwise.certificates.certificate import number, plain
    from headwise.runs import read_table

    certificate, checks = read_table(out, "certificates").iloc[0], read_table(out, "checks")
    echo(f"{certificate['verdict'].upper()}: {certificate['sentence']}")
    for row in checks.to_dict("records"):
        asked = f"  (threshold {plain(row['threshold'])})" if plain(row["threshold"]) else ""
        note = f"; {row['note']}" if row["note"] else ""
        echo(
            f"  {row['check']:>2} {row['name']:<22} {row['state']:<11} {row['measure']}: {number(row)}{asked}{note}"
        )
    names = ("verdict", "sentence", "k", "of", "heads", "n", "reference")
    return {name: certificate[name] for name in names} | {"checks": checks.to_dict("records")}
