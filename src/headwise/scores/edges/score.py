"""`hw.edges`: scores of direct edges between components."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwise.errors import HeadwiseError, unknown
from headwise.heads import COMPONENTS, Head, head_list
from headwise.heads.edge import LOGITS, SLOTS, Edge, Receiver
from headwise.heads.edges import MOST_RESAMPLED, Edges, inputs_of, one_or_several
from headwise.metrics import metric as metric_named
from headwise.metrics.leading_space import note_leading_space
from headwise.model.edges.contributions import THE_INPUT, writing_order
from headwise.model.edges.parts import Parts, take_apart
from headwise.model.measure.positions import chosen_spans
from headwise.model.measure.references import check_stored
from headwise.model.measure.rows import MeasureSettings
from headwise.model.model import Model
from headwise.progress import Progress, reporting
from headwise.scores.edges.registry import EDGE_METHODS, EdgeMethod, EdgeSetup, sender_kinds
from headwise.scores.few_examples import note_too_few
from headwise.several import several
from headwise.tasks.examples import Task
from headwise.tasks.opening import TaskLike, as_task


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
    MeasureSettings(
        reference=reference,
        positions=positions,
        seed=seed,
        batch_tokens=batch_tokens,
        components=tuple(several(components)),
    )
    check_stored(reference, "the edges")
    measured = metric_named(metric or task.metric)
    _check_metric(chosen, measured)
    parts = take_apart(model)
    receivers = _receivers(parts, into, components, slots)
    listed = possible_edges(parts, _senders(model, out_of, components), receivers, chosen_spans(task, spans))
    setup = EdgeSetup(model, task, measured, reference, positions, seed, reference_task, batch_tokens)
    setup.edges, setup.parts = listed, parts
    setup.components = COMPONENTS if chosen.gates else sender_kinds(listed)
    steps = _steps(chosen, task, listed)
    if len(listed) <= MOST_RESAMPLED:
        note_too_few(task, len(listed), "edge")
    with reporting(f"{method} edges on {task.name}", steps, progress) as setup.advance:
        examples = chosen.run(setup, **options)
    details = {"reference": reference, "positions": positions, "seed": seed, **options, **setup.details}
    return Edges(
        listed,
        examples,
        model.name,
        task.name,
        method,
        measured.name,
        {part.layer: part.heads // part.kv_heads for part in parts.blocks},
        details | {"examples": task.fingerprint},
        task.shared_groups(),
    )


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
    return len(task) * (1 if chosen.gradient else len(listed))


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


def _receivers(parts: Parts, into: Any, components: Sequence[str], slots: Sequence[str]) -> list[Receiver]:
    if "kv_heads" in several(components):
        raise HeadwiseError(
            "kv_heads is no component of edges: a key/value head writes nothing itself; name what reads, such as "
            "into='L3KV1.K'"
        )
    sharing = {part.layer: part.heads // part.kv_heads for part in parts.blocks}
    existing = [
        receiver for part in parts.blocks for receiver in _of_block(part.layer, part.heads, part.kv_heads)
    ]
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


def _of_block(layer: int, heads: int, kv_heads: int) -> list[Receiver]:
    queries = [Receiver(layer, head, "Q") for head in range(heads)]
    keys = [Receiver(layer, head, slot) for slot in "KV" for head in range(kv_heads)]
    return [*queries, *keys, Receiver(layer, -1, "MLP")]


def _check_metric(chosen: EdgeMethod, measured: Any) -> None:
    if (chosen.first_order and not measured.first_order) or (chosen.gradient and not measured.differentiable):
        raise HeadwiseError(
            f"the edge method {chosen.name!r} uses the gradient of the metric, which is 0 or undefined for "
            f"{measured.name!r}; use logit_diff or logprob, or the method 'exact'"
        )
