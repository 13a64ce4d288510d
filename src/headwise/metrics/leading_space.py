"""A hint for answers that lack their leading space: after "The capital of France is", " Paris" and not "Paris"."""

from __future__ import annotations

import logging
from dataclasses import replace

from headwise.errors import HeadwiseError, hint, warn_once
from headwise.metrics.logits import metric
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.tasks.examples import Example, Task

log = logging.getLogger("headwise")

EXAMPLES = 16
"""Examples that are measured with and without the space, at most."""
LEAST_ACCURACY, LEAST_LOGPROB = 0.25, 2.0
"""The space is clearly better if the accuracy rises by so much, or, where it does not fall, log p by so many nats."""

_checked: dict[tuple[str, str], str | None] = {}
"""What was found for the model and the data of a task: they are measured once."""


def note_leading_space(model: Model, task: Task) -> None:
    """Log a hint, once per model and data, where a space before the answers makes them clearly more likely.

    Only a user's own data are measured, and only where answers follow a word directly.
    """
    if "mapping" not in task.settings or not model.has_text:
        return
    key = model.name, task.settings.get("source") or task.fingerprint
    lacking = [example for example in task if _lacks_space(example)][:EXAMPLES]
    if not lacking:
        return
    if key not in _checked:
        _checked[key] = leading_space_notice(model, lacking)
    if notice := _checked[key]:
        warn_once(log, f"{task.name}: {notice}. Write the space into the data{_columns_hint(task)}")


def leading_space_notice(model: Model, examples: list[Example]) -> str | None:
    """What a space before the answers of these examples changes; None where it is not clearly better."""
    try:
        both = Task("with and without a space", (*examples, *map(_spaced, examples)))
        accuracy, logprob = (
            Engine(model, both, metric(name)).full().reshape(2, -1).mean(1)
            for name in ("accuracy", "logprob")
        )
    except HeadwiseError:
        return None  # what is wrong with an example is said when it is measured
    gain, more_likely = accuracy[1] - accuracy[0], logprob[1] - logprob[0]
    if more_likely <= 0 or (gain < LEAST_ACCURACY and not (gain >= 0 and more_likely >= LEAST_LOGPROB)):
        return None
    target = examples[0].target
    return (
        f"the answers have no leading space, and {model.name} expects one: with {' ' + target!r} instead of {target!r} "
        f"the accuracy is {accuracy[1]:.0%} instead of {accuracy[0]:.0%} (mean log p {logprob[1]:.1f} instead of "
        f"{logprob[0]:.1f}; {len(examples)} examples)"
    )


def _columns_hint(task: Task) -> str:
    """How the space is put in where a file is read; nothing for data that are read in another way than by fields."""
    columns = task.settings.get("columns", {})
    fields = ["target", *(["foils"] if any(example.foils for example in task) else [])]
    sources = {field: columns.get(field, field) for field in fields}
    if task.settings["mapping"] != "fields" or not all(
        isinstance(source, str) for source in sources.values()
    ):
        return ""
    spaced = {field: f" {s}" if "{" in s else f" {{{s}}}" for field, s in sources.items()}
    return f", or give {hint('columns', spaced)}"


def _lacks_space(example: Example) -> bool:
    """Whether a word follows a prompt that ends without a space; the rest of a number is meant as it is."""
    before, after = example.prompt[-1:], example.target[:1]
    return bool(before) and not before.isspace() and after.isalnum() and not (before + after).isdigit()


def _spaced(example: Example) -> Example:
    def spaced(text: str) -> str:
        return text if text[:1].isspace() else f" {text}"

    foils, also = tuple(map(spaced, example.foils)), tuple(map(spaced, example.also))
    return replace(example, target=spaced(example.target), foils=foils, also=also, counterfactual=None)
