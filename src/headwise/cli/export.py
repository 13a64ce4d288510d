"""`headwise export`: bake a mask into the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.root import ModelName, app, with_options


@app.command()
@with_options("device", "dtype", "trust_remote_code")
def export(
    model: ModelName,
    heads: Annotated[Path, typer.Option(help='a JSON list of "L12H3", or a scores table and --top')],
    out: Annotated[Path, typer.Option(help="the new checkpoint's folder")],
    top: Annotated[int | None, typer.Option(help="only the first K heads of the file", min=1)] = None,
    task: Annotated[str | None, typer.Option(help="which map of a run's scores.parquet")] = None,
    method: Annotated[str | None, typer.Option(help="which map of a run's scores.parquet")] = None,
    by: Annotated[str, typer.Option(help="order of scores: signed, absolute or hinders")] = "signed",
    gate: Annotated[float, typer.Option(help="0 removes the heads, above 1 amplifies them")] = 0.0,
    **options: Any,
) -> None:
    """Bake a mask into the weights: a plain checkpoint any server can run."""
    from headwise.heads.heads_file import read_heads
    from headwise.model.load.export import export as bake
    from headwise.model.load.load import load

    loaded = load(model, **options)
    chosen = read_heads(heads, top, task=task, method=method, model=loaded.name, by=by)
    folder = bake(loaded, chosen, out, gate)
    typer.echo(
        f"{folder}: {loaded.name} with {len(chosen)} head{'s' * (len(chosen) != 1)} at {gate:g}, "
        f"{str(loaded.dtype).removeprefix('torch.')}; logits equal the gated model's"
    )
