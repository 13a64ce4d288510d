"""`headwise sparsify`: train a model with sparse attention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from headwise.cli.output import echo
from headwise.cli.root import app, argument, option, with_options
from headwise.errors import HeadwiseError
from headwise.sparsify.settings import SparsifySettings

_SETTINGS = "sample", "steps", "bound", "batch", "length", "rank", "rate", "seed", "dense"


@app.command()
@with_options("option", "device", "dtype", "trust_remote_code")
@with_options(*_SETTINGS, of=SparsifySettings)
def sparsify(
    model: Annotated[str, argument("MODEL", "bundled alias, hub id or folder")],
    out: Annotated[Path, option("the output folder; hw.load opens it")] = Path("sparse"),
    text: Annotated[list[Path] | None, option("a text to train on; repeat for several")] = None,
    start: Annotated[Path | None, option("start from the adapter of an earlier training")] = None,
    seconds: Annotated[
        float | None, option("stop cleanly after this time; run again to resume", min=0)
    ] = None,
    evaluate: Annotated[bool, option("compare with the dense model on --held-out texts")] = False,
    held_out: Annotated[list[Path] | None, option("a text not trained on; repeat for several")] = None,
    control: Annotated[str | None, option("the folder of the dense control, to compare with it too")] = None,
    limit: Annotated[
        int | None, option("evaluate on at most this many sequences of each text", min=2)
    ] = None,
    ioi: Annotated[int, option("IOI prompts of the evaluation, 0 for none", min=0)] = 500,
    compile: Annotated[bool | None, option("use torch.compile; by default on a GPU")] = None,
    graph: Annotated[bool | None, option("record updates as a CUDA graph; by default on a GPU")] = None,
    fresh: Annotated[bool, option("start over in a folder that holds a training")] = False,
    **settings: Any,
) -> dict[str, Any]:
    """Train a model with sparse attention (few attention edges); the same command again resumes.

    With --evaluate, and a MODEL that is sparse already, nothing is trained.
    """
    from headwise.sparsify.sparsify import evaluate as compare
    from headwise.sparsify.sparsify import is_sparse
    from headwise.sparsify.sparsify import sparsify as train
    from headwise.studies.settings.resolve import assignments

    option = settings.pop("option")
    loading = {name: settings.pop(name) for name in ("device", "dtype", "trust_remote_code")}
    finished = evaluate and is_sparse(model)
    if evaluate and not held_out:
        raise HeadwiseError("--evaluate needs text that was not trained on: give --held-out FILE")
    if evaluate and settings["dense"]:
        raise HeadwiseError(
            "a control has no edge gates to evaluate; give it as --control of its sparse model"
        )
    length, result = settings["length"], dict[str, Any]({"folder": out, "done": True})
    if not finished:
        settings |= assignments(option or [])
        options: dict[str, Any] = {"start": start, "seconds": seconds, "fresh": fresh, **loading}
        done = train(model, text or [], out, compile=compile, graph=graph, **options, **settings)
        echo(f"{out}: done" if done else f"{out}: stopped after {seconds:.0f} s; the same command resumes")
        if not done or not evaluate:
            return result | {"done": done}
    sparse, into = (model, out) if finished else (out, out / "evaluation")
    compare(sparse, held_out or [], into, control=control, length=length, limit=limit, ioi=ioi, **loading)
    summary = (into / "summary.txt").read_text(encoding="utf-8")
    echo(summary + f"{into}: tables and figures")
    return result | {"evaluation": into, "summary": summary.splitlines()}
