"""`headwise task NAME`: what a task asks, shown as its examples, with a model's tokens and accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.root import app, with_options

if TYPE_CHECKING:
    from headwise.tasks import Example, Task

ACCURACY_EXAMPLES = 50


@app.command("task")
@with_options("seed", "option", "device", "dtype", "truncate")
def task_(
    name: Annotated[str, typer.Argument(help="a built-in task, a file, or hub:owner/name")],
    show: Annotated[int, typer.Option(help="examples to print", min=0)] = 3,
    model: Annotated[str | None, typer.Option(help="show its tokens and its accuracy on 50 examples")] = None,
    **options: Any,
) -> None:
    """Show what a task asks and, with --model, how well a model does."""
    from headwise.studies.settings.resolve import assignments

    seed, assigned = options.pop("seed"), assignments(options.pop("option") or [])
    typer.echo(show_task(name, show, model, seed, assigned, options))


def show_task(
    source: str, show: int, model_name: str | None, seed: int, options: dict[str, Any], load: dict[str, Any]
) -> str:
    """The first examples of a task as text; with a model also their tokens and how many it gets right."""
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
    lines = [f"{examples.name}: metric {examples.metric}, fingerprint {examples.fingerprint}"]
    for number, example in enumerate(examples.examples[:show], 1):
        lines += ["", f"{number}. " + "\n   ".join(_described(example))]
        if model is not None:
            pieces = model.text.pieces(example.prompt)
            lines.append(f"   tokens          {'|'.join(pieces)} ({len(pieces)})")
            lines.append(f"   target tokens   {'|'.join(_target_pieces(model, example))}")
    if model is not None:
        lines += ["", _accuracy(model, examples)]
    return "\n".join(lines)


def _described(example: Example) -> list[str]:
    fields = {
        "prompt": repr(example.prompt),
        "target": repr(example.target),
        "also": ", ".join(map(repr, example.also)),
        "foils": ", ".join(map(repr, example.foils)),
        "counterfactual": repr(example.counterfactual) if example.counterfactual is not None else "",
        "label": example.label or "",
        "group": example.group or "",
    }
    return [f"{name:<15} {value}" for name, value in fields.items() if value]


def _target_pieces(model: Any, example: Example) -> list[str]:
    from headwise.model.tokens.encode import encode_rows

    (row,) = encode_rows(model.text, [example], "target")
    return [model.text.decode([token]) for token in row.tokens]


def _accuracy(model: Any, examples: Task) -> str:
    from headwise.metrics import metric
    from headwise.model.measure.engine import Engine

    right = Engine(model, examples, metric("accuracy")).full()
    chances = [1 / (1 + len(e.foils)) if e.foils else 0.0 for e in examples]
    chance = sum(chances) / len(chances)
    line = f"{model.name} gets {int(right.sum())} of {len(right)} right ({right.mean():.0%}; chance {chance:.0%})"
    if examples.metric != "accuracy":
        mean = Engine(model, examples, metric(examples.metric)).full().mean()
        line += f", mean {examples.metric} {mean:.3f}"
    return line
