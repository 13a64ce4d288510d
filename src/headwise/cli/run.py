"""`headwise run`: carry out a study into a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.root import (
    Address,
    BatchTokens,
    CoresPerWorker,
    Device,
    DevicesPerWorker,
    Dtype,
    Engine,
    Truncate,
    Workers,
    app,
)
from headwise.cli.running import run_study, where_to_run


@app.command()
def run(
    study: Annotated[str, typer.Argument(help="which one: headwise list studies")],
    file: Annotated[Path | None, typer.Argument(help="a study file (YAML), or: published")] = None,
    out: Annotated[Path | None, typer.Option(help="the run folder; by default runs/STUDY")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="bundled alias, hub id, folder or GGUF file; repeat for several"),
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="name or file; repeat for several")] = None,
    data: Annotated[list[Path] | None, typer.Option(help="a task file, beside or instead of --task")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", help="a setting of the study, as key=value: headwise list settings"),
    ] = None,
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
    """Carry out a study into a run folder; the same command again resumes."""
    settings: dict[str, Any] = {"truncate": truncate or None}
    if model:
        settings["models"] = model
    if task or data:
        settings["tasks"] = [*(task or []), *map(str, data or [])]
    where = where_to_run(engine, address, workers, cores_per_worker, devices_per_worker)
    run_study(
        study, out or Path("runs") / study, file, settings, option, fresh, device, dtype, batch_tokens, where
    )
