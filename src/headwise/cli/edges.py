"""`headwise edges`: which heads a head reads from, through Q, K and V."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.output import echo
from headwise.cli.root import STUDY, MetricName, ModelName, ReferenceName, TaskName, app, with_options
from headwise.cli.running import default_folder, largest_of, run_study


@app.command()
@with_options("seed", *STUDY)
def edges(
    model: ModelName,
    task: TaskName,
    into: Annotated[
        list[str] | None,
        typer.Option(
            help="receiver: a head (L23H3: its Q, K and V), L23H3.Q, L23KV1.K, MLP4 or logits; repeat for several. By "
            "default the top heads of the task"
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="edge method: exact, attribution or integrated")] = "exact",
    heads: Annotated[
        int, typer.Option(help="without --into: number of top heads whose edges are scored", min=2)
    ] = 16,
    out: Annotated[Path | None, typer.Option(help="the run folder; by default runs/edges-MODEL-TASK")] = None,
    n: Annotated[int, typer.Option("-n", "--limit", help="number of examples, in two halves", min=4)] = 32,
    metric: MetricName = None,
    reference: ReferenceName = "mean",
    **flags: Any,
) -> dict[str, Any]:
    """Score the direct edges into some heads, or among the top heads; the same command again resumes."""
    settings = {
        "models": [model],
        "tasks": [task],
        "into": into or [],
        "method": [method],
        "heads": heads,
        "n": n,
        "metric": metric,
        "reference": reference,
    }
    folder = out or default_folder("edges", model, task)
    result = run_study("wiring", folder, None, settings, flags)
    return {"model": model, "task": task, **result, "edges": show_edges(folder)}


def show_edges(out: Path) -> list[dict[str, Any]]:
    """The ten largest edges on the terminal; returns all of them."""
    from headwise.runs import read_table
    from headwise.tables.frames import by_size

    table = read_table(out, "edges")
    largest = by_size(table)
    echo(f"{largest_of(len(table))} edges on held-out examples (*: q < .05)")
    for row in largest[:10].to_dict("records"):
        star = "*" if row["q"] < 0.05 else ""
        shared = f"  shared by {row['heads']}" if " " in row["heads"] else ""
        interval = f"{row['score']:+8.3f}  [{row['lo']:+.3f}, {row['hi']:+.3f}]  q = {row['q']:.2g}"
        echo(f"  {row['sender']:>7} → {row['receiver']:<10}{star:<2}{interval}{shared}")
    columns = ["sender", "receiver", "slot", "score", "lo", "hi", "q"]
    return [{str(name): value for name, value in row.items()} for row in largest[columns].to_dict("records")]
