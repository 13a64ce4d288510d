"""Commands that look at one thing: `check` at a model, `task` at what a task asks, `card` at a head."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headwise.cli.output import echo
from headwise.cli.root import (
    LOAD,
    Limit,
    MetricName,
    ModelName,
    ReferenceName,
    TaskName,
    app,
    argument,
    option,
    with_options,
)
from headwise.cli.run import FIGURES, check_figure, model_and_task, number_range
from headwise.registry import without_collection

if TYPE_CHECKING:
    from headwise.tasks import Example, Task


@app.command()
@with_options(*LOAD)
def check(model: ModelName, **options: Any) -> dict[str, Any]:
    """Verify that every head of a model can be ablated exactly."""
    with without_collection():
        from headwise.model.load.load import load

    started = time.perf_counter()
    loaded = load(model, check_every_layer=True, **options)
    layers, heads = loaded.shape
    sites, proof, shares = loaded.hooks.sites, loaded.proof, loaded.capabilities.share_rows
    exactly = "exactly" if proof.noise == 0 else f"within the device's own noise of {proof.noise:.1e}"
    kv_heads, head_size = number_range([s.kv_heads for s in sites]), number_range([s.head_dim for s in sites])
    lines = [
        f"{loaded.name}: {layers} layers × {heads} heads, {kv_heads} key/value heads, head size {head_size}, "
        f"{loaded.dtype_name} on {loaded.device}",
        f"  heads accessed by   {proof.mechanism}",
        f"  all gates at 1      the plain model's logits, {exactly}",
        f"  one gate at 0       zeroed columns of the output projection, largest difference {proof.largest_gap:.1e} "
        f"({proof.sites_checked} of {len(sites)} layers)",
        f"  attention layers    {len(sites)} of {len(sites)} run through the hooks",
        f"  prefix sharing      {'yes' if shares else 'no: blocks exchange more than the residual stream'}",
        f"  seconds             {time.perf_counter() - started:.1f} (verification {proof.seconds:.1f})",
    ]
    if loaded.capabilities.norm_after_heads:
        lines.insert(
            -1, "  norm after heads    yes: for `gating` and `integrated` use mean or patch ablation"
        )
    if layers > len(sites):
        lines.insert(1, f"  {layers - len(sites)} layers have no attention, and so no heads")
    echo("\n".join(lines))
    return {
        "model": loaded.name,
        "layers": layers,
        "heads": heads,
        "layers_with_attention": len(sites),
        "kv_heads": [site.kv_heads for site in sites],
        "head_size": [site.head_dim for site in sites],
        "dtype": loaded.dtype_name,
        "device": str(loaded.device),
        "mechanism": proof.mechanism,
        "noise": proof.noise,
        "largest_gap": proof.largest_gap,
        "layers_checked": proof.sites_checked,
        "prefix_sharing": bool(shares),
        "norm_after_heads": loaded.capabilities.norm_after_heads,
        "seconds": time.perf_counter() - started,
    }


ACCURACY_EXAMPLES = 50


@app.command("task")
@with_options("seed", "option", *LOAD, "truncate")
def task_(
    name: TaskName,
    show: Annotated[int, option("number of examples to print", "--show", "-n", "--limit", min=0)] = 3,
    model: Annotated[
        str | None, option("show its tokens and its accuracy on 50 examples", names="models")
    ] = None,
    **options: Any,
) -> dict[str, Any]:
    """Show what a task asks and, with --model, how well a model does."""
    from headwise.studies.settings.resolve import assignments

    seed, assigned = options.pop("seed") or 0, assignments(options.pop("option") or [])
    facts = task_facts(name, show, model, seed, assigned, options)
    echo(as_text(facts))
    return facts


def task_facts(
    source: str, show: int, model_name: str | None, seed: int, options: dict[str, Any], load: dict[str, Any]
) -> dict[str, Any]:
    """The first examples of a task; with a model also their tokens and how many it gets right."""
    from headwise.tasks import task
    from headwise.tasks.opening import check_task

    options = {**options.pop("task_options", {}), **options}  # as `score` and `run` call them
    check_task(source, options)
    model: Any = None
    if model_name is not None:
        from headwise.model.load.load import load as load_model

        model = load_model(model_name, **load)
    size = max(show, ACCURACY_EXAMPLES if model else 1)
    examples = task(source, size, model=model, seed=seed, **options)
    if model is not None:
        from headwise.metrics.leading_space import note_leading_space

        note_leading_space(model, examples)
    shown = [_facts(example, model) for example in examples.examples[:show]]
    facts = {"task": examples.name, "metric": examples.metric, "fingerprint": examples.fingerprint}
    return facts | {"examples": shown} | ({} if model is None else _accuracy(model, examples))


def as_text(facts: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"{facts['task']}: metric {facts['metric']}, fingerprint {facts['fingerprint']}"]
    for number, example in enumerate(facts["examples"], 1):
        lines += ["", f"{number}. " + "\n   ".join(_described(example))]
    if "model" in facts:
        right, of = facts["right"], facts["of"]
        line = f"{facts['model']} gets {right} of {of} right ({right / of:.0%}; chance {facts['chance']:.0%})"
        if facts["metric"] != "accuracy":
            line += f", mean {facts['metric']} {facts['mean']:.3f}"
        wrong = [f"  wrong: {_short(one['prompt'])} → {one['target']!r}" for one in facts["wrong"]]
        lines += ["", line, *wrong]
    return "\n".join(lines)


def _short(prompt: str, most: int = 100) -> str:
    """The end of a prompt, which the answer follows.

    >>> _short("a long prompt", 8)
    "'… prompt'"
    """
    return repr(prompt if len(prompt) <= most else "…" + prompt[1 - most :])


def _facts(example: Example, model: Any) -> dict[str, Any]:
    names = ("prompt", "target", "also", "foils", "counterfactual", "label", "group", "family")
    facts = {name: value for name in names if (value := getattr(example, name)) not in (None, "", (), [], {})}
    if model is not None:
        facts["tokens"] = model.text.pieces(example.prompt)
        facts["target_tokens"] = _target_pieces(model, example)
    return facts


def _described(facts: dict[str, Any]) -> Iterator[str]:
    for name, value in facts.items():
        if name == "tokens":
            text = f"{'|'.join(value)} ({len(value)})"
        elif name == "target_tokens":
            text = "|".join(value)
        elif name in ("label", "group"):
            text = value
        elif name == "family":
            text = ", ".join(f"{facet}: {level}" for facet, level in value.items())
        else:
            text = repr(value) if isinstance(value, str) else ", ".join(map(repr, value))
        yield f"{name.replace('_', ' '):<15} {text}"


def _target_pieces(model: Any, example: Example) -> list[str]:
    from headwise.model.tokens.encode import encode_rows

    (row,) = encode_rows(model.text, [example], "target")
    return model.text.readable(row.tokens)


def _accuracy(model: Any, examples: Task) -> dict[str, Any]:
    from headwise.metrics import metric
    from headwise.model.measure.engine import Engine

    right = Engine(model, examples, metric("accuracy")).full()
    chances = [1 / (1 + len(e.foils)) if e.foils else 0.0 for e in examples]
    mean = right if examples.metric == "accuracy" else Engine(model, examples, metric(examples.metric)).full()
    return {
        "model": model.name,
        "right": int(right.sum()),
        "of": len(right),
        "chance": sum(chances) / len(chances),
        "mean": float(mean.mean()),
        "wrong": [_facts(example, None) for example, hit in zip(examples, right, strict=True) if not hit],
    }


@app.command()
@with_options("seed", "option", *LOAD, "batch_tokens", "truncate")
def card(
    model: ModelName,
    task: TaskName,
    head: Annotated[str, argument("HEAD", "the head, such as L23H3")],
    run: Annotated[Path | None, option("a run folder whose scores of the head are shown")] = None,
    n: Limit = 32,
    examples: Annotated[int, option("examples in each list", min=1)] = 3,
    metric: MetricName = None,
    reference: ReferenceName = "mean",
    plot: Annotated[
        Path | None, option("also write the card into this file (HTML page, PNG, SVG, PDF)")
    ] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Show what one head does: attention, tokens it promotes and suppresses, patterns, scores, examples."""
    from headwise.heads import Head

    chosen = Head.parse(head)
    if plot is not None:
        check_figure(plot, (".html", *FIGURES))
    loaded, opened, settings = model_and_task(model, task, n, flags)
    from headwise.cards import card as make_card

    settings |= {"metric": metric, "reference": reference}
    result = make_card(loaded, chosen, opened, run=run, examples=examples, **settings)
    echo(repr(result))
    if plot is not None and plot.suffix.lower() == ".html":
        from headwise.report import write_head_page

        write_head_page(plot, result.title, result.lead, result.tables, result.notes)
        echo(f"written to {plot}: open it in a browser", err=True)
    elif plot is not None:
        from headwise.files import explain_disk_errors

        with explain_disk_errors(plot):
            result.plot().savefig(plot, dpi=150, bbox_inches="tight")
        echo(f"drawn into {plot}", err=True)
    tables = {name: table.to_dict("records") for name, table in result.tables.items()}
    names = {
        "model": result.model,
        "task": result.task,
        "head": str(result.head),
        "n": result.n,
        "metric": result.metric,
        "reference": result.reference,
    }
    return {**names, **tables, "notes": list(result.notes)}
