"""`headwise task NAME`: what a task asks, shown as its examples, with a model's tokens and accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.complete import complete
from headwise.cli.output import echo
from headwise.cli.root import LOAD, TaskName, app, with_options

if TYPE_CHECKING:
    from headwise.tasks import Example, Task

ACCURACY_EXAMPLES = 50


@app.command("task")
@with_options("seed", "option", *LOAD, "truncate")
def task_(
    name: TaskName,
    show: Annotated[
        int, typer.Option("--show", "-n", "--limit", help="number of examples to print", min=0)
    ] = 3,
    model: Annotated[
        str | None,
        typer.Option(
            help="show its tokens and its accuracy on 50 examples", autocompletion=complete("models")
        ),
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
        lines += ["", line]
    return "\n".join(lines)


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
    }
