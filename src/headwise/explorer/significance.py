"""“Is this real?”: the effect of the gates on held-out examples, beside that of random heads of the same layers.

The examples are worked through one by one, so that a click is answered between two of them.

V variants, E examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headwise import stats
from headwise.errors import HeadwiseError
from headwise.explorer.requests import Check
from headwise.explorer.worker import Event, Job
from headwise.heads import Head, ones
from headwise.heads.controls import layer_matched_heads
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.tasks import Task, task

DRAWS = 5
"""Random sets of heads that the effect is compared with."""
HELD_OUT_SEED = 1_000_003
"""Held-out examples are drawn with a seed that no run has by default."""


def changed_heads(gates: np.ndarray) -> list[Head]:
    """The heads whose gate is not 1."""
    return [Head(int(layer), int(head)) for layer, head in np.argwhere(gates != 1)]


def control_gates(model: Model, gates: np.ndarray, seed: int | str) -> np.ndarray:
    """The same gates on as many other heads of the same layers, drawn at random."""
    heads = changed_heads(gates)
    drawn = layer_matched_heads(model.heads(), heads, seed).heads
    control = ones(model.shape)
    for head, other in zip(sorted(heads), sorted(drawn), strict=True):
        control[other] = gates[head]
    return control


def held_out(model: Model, source: str, n: int, seen: Sequence[str]) -> Task:
    """`n` examples of a task, none of which has a prompt in `seen`."""
    drawn = task(source, n + len(seen), model=model, seed=HELD_OUT_SEED)
    used = set(seen)
    fresh = [i for i, example in enumerate(drawn.examples) if example.prompt not in used][:n]
    if len(fresh) < 4:
        raise HeadwiseError(
            f"the task {source!r} has {len(fresh)} examples that were not used before; a check needs at least 4"
        )
    return drawn.take(fresh)


def check(model: Model, request: Check, examples: Task, job: Job) -> Iterator[Event]:
    """Events: `progress`, then `significance` with effect, control and difference, each with its 95 % interval."""
    gates = request.gate_array(model)
    heads = changed_heads(gates)
    if not heads:
        raise HeadwiseError("no head is changed; switch at least one off, then check its effect")
    controls = [control_gates(model, gates, f"explore/{draw}") for draw in range(DRAWS)]
    variants = np.stack([gates, *controls])  # V, L, H
    measured = metric(examples.metric)
    engine = Engine(model, examples, measured, reference=request.reference)
    effects, full = np.empty((len(variants), len(examples))), np.empty(len(examples))
    at_once = 1 if model.device.type == "cpu" else 8
    for first in range(0, len(examples), at_once):
        yield {"event": "progress", "done": first, "of": len(examples)}
        job.check()
        some = list(range(first, min(first + at_once, len(examples))))
        part = engine.measure(variants, examples=some)
        effects[:, some], full[some] = part.effects, part.full[0]
    names = {"task": examples.name, "metric": measured.name}
    yield {"event": "significance", **names, **summary(effects, full, examples)}


def summary(effects: np.ndarray, full: np.ndarray, examples: Task) -> dict[str, Any]:
    """Effect of the gates, of the controls, and their paired difference; effects `[V, E]`, the gates' first.

    An effect is the metric with all heads minus the metric under the gates: positive where what was removed helps.
    """
    mine, control = effects[0], effects[1:].mean(0)
    groups = examples.shared_groups()
    columns = np.stack([mine, control, mine - control], axis=1)  # E, 3
    lo, hi = stats.effect_interval(columns, groups=groups)
    p = stats.sign_flip(columns, groups=groups)
    named = {}
    for i, name in enumerate(("effect", "control", "difference")):
        numbers = {"mean": columns[:, i].mean(), "lo": lo[i], "hi": hi[i], "p": p[i]}
        named[name] = {key: float(value) for key, value in numbers.items()}
    return {**named, "full": float(full.mean()), "n": len(mine), "draws": len(effects) - 1}
