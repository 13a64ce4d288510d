"""`headwise export`: ablate heads in the weights, and measure the model before and after."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.output import echo
from headwise.cli.root import LOAD, ModelName, app, with_options
from headwise.display import counted
from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.model.model import Model

SAME_SIZE = (
    "The exported checkpoint has the size and the speed of the full model: the removed heads are zeros in the weights "
    "and are still computed."
)
HEADS_HELP = "heads (L12H3,L3H1), a JSON list of them, or scores (a run folder, a table) with --top or --keep"
SPEED = "speed, forward pass (tokens/s)"
PASSES = 5


@app.command()
@with_options(*LOAD)
def export(
    model: ModelName,
    heads: Annotated[
        Path,
        typer.Option(help=HEADS_HELP),
    ],
    out: Annotated[Path, typer.Option(help="the new checkpoint's folder")],
    top: Annotated[
        int | None, typer.Option(help="number of heads to take, in the order of --by", min=1)
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            help="remove all heads but so many, the first in the order of --by; instead of --top", min=1
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="task of the scores in a run's scores.parquet")] = None,
    method: Annotated[str | None, typer.Option(help="method of the scores in a run's scores.parquet")] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="order of scores: least (smallest absolute score first), signed (most helpful first), absolute or "
            "hinders; by default least, or signed with --keep and where --gate amplifies"
        ),
    ] = None,
    gate: Annotated[float, typer.Option(help="0 removes the heads, above 1 amplifies them")] = 0.0,
    measure: Annotated[
        str, typer.Option(help="task on which both models are measured; none to leave it out")
    ] = "ioi",
    n: Annotated[int, typer.Option("-n", "--limit", help="number of examples of --measure", min=1)] = 32,
    seed: Annotated[
        int,
        typer.Option(
            help="random seed of --measure; other than that of the scores, for other examples", min=0
        ),
    ] = 1,
    **options: Any,
) -> dict[str, Any]:
    """Ablate heads in the weights, write a plain checkpoint, and print loss, accuracy, size and speed of both.

    The new checkpoint has the size and the speed of the full model: the heads are zeros in the weights.
    """
    from headwise.tasks.opening import check_task

    if keep is not None and (top is not None or gate != 0):
        raise HeadwiseError("--keep removes all other heads; give it without --top and --gate")
    if measure != "none":
        check_task(measure, {})
    # Import torch: seconds, which a mistake should not wait for.
    from headwise.heads.heads_file import read_heads
    from headwise.model.load.export import export as bake
    from headwise.model.load.load import load
    from headwise.tasks import task as open_task

    loaded = load(model, **options)
    examples = None if measure == "none" else open_task(measure, n, model=loaded, seed=seed)
    by = by or ("signed" if gate > 1 or keep else "least")
    chosen = read_heads(
        heads, keep or top, task=task, method=method, model=loaded.name, existing=loaded.heads(), by=by
    )
    if keep:
        loaded.check_heads(chosen)
        chosen = [head for head in loaded.heads() if head not in chosen]
    folder = bake(loaded, chosen, out, gate)
    echo(
        f"{folder}: {loaded.name} with {counted(len(chosen), 'head')} at {gate:g}, "
        f"{loaded.dtype_name}; logits equal the gated model's"
    )
    echo(f"{'removed' if gate == 0 else f'at {gate:g}'}: {' '.join(map(str, chosen))}")
    result: dict[str, Any] = {
        "folder": folder,
        "model": loaded.name,
        "gate": gate,
        "heads": list(map(str, chosen)),
    }
    if examples is not None:
        exported = load(str(folder), **options)
        before, after = (_measured(one, examples) for one in (loaded, exported))
        echo(f"on {len(examples)} examples of {examples.name}, before → after, with 95 % intervals:")
        for name, form in _LINES.items():
            first, second = (_with_interval(form, one, name) for one in (before, after))
            echo(f"  {name:<38}{first} → {second}")
        slow, fast = _speeds(loaded, exported, examples)
        echo(f"  {SPEED:<38}{slow:,.0f} → {fast:,.0f}")
        result["before"], result["after"] = {**before, SPEED: slow}, {**after, SPEED: fast}
    echo(SAME_SIZE)
    return result


_LINES = {
    "cross-entropy (nats per target token)": "{:.3f}",
    "accuracy": "{:.1%}",
    "parameters": "{:,}",
    "size of the weights (MB)": "{:,.1f}",
}
"""What is printed of both models, and how its number is written."""


def _measured(model: Model, task: Any) -> dict[str, Any]:
    """Loss and accuracy with all heads, and the size of the model, by the names of `_LINES`; `intervals` by name."""
    from headwise import stats
    from headwise.metrics import metric
    from headwise.model.measure.engine import Engine

    groups = task.shared_groups()
    loss, accuracy = (
        sign * Engine(model, task, metric(name)).full()
        for name, sign in (("mean_logprob", -1), ("accuracy", 1))
    )
    weights = list(model.hf.parameters())  # tied weights once
    sizes = (sum(p.numel() for p in weights), sum(p.nbytes for p in weights) / 1e6)
    numbers = (float(loss.mean()), float(accuracy.mean()), *sizes)
    intervals = [
        [float(end) for end in stats.metric_interval(values, groups=groups)] for values in (loss, accuracy)
    ]
    return {
        **dict(zip(_LINES, numbers, strict=True)),
        "intervals": dict(zip(_LINES, intervals, strict=False)),
    }


def _with_interval(form: str, measured: dict[str, Any], name: str) -> str:
    """A number and, where it has one, its interval."""
    ends = [form.format(end) for end in measured["intervals"].get(name, ())]
    return form.format(measured[name]) + (f" [{', '.join(ends)}]" if ends else "")


def _speeds(before: Model, after: Model, task: Any) -> list[float]:
    """Tokens per second of a plain forward pass of both models, in turns; the median of several passes."""
    import time
    from statistics import median

    import torch

    ids = torch.tensor([(before.tokens(task.examples[0].prompt) * 128)[:128]])
    seconds: dict[int, list[float]] = {0: [], 1: []}
    with torch.inference_mode():
        for turn in range(2 + 2 * PASSES):  # the first pass of each warms up
            model = (before, after)[turn % 2]
            start = time.perf_counter()
            logits = model.hf(input_ids=ids.to(model.device), use_cache=False).logits
            logits.sum().item()  # wait for the device
            seconds[turn % 2].append(time.perf_counter() - start)
    return [ids.numel() / median(seconds[which][1:]) for which in (0, 1)]
