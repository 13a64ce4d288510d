"""What a plan of forward rows means in minutes, from one timed pass; and options that keep a study affordable."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from headwise.display import counted
from headwise.heads import ones
from headwise.metrics import metric as metric_named
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.tasks import Task

CPU_OPTIONS: dict[str, dict[str, Any]] = {
    "integrated": {"most_steps": 40},
    "nested": {"seeds": 1, "rows": 2000},
}
"""Options of methods that rank heads for a circuit without an accelerator, where they are not given: one ranking by
`nested` then takes about three minutes on two cores with the bundled model."""
QUICK_OPTIONS: dict[str, dict[str, Any]] = {
    "integrated": {"most_steps": 20},
    "nested": {"seeds": 1, "rows": 300},
}
"""The same with `quick`."""


def usual_options(
    methods: Sequence[str], given: Mapping[str, Any], *, fast: bool, quick: bool
) -> dict[str, Any]:
    """The options that are given, and for these methods those that are not; fast: whether there is an accelerator."""
    usual = QUICK_OPTIONS if quick else {} if fast else CPU_OPTIONS
    options = {name: value for method in methods for name, value in usual.get(method, {}).items()}
    # Rows bound the updates: with one of them given, the other is left as it is.
    if {"updates", "rows"} & set(given):
        options.pop("rows", None)
    return dict(given) | {name: value for name, value in options.items() if name not in given}


_TIMED_TOKENS = {"cpu": 256, "accelerator": 32768}
"""Tokens of the timed pass, about: enough to keep the device busy."""
_LARGE = 500_000_000
"""Parameters of a model whose timed pass on a CPU is a tenth as long."""


def few_parameters(model: Model) -> bool:
    """Whether a timed pass takes seconds."""
    return model.device.type != "cpu" or sum(p.numel() for p in model.hf.parameters()) <= _LARGE


def tokens_per_second(model: Model, task: Task) -> float:
    """Tokens of forward passes per second, from one pass over a batch of the task's examples."""
    wanted = _TIMED_TOKENS["cpu" if model.device.type == "cpu" else "accelerator"]
    wanted = wanted if few_parameters(model) else wanted // 10
    few = max(1, wanted // (2 * len(model.tokens(task.examples[0].prompt))))
    engine = Engine(model, task.take(range(min(few, len(task)))), metric_named("logprob"))
    length = sum(len(row.ids) for row in engine.rows)
    variants = max(1, wanted // length)
    gates = np.stack([ones(model.shape)] * variants)
    gates *= 1 - 1e-3 * np.arange(variants)[:, None, None]  # rows that differ share nothing
    return (variants + 1) * length / seconds_of(lambda: engine.measure(gates), model.device)


def seconds_of(work: Callable[[], object], device: torch.device, enough: float = 2.0) -> float:
    """Of the fastest of five runs, or of as many as fit into `enough` seconds: a first run fills caches.

    On a CPU these are CPU seconds by threads, which other work on the machine does not lengthen.
    """
    on_cpu = device.type == "cpu"
    clock, threads = (time.process_time, torch.get_num_threads()) if on_cpu else (time.perf_counter, 1)
    runs: list[float] = []
    while len(runs) < 5 and sum(runs) < enough:
        started = clock()
        work()
        runs.append((clock() - started) / threads)
    return min(runs)


def duration(seconds: float) -> str:
    """In words.

    >>> duration(8), duration(70), duration(600), duration(9000)
    ('8 seconds', 'about 1 minute', 'about 10 minutes', 'about 2.5 hours')
    """
    if seconds < 55:
        return f"{seconds:.0f} seconds"
    minutes = max(1, round(seconds / 60))
    return f"about {minutes / 60:.1f} hours" if minutes > 90 else f"about {counted(minutes, 'minute')}"
