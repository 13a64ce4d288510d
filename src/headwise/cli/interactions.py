"""`headwise interactions`: which heads back each other up, and which need each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.output import echo
from headwise.cli.root import STUDY, ModelName, TaskName, app, with_options
from headwise.cli.running import largest_of, run_study


@app.command()
@with_options(*STUDY)
def interactions(
    model: ModelName,
    task: TaskName,
    heads: Annotated[
        list[str] | None,
        typer.Option(
            help="a head such as L23H3; repeat for several; or: all. By default the study chooses 40"
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(help="a removed head; repeat for a set: the effect of each other head without the set"),
    ] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Show which heads back each other up and which need each other; the same command again resumes.

    Short for `headwise run backups MODEL TASK`.
    """
    settings = {"models": [model], "tasks": [task], "heads": heads, "primary": given}
    return {"model": model, "task": task, **run_study("backups", settings, flags, show_interactions)}


def show_interactions(out: Path) -> dict[str, Any]:
    """The ten largest interactions on the terminal; returns all of them, and the backups."""
    from headwise.runs import read_table
    from headwise.runs.reader import RunTables

    pairs = read_table(out, "interactions").sort_values(
        "interaction", key=abs, ascending=False, kind="stable"
    )
    metric = pairs["metric"].iloc[0]
    echo(f"interactions: {largest_of(len(pairs))} pairs ({metric}; positive: the two back each other up)")
    for row in pairs.head(10).to_dict("records"):
        echo(
            f"  {row['a']} {row['b']:<8}{row['interaction']:+8.3f}  [{row['lo']:+.3f}, {row['hi']:+.3f}]  "
            f"q = {row['q']:.2g}  (alone {row['effect_a']:+.3f}, {row['effect_b']:+.3f}; both {row['joint']:+.3f})"
        )
    backups = RunTables(out).get("backups")
    found = [] if backups is None else backups.to_dict("records")
    return {"pairs": pairs.to_dict("records"), "backups": found}
