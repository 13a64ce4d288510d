"""`headwise sparsify`: train a model to use few edges of its attention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.root import (
    Device,
    app,
)
from headwise.errors import HeadwiseError


@app.command()
def sparsify(
    model: Annotated[str, typer.Argument(help="bundled alias, hub id or folder")],
    out: Annotated[Path, typer.Option(help="the folder that is made; hw.load opens it")] = Path("sparse"),
    text: Annotated[list[Path] | None, typer.Option(help="a text to train on; repeat for several")] = None,
    sample: Annotated[int, typer.Option(help="sequences sampled from the model itself", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="updates in all", min=1)] = 4000,
    bound: Annotated[float, typer.Option(help="nats per token that may be lost")] = 0.02,
    batch: Annotated[int, typer.Option(help="sequences in one update", min=1)] = 32,
    length: Annotated[int, typer.Option(help="tokens in one sequence", min=8)] = 256,
    rank: Annotated[int, typer.Option(help="of the low-rank adapter", min=1)] = 24,
    rate: Annotated[float, typer.Option(help="largest learning rate")] = 1e-3,
    seed: Annotated[int, typer.Option(help="random seed", min=0)] = 0,
    start: Annotated[Path | None, typer.Option(help="begin from the adapter of an earlier training")] = None,
    dense: Annotated[bool, typer.Option(help="the control: the same training without gates")] = False,
    seconds: Annotated[
        float | None, typer.Option(help="stop cleanly after so long; run again to go on", min=0)
    ] = None,
    evaluate: Annotated[bool, typer.Option(help="compare with the dense model on --held-out texts")] = False,
    held_out: Annotated[
        list[Path] | None, typer.Option(help="a text not trained on; repeat for several")
    ] = None,
    control: Annotated[
        str | None, typer.Option(help="the folder of the control, to compare with it too")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="evaluate on so many sequences of each text", min=2)
    ] = None,
    ioi: Annotated[int, typer.Option(help="IOI prompts of the evaluation, 0 for none", min=0)] = 500,
    option: Annotated[list[str] | None, typer.Option("--set", help="any other setting, as key=value")] = None,
    compile: Annotated[bool | None, typer.Option(help="use torch.compile; by default on a GPU")] = None,
    graph: Annotated[
        bool | None, typer.Option(help="record updates as a CUDA graph; by default on a GPU")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="start over in a folder that holds a training")] = False,
    device: Device = None,
) -> None:
    """Train a model to use few edges of its attention; the same command again resumes.

    With --evaluate, and a MODEL that is sparse already, nothing is trained.
    """
    from headwise.sparsify.sparsify import evaluate as compare
    from headwise.sparsify.sparsify import is_sparse
    from headwise.sparsify.sparsify import sparsify as train
    from headwise.studies.settings.resolve import assignments

    finished = evaluate and is_sparse(model)
    if evaluate and not held_out:
        raise HeadwiseError("--evaluate needs text that was not trained on: give --held-out FILE")
    if evaluate and dense:
        raise HeadwiseError(
            "a control has no edge gates to evaluate; give it as --control of its sparse model"
        )
    if not finished:
        settings: dict[str, Any] = {"sample": sample, "steps": steps, "bound": bound, "batch": batch}
        settings |= {"length": length, "rank": rank, "rate": rate, "seed": seed, "dense": dense}
        settings |= assignments(option or [])
        how: dict[str, Any] = {"seconds": seconds, "fresh": fresh, "device": device, "compile": compile}
        done = train(model, text or [], out, start=start, graph=graph, **how, **settings)
        typer.echo(
            f"{out}: done" if done else f"{out}: stopped after {seconds:.0f} s; the same command goes on"
        )
        if not done or not evaluate:
            return
    into = out if finished else out / "evaluation"
    compare(
        model if finished else out,
        held_out or [],
        into,
        control=control,
        length=length,
        limit=limit,
        ioi=ioi,
        device=device,
    )
    typer.echo((into / "summary.txt").read_text(encoding="utf-8") + f"{into}: tables and figures")
