"""`headwise score`: score every head of a model on a task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.root import (
    Address,
    BatchTokens,
    CoresPerWorker,
    Device,
    DevicesPerWorker,
    Dtype,
    Engine,
    ModelName,
    Truncate,
    Workers,
    app,
)
from headwise.cli.running import run_study, show_scores, where_to_run


@app.command()
def score(
    model: ModelName,
    task: Annotated[
        str, typer.Argument(help="a built-in task (headwise list tasks), a file, or hub:owner/name")
    ],
    method: Annotated[list[str] | None, typer.Option(help="score method; repeat for several")] = None,
    out: Annotated[Path, typer.Option(help="the run folder")] = Path("runs/score"),
    n: Annotated[int, typer.Option("-n", help="examples", min=1)] = 64,
    seed: Annotated[int, typer.Option(help="random seed", min=0)] = 0,
    metric: Annotated[str | None, typer.Option(help="by default the task's own")] = None,
    reference: Annotated[
        str, typer.Option(help="ablation type: zero, mean, position_mean, resample, patch")
    ] = "zero",
    positions: Annotated[str, typer.Option(help="where gates act: all or last")] = "all",
    precision: Annotated[float | None, typer.Option(help="ablation: run only enough for ± this")] = None,
    top: Annotated[int | None, typer.Option(help="ablation: run only enough to tell the first K")] = None,
    confidence: Annotated[float | None, typer.Option(help="of --precision or --top; 0.95")] = None,
    option: Annotated[list[str] | None, typer.Option("--set", help="any other setting, as key=value")] = None,
    fresh: Annotated[bool, typer.Option(help="set an earlier run in the same folder aside")] = False,
    device: Device = None,
    dtype: Dtype = None,
    batch_tokens: BatchTokens = None,
    truncate: Truncate = False,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    cores_per_worker: CoresPerWorker = None,
    devices_per_worker: DevicesPerWorker = None,
) -> None:
    """Score every head of a model on a task; the same command again resumes."""
    early = {"precision": precision, "top": top, "confidence": confidence}
    settings = {
        "models": [model],
        "tasks": [task],
        "methods": method or ["ablation"],
        "n": n,
        "seed": seed,
        "metric": metric,
        "reference": reference,
        "positions": positions,
        "method_options": {name: value for name, value in early.items() if value is not None},
        "truncate": truncate or None,
    }
    where = where_to_run(engine, address, workers, cores_per_worker, devices_per_worker)
    run_study("score", out, None, settings, option, fresh, device, dtype, batch_tokens, where)
    show_scores(out)
