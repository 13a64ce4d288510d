"""`hw.edges`: scores of direct edges between components; what an edge method is, and the methods known by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from headwise.errors import HeadwiseError, unknown, warn_once
from headwise.heads import COMPONENTS, Head, head_list
from headwise.heads.components import kinds_of
from headwise.heads.edges import (
    LOGITS,
    MOST_RESAMPLED,
    SLOTS,
    Edge,
    Edges,
    Receiver,
    inputs_of,
    one_or_several,
)
from headwise.metrics import metric as metric_named
from headwise.metrics.leading_space import note_leading_space
from headwise.model.edges.contributions import THE_INPUT, writing_order
from headwise.model.edges.parts import Parts, take_apart
from headwise.model.measure.engine import Engine
from headwise.model.measure.positions import chosen_spans, position_masks
from headwise.model.measure.references import check_stored
from headwise.model.measure.rows import Block, MeasureSettings
from headwise.model.model import Model
from headwise.progress import Progress, reporting
from headwise.registry import Registry
from headwise.scores.registry import Registered, Setup, note_too_few
from headwise.settings import several
from headwise.tasks.examples import Task
from headwise.tasks.opening import TaskLike, as_task

logger = logging.getLogger(__name__)


@dataclass
class EdgeSetup(Setup):
    """Everything an edge method may need: what to score, and how."""

    edges: list[Edge] = field(default_factory=list)
    """What to score; values come in this order."""
    parts: Parts = field(default_factory=lambda: Parts(()))
    """The blocks of the model, taken apart."""

    @cached_property
    def spans(self) -> tuple[str, ...]:
        """The spans that edges are restricted to; empty where none is."""
        return tuple(dict.fromkeys(edge.span for edge in self.edges if edge.span))

    def block(self, engine: Engine, numbers: Sequence[int]) -> tuple[Block, dict[str, Tensor]]:
        """The rows of these numbers, and the positions of each span in them."""
        block = engine.table.block(numbers)
        return block, position_masks(self.model.text, self.task, block.rows, block.length, self.spans)


@dataclass(frozen=True, kw_only=True)
class EdgeMethod(Registered):
    """A registered way to score edges; it gives values per example and edge `[E, N]`."""

    gradient: bool = False
    """Whether it needs a metric with a gradient at other gates."""
    gates: bool = False
    """Whether it gates heads, MLPs and embeddings together, whichever edges are asked for."""


def sender_kinds(edges: Iterable[Edge]) -> tuple[str, ...]:
    """The kinds of component whose references are needed: heads, and those of the senders."""
    return kinds_of([Head(0, 0), *(edge.sender for edge in edges)])


EDGE_METHODS: Registry[EdgeMethod] = Registry("edge method", "headwise.scores.edges.methods")


def register(name: str, **fields: Any) -> Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]:
    """Make an edge method known under `name`; the other arguments are the fields of `EdgeMethod`, such as `about`."""
    return EDGE_METHODS.decorator(name, lambda run: EdgeMethod(name=name, run=run, **fields))


edge_methods = EDGE_METHODS.all


def edges(
    model: Model,
    task: TaskLike,
    method: str = "exact",
    *,
    into: Any = None,
    out_of: Any = None,
    components: Sequence[str] = ("heads",),
    slots: Sequence[str] = SLOTS,
    spans: Sequence[str] | str | None = None,
    metric: str | None = None,
    reference: str = "mean",
    positions: str = "all",
    seed: int = 0,
    reference_task: Task | None = None,
    batch_tokens: int | None = None,
    progress: Progress = True,
    **options: Any,
) -> Edges:
    """Scores of the direct edges from heads (MLPs, embeddings) to the queries, keys and values of later heads.

    method: `exact` (one edge at a time, replaced), `attribution` (all edges from one backward pass) or `integrated`.
    into: receivers, such as "L23H3" (its Q, and the K and V of its key/value head), "L23H3.Q", "L23KV1.K", "MLP4",
        "logits", or a list; by default all. out_of: senders, such as ["L10H2", "MLP3", "input"]; by default all.
    components: what sends and receives where `into` and `out_of` do not say: "heads", "mlps", "input".
    slots: of the receivers only these: "Q", "K", "V", "MLP", "logits".
    spans: restrict edges to named spans of the examples ("S2", "end"; "rest": all other positions); "all" for each of
        them in turn. Scores are then per edge and span.
    metric: by default that of the task. reference: what replaces a sender's contribution: zero, mean, position_mean,
        resample, patch. options: the method's own (`mlps="move"` of `exact`: MLPs between sender and receiver are
        computed again; `steps`, `tolerance` of `integrated`).

    >>> hw.edges(model, "ioi", into="L23H3", reference="patch").top(5).table()          # doctest: +SKIP
    """
    chosen = EDGE_METHODS.get(method)
    for option in options:
        if option not in chosen.settings.model_fields:
            raise unknown(f"option of edge method {method!r}", option, chosen.settings.model_fields)
    chosen.settings(**options)
    task = as_task(task, model, {})
    note_leading_space(model, task)
    settings: dict[str, Any] = {"reference": reference, "positions": positions, "seed": seed}
    MeasureSettings(**settings, batch_tokens=batch_tokens, components=tuple(several(components)))
    check_stored(reference, "the edges")
    measured = metric_named(metric or task.metric)
    _check_metric(chosen, measured)
    parts = take_apart(model)
    receivers = _receivers(parts, into, components, slots)
    senders = _senders(model, out_of, components)
    listed = possible_edges(parts, senders, receivers, chosen_spans(task, spans))
    if out_of is not None:
        _note_left_out(senders, listed)
    setup = EdgeSetup(model, task, measured, reference, positions, seed, reference_task, batch_tokens)
    setup.edges, setup.parts = listed, parts
    setup.components = COMPONENTS if chosen.gates else sender_kinds(listed)
    steps = _steps(chosen, task, listed)
    if len(listed) <= MOST_RESAMPLED:
        note_too_few(task, len(listed), "edge")
    with reporting(f"{method} edges on {task.name}", steps, progress) as setup.advance:
        examples = chosen.run(setup, **options)
    details = {**settings, **options, **setup.spent, **setup.details, "examples": task.fingerprint}
    names = (model.name, task.name, method, measured.name)
    return Edges(listed, examples, *names, _sharing(parts), details, task.shared_groups())


def edge_cost(
    model: Model,
    task: Task,
    method: str,
    *,
    into: Any = None,
    out_of: Any = None,
    components: Sequence[str] = ("heads",),
    **_: Any,
) -> int:
    """The steps of the progress of `edges`: forward rows; of a gradient method, examples."""
    parts = take_apart(model)
    listed = possible_edges(
        parts, _senders(model, out_of, components), _receivers(parts, into, components, SLOTS)
    )
    return _steps(EDGE_METHODS.get(method), task, listed)


def _steps(chosen: EdgeMethod, task: Task, listed: Sequence[Edge]) -> int:
    return len(task) * (1 if chosen.gradient or chosen.first_order else len(listed))


def check_edges(model: Model, methods: Sequence[str], metric: str, into: Any) -> None:
    """Refuse what `edges` would refuse by any of these methods, for a caller that computes something else before it."""
    for method in methods:
        _check_metric(EDGE_METHODS.get(method), metric_named(metric))
    parts, heads = take_apart(model), ("heads",)
    possible_edges(parts, _senders(model, None, heads), _receivers(parts, into, heads, SLOTS))


def possible_edges(
    parts: Parts, senders: Sequence[Head], receivers: Sequence[Receiver], spans: Sequence[str] = ()
) -> list[Edge]:
    """Every direct edge that the model has between these, receiver by receiver.

    A sender must be in an earlier block than the receiver; a head also sends to its own block's MLP, if that reads it.
    """
    found = [
        Edge(sender, receiver, span)
        for receiver in receivers
        for sender in senders
        if _precedes(parts, sender, receiver)
        for span in (spans or ("",))
    ]
    if not found:
        raise HeadwiseError("there is no edge between these: a sender must come before the receiver")
    return found


def _precedes(parts: Parts, sender: Head, receiver: Receiver) -> bool:
    if sender == THE_INPUT or receiver == LOGITS or sender.layer < receiver.layer:
        return True
    own_mlp = receiver.slot == "MLP" and sender.layer == receiver.layer and sender.head >= 0
    return own_mlp and parts.blocks[receiver.layer].sequential


def _senders(model: Model, out_of: Any, components: Sequence[str]) -> list[Head]:
    """The components that are asked for, in the order in which they write."""
    everything = model.layout(COMPONENTS)
    if out_of is None:
        found = model.layout(several(components)).listed()
    else:
        found = list(dict.fromkeys(head_list(out_of)))
        everything.check(found, model.name)
    return sorted(found, key=writing_order)


def _note_left_out(senders: Sequence[Head], listed: Sequence[Edge]) -> None:
    """Say which senders that were asked for have no edge into any receiver."""
    reaching = {edge.sender for edge in listed}
    if silent := [str(sender) for sender in senders if sender not in reaching]:
        warn_once(
            logger,
            f"{', '.join(silent)} {'has' if len(silent) == 1 else 'have'} no edge into these receivers, which "
            "read only what earlier layers write",
        )


def _receivers(parts: Parts, into: Any, components: Sequence[str], slots: Sequence[str]) -> list[Receiver]:
    if "kv_heads" in several(components):
        raise HeadwiseError(
            "kv_heads is no component of edges: a key/value head writes nothing itself; name what reads, such as "
            "into='L3KV1.K'"
        )
    sharing = _sharing(parts)
    existing: list[Receiver] = []
    for part in parts.blocks:
        existing += [Receiver(part.layer, head, "Q") for head in range(part.heads)]
        existing += [Receiver(part.layer, head, slot) for slot in "KV" for head in range(part.kv_heads)]
        existing.append(Receiver(part.layer, -1, "MLP"))
    wanted_slots = several(slots)
    for slot in wanted_slots:
        if slot not in SLOTS:
            raise unknown("slot", slot, SLOTS)
    if into is None:
        kinds = {"heads": "QKV", "mlps": ("MLP",)}
        wanted = {slot for kind in several(components) for slot in kinds.get(kind, ())} | {"logits"}
        found = [receiver for receiver in (*existing, LOGITS) if receiver.slot in wanted]
    else:
        names = one_or_several(into)
        found = list(dict.fromkeys(receiver for name in names for receiver in inputs_of(name, sharing)))
        for receiver in found:
            if receiver not in existing and receiver != LOGITS:
                raise HeadwiseError(
                    f"the model has no receiver {receiver}; it has {len(parts.blocks)} layers, and layer 0 has "
                    f"{parts.blocks[0].heads} heads and {parts.blocks[0].kv_heads} key/value heads, counted from 0"
                )
    return [receiver for receiver in found if receiver.slot in wanted_slots]


def _sharing(parts: Parts) -> dict[int, int]:
    """Layer -> how many heads share one key/value head."""
    return {part.layer: part.heads // part.kv_heads for part in parts.blocks}


def _check_metric(chosen: EdgeMethod, measured: Any) -> None:
    if (chosen.first_order and not measured.first_order) or (chosen.gradient and not measured.differentiable):
        raise HeadwiseError(
            f"the edge method {chosen.name!r} uses the gradient of the metric, which is 0 or undefined for "
            f"{measured.name!r}; use logit_diff or logprob, or the method 'exact'"
        )
