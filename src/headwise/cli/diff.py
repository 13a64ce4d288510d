"""`headwise diff`: which heads changed between two models."""

from __future__ import annotations

from math import isnan, nan
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.complete import complete
from headwise.cli.output import echo
from headwise.cli.root import (
    MODEL_HELP,
    STUDY,
    Limit,
    MetricName,
    Positions,
    ReferenceName,
    TaskName,
    app,
    with_options,
)
from headwise.cli.running import default_folder, run_study
from headwise.names import component_name


@app.command()
@with_options("seed", *STUDY)
def diff(
    before: Annotated[
        str,
        typer.Argument(
            help=MODEL_HELP,
            autocompletion=complete("models"),
            metavar="BASE",
        ),
    ],
    tuned: Annotated[
        str,
        typer.Argument(
            help="a model with the same architecture: alias, hub id, folder (also of an adapter)",
            autocompletion=complete("models"),
            metavar="TUNED",
        ),
    ],
    task: TaskName,
    method: Annotated[
        list[str] | None,
        typer.Option(help="signed score method; repeat for several", autocompletion=complete("methods")),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="the run folder; by default runs/diff-BASE-TUNED-TASK")
    ] = None,
    n: Limit = 64,
    metric: MetricName = None,
    reference: ReferenceName = "mean",
    positions: Positions = "all",
    **flags: Any,
) -> dict[str, Any]:
    """Compare the heads of two models on the same examples (tuned − base); the same command again resumes."""
    folder = out or default_folder("diff", before, tuned, task)
    settings = {"models": [before, tuned], "tasks": [task], "methods": method or ["ablation"], "n": n}
    settings |= {"metric": metric, "reference": reference, "positions": positions}
    result = run_study("diff", folder, None, settings, flags)
    for sentence in result["findings"]:
        echo(sentence)
    return {"base": before, "tuned": tuned, "task": task, **result, **show_diff(folder)}


def show_diff(out: Path) -> dict[str, Any]:
    """Print the first ten changes by each method; returns the rows of the tables that compare the models."""
    from headwise.runs import read_table

    tables = {name: read_table(out, name) for name in ("diff", "outcomes")}
    for (task, name), part in tables["diff"].groupby(["task", "method"], sort=False):
        echo(f"{name} on {task}, tuned − base, {len(part)} heads; significant changes first (*: q < .05):")
        for row in part[:10].to_dict("records"):
            interval = f"{row['difference']:+8.3f}  [{row['lo']:+.3f}, {row['hi']:+.3f}]  q = {row['q']:.2g}"
            head = component_name(row["layer"], row["head"]) + "*" * (row["q"] < 0.05)
            share = row.get("weight_change", nan)
            weights = "" if isnan(share) else f"  weights {share:.2%}"
            echo(f"  {head:<8}{interval}  ({row['base_score']:+.3f} → {row['tuned_score']:+.3f}){weights}")
    return {name: table.to_dict("records") for name, table in tables.items()}
