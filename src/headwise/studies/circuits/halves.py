"""The two halves of a task's examples, and the ablation types that suit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.context import Context
from headwise.sweeps.sweep import default_reference
from headwise.tasks import Task


@dataclass(frozen=True)
class Halves:
    """The examples of one model and task."""

    find: Task
    """The finding half: it ranks the heads and chooses among the orders."""
    test: Task
    """The held-out half: the reported curves are measured on it."""
    find_numbers: np.ndarray
    """Of the examples of `find` in the task."""
    test_numbers: np.ndarray
    references: tuple[str, ...]
    """Ablation types, in the order of the figure's rows."""
    about: dict[str, Any]
    """The settings that every order and curve depends on."""


def halves(context: Context[CircuitsSettings], model: str, task: str) -> Halves:
    s = context.settings
    examples = context.bench.task(task, context.model(model), s.n, s.seed, s.task_options)
    (find, test), numbers = examples.halves(), examples.sides()
    references = s.references or (("mean", "patch") if default_reference(examples) == "patch" else ("mean",))
    about = {"n": s.n, "seed": s.seed, "metric": s.metric or find.metric, "dtype": context.dtype(model)}
    return Halves(find, test, np.array(numbers[0]), np.array(numbers[1]), references, about)
