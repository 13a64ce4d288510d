"""`headwise export`: ablate heads in the weights or cut them out, and measure the model before and after."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headwise.cli.output import echo
from headwise.cli.root import LOAD, ModelName, app, option, with_options
from headwise.display import counted
from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.heads import Order
    from headwise.model.model import Model
    from headwise.tasks import Task

log = logging.getLogger("headwise")

SAME_SIZE = (
    "The exported checkpoint has the size and the speed of the full model: the removed heads are zeros in the weights "
    "and are still computed."
)
HEADS_HELP = "heads (L12H3,L3H1), a JSON list of them, or scores (a run folder, a table) with --top or --keep"
TEXT = "cross-entropy on the text"
SPEED = "speed, forward pass (tokens/s)"
PASSES = 5


@app.command()
@with_options(*LOAD, "option")
def export(
    model: ModelName,
    out: Annotated[Path, option("the new checkpoint's folder")],
    heads: Annotated[Path | None, option(HEADS_HELP)] = None,
    top: Annotated[int | None, option("number of heads to take, in the order of --by", min=1)] = None,
    keep: Annotated[
        int | None,
        option("remove all heads but so many, the first in the order of --by; instead of --top", min=1),
    ] = None,
    task: Annotated[
        list[str] | None,
        option(
            "task of the scores in a run's scores.parquet; with --shrink and without --heads a task to rank heads "
            "on, repeat for several"
        ),
    ] = None,
    method: Annotated[
        str | None,
        option(
            "method of the scores in a run's scores.parquet; with --shrink by default nested, on a CPU attribution"
        ),
    ] = None,
    by: Annotated[
        str | None,
        option(
            "order of scores: least (smallest absolute score first), signed (most helpful first), absolute or "
            "hinders; by default least, or signed with --keep and where --gate amplifies"
        ),
    ] = None,
    gate: Annotated[float, option("0 removes the heads, above 1 amplifies them")] = 0.0,
    shrink: Annotated[
        bool, option("cut the heads out: a smaller checkpoint, as many heads in every layer", "--shrink")
    ] = False,
    share: Annotated[
        float | None, option("--shrink: share of heads to cut out; by default the largest within --tolerance")
    ] = None,
    tolerance: Annotated[
        float, option("--shrink: how much the loss may rise (nats per target token)", min=0)
    ] = 0.1,
    components: Annotated[
        str, option("--shrink: heads (as many of every group) or kv_heads (whole key/value groups)")
    ] = "heads",
    text: Annotated[
        Path | None,
        option("--shrink: a text; heads are ranked on its first half, the loss measured on its second"),
    ] = None,
    reference: Annotated[
        str | None,
        option("--shrink: mean (into a bias) or zero; by default mean where the family has the bias"),
    ] = None,
    measure: Annotated[
        str | None,
        option(
            "task on which both models are measured; none to leave it out; by default what the heads were ranked "
            "on, or ioi where that is not known"
        ),
    ] = None,
    n: Annotated[int, option("number of examples of each task and text", "-n", "--limit", min=1)] = 32,
    seed: Annotated[
        int, option("random seed of --measure; other than that of the scores, for other examples", min=0)
    ] = 1,
    **options: Any,
) -> dict[str, Any]:
    """Ablate heads in the weights, write a plain checkpoint, and print loss, accuracy, size and speed of both.

    Without --shrink the new checkpoint has the size and the speed of the full model: the heads are zeros in the
    weights. With --shrink they are cut out.
    """
    from headwise.tasks.opening import check_task

    shrink = shrink or share is not None
    if keep is not None and (top is not None or gate != 0):
        raise HeadwiseError("--keep removes all other heads; give it without --top and --gate")
    if heads is None and not (shrink and (task or text)):
        raise HeadwiseError(
            "give --heads, or with --shrink what heads are ranked on: --task NAME or --text FILE"
        )
    for name in task or [] if heads is None else []:
        check_task(name, {})
    measured: list[tuple[str, dict[str, Any]]] = []
    if measure is None:
        measured = _ranked_on(heads, task) or ([] if text else [("ioi", {})])
    elif measure != "none":
        measured = [(measure, {})]
    for name, task_options in measured:
        try:
            check_task(name, task_options)
        except HeadwiseError as error:
            hint = "" if measure else "; the heads were ranked on it: give --measure another task, or none"
            raise HeadwiseError(f"{error}{hint}") from None
    # Import torch: seconds, which a mistake should not wait for.
    from headwise.heads.heads_file import read_heads
    from headwise.model.load.export import export as bake
    from headwise.model.load.export import heads_to_cut
    from headwise.model.load.load import load
    from headwise.model.load.shrink import sizes, takes_means
    from headwise.studies.settings.resolve import assignments
    from headwise.sweeps.removal import removal
    from headwise.tasks import task as open_task

    settings = options.pop("option")
    loaded = load(model, **options)
    tasks = [open_task(name, n, model=loaded, seed=seed, **some) for name, some in measured]
    by = by or ("signed" if gate > 1 or keep or share is not None else "least")
    picked: dict[str, Any] = {
        "task": task[-1] if task else None,
        "method": method,
        "model": loaded.name,
        "by": by,
    }
    rank_on: list[Task] = []
    curve, prompts = None, None
    if shrink:
        sizes(loaded.hooks, components)  # refuses families whose heads cannot be cut out
        rank_on, held_out = _rank_on(loaded, task if heads is None else None, text, n)
        tasks += held_out
        if rank_on and reference != "zero" and takes_means(loaded.hooks):
            prompts = [one.prompt + one.target for some in rank_on for one in some]
    if heads is not None and share is None:
        chosen = read_heads(heads, keep or top, existing=loaded.heads(), **picked)
    else:
        settings_of_removal = {"reference": "mean" if prompts else "zero", "reference_task": _pooled(rank_on)}
        if heads is None:
            method_options = {**settings_of_removal, "components": components, **assignments(settings or [])}
            if method is None and loaded.device.type == "cpu":
                method = "attribution"
                log.warning(
                    "heads are ranked by attribution; --method nested loses less, and takes hours on a CPU"
                )
            order = _order(loaded, rank_on, method or "nested", method_options)
        else:
            listed = loaded.layout([components]).listed()
            order = read_heads(heads, len(listed), existing=loaded.heads(), **picked)
        if tasks:
            curve = removal(loaded, order, tasks, components, **settings_of_removal)
            echo(curve.summary(tolerance))
            share = share or curve.within(tolerance)
        if not share:
            raise HeadwiseError(
                f"no heads can be cut out within {tolerance:g} nats; give --share or a larger --tolerance"
            )
        chosen = heads_to_cut(loaded, order, share, components)
    if keep:
        loaded.check_heads(chosen)
        chosen = [head for head in loaded.heads() if head not in chosen]
    folder = bake(loaded, chosen, out, gate, shrink=shrink, reference_prompts=prompts)
    echo(
        f"{folder}: {loaded.name} with {counted(len(chosen), 'head')} {'cut out' if shrink else f'at {gate:g}'}, "
        f"{loaded.dtype_name}; logits equal the gated model's"
    )
    echo(f"{'removed' if gate == 0 else f'at {gate:g}'}: {' '.join(map(str, chosen))}")
    result: dict[str, Any] = {
        "folder": folder,
        "model": loaded.name,
        "gate": gate,
        "heads": list(map(str, chosen)),
    }
    if curve is not None:
        from headwise.charts.style import save

        save(curve.plot(), folder, "removal")
        result["removal"] = curve.table.to_dict("records")
    if tasks:
        exported = load(str(folder), **options)
        before, after = (_measured(one, tasks) for one in (loaded, exported))
        named = " and ".join(f"{len(one)} examples of {one.name}" for one in tasks)
        echo(f"on {named}, before → after, with 95 % intervals:")
        for name in [name for name in before if name != "intervals"]:
            form = _LINES[name.partition(", ")[0]]
            first, second = (_with_interval(form, one, name) for one in (before, after))
            echo(f"  {name:<38}{first} → {second}")
        slow, fast = _speeds(loaded, exported, tasks[0])
        echo(f"  {SPEED:<38}{slow:,.0f} → {fast:,.0f}")
        result["measured_on"] = [one.name for one in tasks]
        result["before"], result["after"] = {**before, SPEED: slow}, {**after, SPEED: fast}
    if not shrink:
        echo(SAME_SIZE)
    return result


def _ranked_on(heads: Path | None, names: list[str] | None) -> list[tuple[str, dict[str, Any]]]:
    """The tasks that heads are ranked on, or were in a run, with their options; none where that is not known."""
    if heads is None:
        return [(name, {}) for name in names or []]
    from headwise.heads import Scores
    from headwise.runs import read_info
    from headwise.tasks.files.mappings.questions import ABILITIES
    from headwise.tasks.registry import families

    if heads.suffix == ".npz":
        name = Scores.load(heads).task
        return [(name, {})] if name in families() else []
    run = heads.parent.parent if heads.suffix == ".parquet" else heads
    if not os.path.isfile(run / "run.json"):  # names of many heads are too long for a path
        return []
    settings = read_info(run)["settings"]
    sources = [*(settings.get("tasks") or ()), *filter(None, [settings.get("data")])] or ["abilities"]
    label, options = names[-1] if names else None, settings.get("task_options") or {}
    sources = [one for one in sources if label in (one, Path(one).stem)] or sources
    if len(sources) > 1:
        return []
    ability = {"ability": label} if sources == ["abilities"] and label in ABILITIES else {}
    return [(sources[0], {**options.get(sources[0], options), **ability})]


def _rank_on(
    model: Model, names: list[str] | None, text: Path | None, n: int
) -> tuple[list[Task], list[Task]]:
    """What heads are ranked on, and the second half of the text, on which the loss is measured."""
    from headwise.sparsify.data import read_text
    from headwise.tasks import task as open_task
    from headwise.tasks.plain_text import passages, text_halves

    tasks = [open_task(name, n, model=model, seed=0) for name in names or []]
    if text is None:
        return tasks, []
    first, second = (passages(half, n, text.name) for half in text_halves(read_text(text)))
    return [*tasks, first], [second]


def _order(model: Model, tasks: list[Task], method: str, options: dict[str, Any]) -> Order:
    """The heads by their scores on all tasks, most important first."""
    from headwise.scores import score
    from headwise.scores.registry import method as method_named
    from headwise.sweeps.removal import mean_order

    if not method_named(method).components:  # then places of a group's heads are added up
        options.pop("components")
    return mean_order([score(model, task, method, **options) for task in tasks])


def _pooled(tasks: list[Task]) -> Task | None:
    """All their examples, over which the mean outputs are taken."""
    from headwise.tasks import Task

    return Task("all", tuple(one for task in tasks for one in task)) if tasks else None


LOSS, KV = "cross-entropy (nats per target token)", "KV cache (bytes per token)"
_LINES = {
    LOSS: "{:.3f}",
    "accuracy": "{:.1%}",
    TEXT: "{:.3f}",
    "parameters": "{:,}",
    "size of the weights (MB)": "{:,.1f}",
    KV: "{:,.0f}",
}
"""What is printed of both models, and how its number is written."""


def _measured(model: Model, tasks: list[Task]) -> dict[str, Any]:
    """Loss and accuracy with all heads, and the size of the model, by the names of `_LINES`; `intervals` by name.

    Of several tasks, the name of the task is behind the line's: "accuracy, syntax".
    """
    from headwise import stats
    from headwise.metrics import metric
    from headwise.model.measure.engine import Engine

    numbers: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    several = sum(task.metric != "mean_logprob" for task in tasks) > 1
    for task in tasks:
        plain = task.metric == "mean_logprob"
        lines = (
            {TEXT: ("mean_logprob", -1)}
            if plain
            else {LOSS: ("mean_logprob", -1), "accuracy": ("accuracy", 1)}
        )
        for line, (name, sign) in lines.items():
            line += f", {task.name}" * (several and not plain)
            values = sign * Engine(model, task, metric(name)).full()
            numbers[line] = float(values.mean())
            intervals[line] = [
                float(end) for end in stats.metric_interval(values, groups=task.shared_groups())
            ]
    weights = list(model.hf.parameters())  # tied weights once
    sizes = (sum(p.numel() for p in weights), sum(p.nbytes for p in weights) / 1e6, _cache_bytes(model))
    return {**numbers, **dict(zip(list(_LINES)[-3:], sizes, strict=True)), "intervals": intervals}


def _cache_bytes(model: Model) -> float:
    """Bytes of keys and values for each further token."""
    import torch

    ids = torch.zeros(1, 8, dtype=torch.long, device=model.device)
    with torch.inference_mode():
        cache = model.hf(input_ids=ids, use_cache=True).past_key_values
    layers = getattr(cache, "layers", ())
    stored = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    return sum(part.nbytes for part in stored if part is not None) / ids.numel()


def _with_interval(form: str, measured: dict[str, Any], name: str) -> str:
    """A number and, where it has one, its interval."""
    ends = [form.format(end) for end in measured["intervals"].get(name, ())]
    return form.format(measured[name]) + (f" [{', '.join(ends)}]" if ends else "")


def _speeds(before: Model, after: Model, task: Task) -> list[float]:
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
