"""The examples of a study, sorted by ability."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headwise.errors import HeadwiseError, unknown
from headwise.model.model import Model
from headwise.runs import Job, step
from headwise.scores.probe import check_labels
from headwise.scores.registry import method as method_named
from headwise.scores.registry import own_options, row_numbers
from headwise.studies.steps import Scored
from headwise.studies.workbench import Workbench
from headwise.tasks import Example, Task, families, task
from headwise.tasks.files.mappings.questions import ABILITIES
from headwise.tasks.opening import check_options
from headwise.tasks.registry import available

PER_ABILITY = 40
"""Examples of each ability of a built-in task, unless said otherwise."""
_LABEL_EXAMPLES = 64
"""Examples drawn to see which labels a built-in task has."""


def abilities_of(settings: Any, bench: Workbench, model: Model) -> dict[str, Task]:
    """A task per ability, all examples labelled: the known abilities in their order, then others as they appear.

    Examples without a label are one ability, named like their task or file.

    Reads `tasks`, `data`, `task_options`, `limit`, `abilities`, `n` and `seed` of the settings.
    """
    tasks: dict[str, Task] = {}
    for source in _source_tasks(settings, bench, model):
        by_label: dict[str, list[Example]] = {}
        for example in source:
            label = example.label if example.label is not None else source.name
            by_label.setdefault(label, []).append(replace(example, label=label))
        for label, examples in by_label.items():
            if label in tasks:
                raise HeadwiseError(f"the ability {label!r} is in two of the given tasks; give one of them")
            chosen = _some(examples, settings.n, f"{label}/{settings.seed}")
            tasks[label] = Task(label, tuple(chosen), source.metric, source.settings)
    for label in settings.abilities:
        if label not in tasks:
            raise unknown("ability", label, tasks)
    in_order = [
        *(ability for ability in ABILITIES if ability in tasks),
        *(a for a in tasks if a not in ABILITIES),
    ]
    return {label: tasks[label] for label in in_order if label in (settings.abilities or tasks)}


def together(tasks: Iterable[Task], name: str = "abilities") -> Task:
    """All tasks as one, one after the other."""
    tasks = list(tasks)
    return Task(
        name,
        tuple(example for task in tasks for example in task),
        tasks[0].metric,
        numbers=tuple(number for task in tasks for number in task.numbers),
    )


def check_labels_of(methods: Sequence[str], tasks: dict[str, Task], named: str) -> None:
    """Refuse too few abilities, or too few examples of one, where one of the methods tells them apart."""
    if any(method_named(name).per_label for name in methods):
        labels = [label for label, task in tasks.items() for _ in task]
        check_labels(labels, named, together(tasks.values()).groups())


@step(
    # Mappings are told apart by their content, and the order of the examples matters too.
    version=lambda method, tasks, **_: [method_named(method).version, *tasks],
    cost=lambda tasks, **_: sum(map(len, tasks.values())),
    label="{method} of all abilities with {model.name}",
)
def score_labels(
    job: Job,
    model: Model,
    tasks: dict[str, Task],
    method: str,
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Scored]:
    """The map of each ability by a method that tells them apart, from one run over the examples of all."""
    every, per_label = together(tasks.values()), method_named(method).per_label
    assert per_label is not None, f"{method} maps one task at a time"
    maps = per_label(model, every, seed=seed, advance=job.advance, **own_options(method, options or {}))
    found = {}
    for label in tasks:
        scores = replace(maps[label], numbers=row_numbers(every, maps[label].details))
        found[label] = Scored(scores, scores.table(seed))
    return found


def sources(settings: Any, default: str = "abilities") -> tuple[str, ...]:
    """The names of the tasks and of the file that examples are taken from; a built-in task by default."""
    return (*settings.tasks, *((settings.data,) if settings.data is not None else ())) or (default,)


def check_limit(settings: Any) -> None:
    """Refuse a limit on a file where none is given."""
    if settings.limit is not None and set(sources(settings)) <= set(families()):
        raise HeadwiseError(
            "limit cuts a file, and none is given; for built-in tasks give n, examples per ability"
        )


def _source_tasks(settings: Any, bench: Workbench, model: Model) -> list[Task]:
    names, built_in = sources(settings), families()
    check_options(settings.task_options)
    return [
        _built_in(settings, bench, model, name)
        if name in built_in
        else task(name, settings.limit, model=model, seed=settings.seed, **settings.task_options)
        for name in names
    ]


def _built_in(settings: Any, bench: Workbench, model: Model, name: str) -> Task:
    """As many examples of each label; a built-in list deals its labels out evenly, so a few show them all."""
    options = settings.task_options
    fitting = available(name, tokens=model.tokens, **options)
    most = sys.maxsize if fitting is None else max(1, fitting - options.get("shots", 0))
    first = bench.task(name, model, min(_LABEL_EXAMPLES, most), settings.seed, options)
    n = (settings.n or PER_ABILITY) * len({example.label for example in first})
    return bench.task(name, model, min(n, most), settings.seed, options)


def _some(examples: list[Example], n: int | None, seed: str) -> list[Example]:
    """At most n of them, drawn with the seed, in their order."""
    if n is None or n >= len(examples):
        return examples
    drawn = random.Random(f"abilities/{seed}").sample(range(len(examples)), n)
    return [examples[i] for i in sorted(drawn)]
