"""`headwise edges`: which heads a head reads from, through Q, K and V."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.output import echo
from headwise.cli.root import STUDY, ModelName, TaskName, app, with_options
from headwise.cli.running import largest_of, run_study


@app.command()
@with_options(*STUDY)
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
    method: Annotated[
        str | None, typer.Option(help="edge method: exact (default), attribution or integrated")
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(help="without --into: number of top heads whose edges are scored; by default 16", min=2),
    ] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Score the direct edges into some heads, or among the top heads; the same command again resumes.

    Short for `headwise run wiring MODEL TASK`.
    """
    settings = {"models": [model], "tasks": [task], "into": into, "heads": heads}
    settings["method"] = [method] if method else None
    return {"model": model, "task": task, **run_study("wiring", settings, flags, show_edges)}


def show_edges(out: Path) -> dict[str, Any]:
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
    return {"edges": largest[columns].to_dict("records")}
