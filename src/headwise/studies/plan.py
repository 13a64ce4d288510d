"""How fast this device is, from one timed pass: what a plan of forward rows means in minutes."""

from __future__ import annotations

import time

import numpy as np

from headwise.heads import ones
from headwise.metrics import metric as metric_named
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.tasks import Task

_TIMED_TOKENS = {"cpu": 256, "accelerator": 32768}
"""Tokens of the timed pass, about: enough to keep the device busy."""


def tokens_per_second(model: Model, task: Task, metric: str | None) -> float:
    """Tokens of forward passes per second, from one pass over a batch of the task's examples."""
    wanted = _TIMED_TOKENS["cpu" if model.device.type == "cpu" else "accelerator"]
    few = max(1, wanted // (2 * len(model.tokens(task.examples[0].prompt))))
    engine = Engine(model, task.take(range(min(few, len(task)))), metric_named(metric or task.metric))
    length = sum(len(row.ids) for row in engine.rows)
    variants = max(1, wanted // length)
    gates = np.stack([ones(model.shape)] * variants)
    gates *= 1 - 1e-3 * np.arange(variants)[:, None, None]  # rows that differ share nothing
    started = 0.0
    for _ in range(2):  # the first pass compiles and fills caches
        started = time.perf_counter()
        engine.measure(gates)
    return (variants + 1) * length / (time.perf_counter() - started)


def duration(seconds: float) -> str:
    """In words.

    >>> duration(40), duration(70), duration(600)
    ('under a minute', 'about 1 minute', 'about 10 minutes')
    """
    minutes = round(seconds / 60)
    return "under a minute" if seconds < 60 else f"about {minutes} minute{'s' if minutes > 1 else ''}"
