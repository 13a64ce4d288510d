"""What a run will cost, said before it starts: forward rows, tokens and, from one timed pass, minutes.

A backward pass counts as two forward passes. Prefix sharing is counted as half the work of a row.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from headwise.display import counted
from headwise.heads import ones
from headwise.metrics import metric as metric_named
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.scores.integrated import FIRST_STEPS
from headwise.scores.registry import method, own_options
from headwise.studies.circuits.references import references
from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.context import Context
from headwise.studies.halves import Halves, halves
from headwise.tasks import Task

BACKWARD = 3
"""A forward and a backward pass, in forward passes."""
SHARED = 0.5
"""What a row costs whose first blocks are shared with others, in forward rows."""
_TIMED_TOKENS = {"cpu": 256, "accelerator": 32768}
"""Tokens of the timed pass, about: enough to keep the device busy."""


def announcement(context: Context[CircuitsSettings]) -> str:
    """What is to be computed, for the log."""
    s, rows, tokens, seconds = context.settings, 0.0, 0.0, 0.0
    rates = {model: tokens_per_second(context, model, task) for model, task in dict(s.curves()[::-1]).items()}
    for model, task in s.curves():
        half = context.once(halves, model, task)
        length = float(np.mean([len(context.model(model).tokens(e.prompt)) for e in half.find]))
        asked = context.once(references, model, task)
        cost = sum(_rows(s, context.model(model), half, reference) for reference in asked)
        rows, tokens = rows + cost, tokens + cost * length
        seconds += cost * length / rates[model]
    types, pairs = max(len(context.once(references, *one)) for one in s.curves()), len(s.curves())
    return (
        f"circuits: {counted(pairs, 'pair')} of model and task, {counted(types, 'ablation type')}, "
        f"heads ranked by {', '.join(s.orders)}; about {rows:,.0f} forward rows, {tokens:,.0f} tokens, "
        f"{_duration(seconds)} on this device"
    )


def _rows(s: CircuitsSettings, model: Model, half: Halves, reference: str) -> float:
    """Forward rows for one model, task and ablation type."""
    again = sum(method(name).learned for name in s.orders) * (s.refits or 0)
    ranking = sum(
        (1 + method(name).learned * (s.refits or 0))
        * order_rows(name, s.method_options, model, half.find, reference)
        for name in s.orders
    )
    curves = len(s.orders) * len(s.by) * s.curve_rows * (len(half.find) + len(half.test))
    curves += again * len(s.by) * s.curve_rows * len(half.test)
    return ranking + SHARED * (curves + s.control_rows * len(half.test))


def order_rows(name: str, options: Any, model: Model, task: Task, reference: str) -> float:
    """Forward rows that a method takes to rank all heads, roughly; a backward pass where nothing is known of it."""
    given = {**method(name).options, **own_options(name, options)}
    if name == "integrated":
        most = given["steps"] or (FIRST_STEPS if reference == "patch" else 2 * given["most_steps"])
        return float(BACKWARD * most * len(task))
    if name in ("ablation", "keep"):
        return SHARED * len(model.heads()) * len(task)
    if name == "nested":
        rows = given["rows"] or given["updates"] * given["examples"] * given["masks"]
        return float(BACKWARD * given["seeds"] * rows)
    return float(BACKWARD * len(task))


def tokens_per_second(context: Context[CircuitsSettings], model: str, task: str) -> float:
    """Tokens of forward passes per second, from one pass over a batch of the task's examples."""
    loaded, found = context.model(model), context.once(halves, model, task).find
    wanted = _TIMED_TOKENS["cpu" if loaded.device.type == "cpu" else "accelerator"]
    few = max(1, wanted // (2 * len(loaded.tokens(found.examples[0].prompt))))
    examples = found.take(range(min(few, len(found))))
    engine = Engine(loaded, examples, metric_named(context.settings.metric or found.metric))
    length = sum(len(row.ids) for row in engine.rows)
    variants = max(1, wanted // length)
    gates = np.stack([ones(loaded.shape)] * variants)
    gates *= 1 - 1e-3 * np.arange(variants)[:, None, None]  # rows that differ share nothing
    started = 0.0
    for _ in range(2):  # the first pass compiles and fills caches
        started = time.perf_counter()
        engine.measure(gates)
    return (variants + 1) * length / (time.perf_counter() - started)


def _duration(seconds: float) -> str:
    """
    >>> _duration(40), _duration(70), _duration(600)
    ('under a minute', 'about 1 minute', 'about 10 minutes')
    """
    minutes = round(seconds / 60)
    return "under a minute" if seconds < 60 else f"about {minutes} minute{'s' if minutes > 1 else ''}"
