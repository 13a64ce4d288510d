"""The examples of a study that finds something on one half of them and tests it on the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.studies.context import Context
from headwise.tasks import Task


@dataclass(frozen=True)
class Halves:
    """The examples of one model and task."""

    whole: Task
    find: Task
    """The finding half: it ranks heads or edges, and chooses among orders."""
    test: Task
    """The held-out half: what is reported is measured on it."""
    find_numbers: np.ndarray
    """Of the examples of `find` in the task."""
    test_numbers: np.ndarray
    about: dict[str, Any]
    """The settings that every cell depends on."""


def halves(context: Context[Any], model: str, task: str, split: int = 0) -> Halves:
    """For studies with the settings n, seed, metric and task_options; `split` 1, 2, …: other halves."""
    s = context.settings
    whole = context.bench.task(task, context.model(model), s.n, s.seed, s.task_options)
    if split:
        whole = whole.take(np.random.default_rng([s.seed, split]).permutation(len(whole)).tolist())
    about = {"n": s.n, "seed": s.seed, "metric": s.metric or whole.metric, "dtype": context.dtype(model)}
    (find, test), numbers = whole.halves(), whole.sides()
    return Halves(whole, find, test, np.array(numbers[0]), np.array(numbers[1]), about)
