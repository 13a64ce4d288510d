"""`headwise diff`: which heads changed between two models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.root import STUDY, app, with_options
from headwise.cli.running import run_study


@app.command()
@with_options("seed", *STUDY)
def diff(
    base: Annotated[str, typer.Argument(help="bundled alias, hub id, folder or GGUF file")],
    tuned: Annotated[
        str,
        typer.Argument(help="a model with the same architecture: alias, hub id, folder (also of an adapter)"),
    ],
    task: Annotated[
        str, typer.Argument(help="a built-in task (headwise list tasks), a file, or hub:owner/name")
    ],
    method: Annotated[list[str] | None, typer.Option(help="signed score method; repeat for several")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; by default runs/diff-BASE-TUNED-TASK")] = None,
    n: Annotated[int, typer.Option("-n", help="number of examples", min=1)] = 64,
    metric: Annotated[str | None, typer.Option(help="metric; by default the task's own")] = None,
    reference: Annotated[
        str, typer.Option(help="ablation type: zero, mean, position_mean, resample, patch")
    ] = "zero",
    positions: Annotated[str, typer.Option(help="token positions that gates act on: all or last")] = "all",
    **flags: Any,
) -> None:
    """Compare the heads of two models on the same examples (tuned − base); the same command again resumes."""
    from headwise.charts.style import file_name

    folder = out or Path("runs") / "-".join(["diff", *map(file_name, (base, tuned, task))])
    settings = {"models": [base, tuned], "tasks": [task], "methods": method or ["ablation"], "n": n}
    settings |= {"metric": metric, "reference": reference, "positions": positions}
    run_study("diff", folder, None, settings, flags)
    show_diff(folder)


def show_diff(out: Path) -> None:
    """Accuracy of both models and the ten heads that changed most, on the terminal."""
    from headwise.runs import read_table
    from headwise.studies.diff.findings import findings

    tables = {name: read_table(out, name) for name in ("diff", "outcomes")}
    for finding in findings(tables):
        typer.echo(finding.sentence)
    for (task, name), part in tables["diff"].groupby(["task", "method"], sort=False):
        typer.echo(f"{name} on {task}: the ten largest changes of {len(part)} (tuned − base; *: q < .05)")
        for row in part[:10].to_dict("records"):
            interval = f"{row['difference']:+8.3f}  [{row['lo']:+.3f}, {row['hi']:+.3f}]  q = {row['q']:.2g}"
            head = f"L{row['layer']}H{row['head']}{'*' if row['q'] < 0.05 else ''}"
            typer.echo(f"  {head:<8}{interval}  ({row['base_score']:+.3f} → {row['tuned_score']:+.3f})")
