"""`headwise diff`: which heads changed between two models."""

from __future__ import annotations

from math import isnan, nan
from pathlib import Path
from typing import Annotated, Any

from headwise.cli.output import echo
from headwise.cli.root import (
    MODEL_HELP,
    STUDY,
    MethodNames,
    Positions,
    TaskName,
    app,
    argument,
    with_options,
)
from headwise.cli.running import run_study
from headwise.names import component_name

TUNED_HELP = "a model with the same architecture: alias, hub id, folder (also of an adapter)"


@app.command()
@with_options(*STUDY)
def diff(
    before: Annotated[str, argument("BASE", MODEL_HELP, "models")],
    tuned: Annotated[str, argument("TUNED", TUNED_HELP, "models")],
    task: TaskName,
    method: MethodNames = None,
    positions: Positions = None,
    **flags: Any,
) -> dict[str, Any]:
    """Compare the heads of two models on the same examples (tuned − base); the same command again resumes.

    Short for `headwise run diff --model BASE --model TUNED --task TASK`.
    """
    settings = {"models": [before, tuned], "tasks": [task], "method": method, "positions": positions}
    return {"base": before, "tuned": tuned, "task": task, **run_study("diff", settings, flags, show_diff)}


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
