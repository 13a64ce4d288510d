"""Gradient edges: all edges of a model from one backward pass per level (Syed et al. 2023, arXiv 2310.10348, EAP; Hanna
et al. 2024, arXiv 2403.17806, EAP-IG).

score(u → v) = −Σ_t Δ_u(t) · ∂m/∂x_v(t): positive where the edge helps. The backward pass gives the gradients by every
query, key, value and MLP output; each is pulled back to the stream through the model's own projection and norm, head by
head, in one pass that begins at the block and has one group of rows for each slot.

S rows, T tokens, W width, H heads, KV key/value heads, D head size, U senders, R receivers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from headwise.heads import Head
from headwise.heads.edge import LOGITS, Edge, Receiver
from headwise.model.edges.contributions import (
    THE_INPUT,
    Contributions,
    at_gate,
    begin_at,
    contributions,
    module_at_gate,
    unread,
    writing_order,
)
from headwise.model.edges.parts import BlockParts, Parts
from headwise.model.forward.gate import by_token
from headwise.model.forward.run import Edit, Pass
from headwise.model.measure.engine import Engine
from headwise.model.measure.rows import Block
from headwise.model.sites.attention_function import Slots
from headwise.names import MLP


@dataclass
class Gradients:
    """Gradients of the summed metric of some rows, in one run with all components at the gate `level`."""

    values: Tensor  # S: the metric
    by_level: float
    """Gradient of the summed metric by the common gate; NaN at level 1, where nothing is gated."""
    slots: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    """(layer, `Q` | `K` | `V`) -> `[S, heads, T, D]`; (layer, `MLP`) -> `[S, T, W]`, by the MLP's ungated output."""
    end: Tensor | None = None  # S, T, W: by what the last block writes
    z: dict[int, Tensor] = field(default_factory=dict)
    """Layer -> gated head outputs, which the pull-back of an MLP holds."""


def gradients(engine: Engine, parts: Parts, block: Block, level: float) -> Gradients:
    """One forward and one backward pass."""
    model = engine.model
    gate: Tensor | float = 1.0
    if level != 1:
        gate = torch.tensor(level, dtype=model.gate_dtype, device=model.device, requires_grad=True)
    found: dict[tuple[int, str], Tensor] = {}
    z_found: dict[int, Tensor] = {}
    ends: list[Tensor] = []

    def begin(stream: Tensor) -> Tensor:
        # Some tensor before the first block must need a gradient, or nothing would be kept for the backward pass.
        return stream if stream.requires_grad else stream.detach().requires_grad_()

    def note(layer: int, slots: Slots) -> Slots:
        found.update({(layer, name): tensor for name, tensor in zip("QKV", slots, strict=True)})
        return slots

    def heads(layer: int, z: Tensor) -> Tensor:
        kept = at_gate(block, layer, z, gate)
        z_found[layer] = kept.detach()
        return kept

    def mlp(layer: int, output: Tensor) -> Tensor:
        found[layer, "MLP"] = output
        return module(Head(layer, MLP), output)

    def module(component: Head, output: Tensor) -> Tensor:
        rows = by_token(output, block.size)
        return module_at_gate(block, component, rows, gate).reshape(output.shape)

    def end(output: Tensor) -> Tensor:
        ends.append(output)
        return output

    modules: dict[nn.Module, Edit] = {part.mlp: partial(mlp, part.layer) for part in parts.blocks}
    modules[model.hooks.blocks[-1]] = end
    if level != 1:
        modules[model.capabilities.embeddings] = partial(module, THE_INPUT)
    request = block.pass_(streams={0: begin}, slots=note, heads=heads, modules=modules)
    logits = model.run_whole(request).logits
    values = engine.metric.per_row(block.scored(logits, engine.plain_logits(block)))
    of = [*found.values(), ends[0], *([gate] if isinstance(gate, Tensor) else [])]
    given = torch.autograd.grad(values.sum(), of, materialize_grads=True)
    engine.rows_spent += block.size
    by_gate = float(given[-1]) if isinstance(gate, Tensor) else float("nan")
    named = dict(zip(found, given, strict=False))
    return Gradients(values.detach(), by_gate, named, given[len(found)], z_found)


def pulled_back(
    engine: Engine,
    part: BlockParts,
    block: Block,
    plain: Contributions,
    found: Gradients,
    wanted: set[Receiver],
) -> dict[Receiver, Tensor]:
    """∂m/∂x `[S, T, W]` for each receiver of one block: the gradient by the stream that this receiver alone reads."""
    slots = [Receiver(part.layer, head, "Q") for head in range(part.heads)]
    slots += [Receiver(part.layer, head, slot) for slot in "KV" for head in range(part.kv_heads)]
    slots = [receiver for receiver in slots if receiver in wanted]
    pulled: dict[Receiver, Tensor] = {}
    at_once = max(1, engine.batch_tokens // (2 * block.size * block.length))
    for first in range(0, len(slots), at_once):
        some = slots[first : first + at_once]
        pulled |= dict(zip(some, _through_slots(engine, part, block, plain, found, some), strict=True))
    mlp = Receiver(part.layer, -1, "MLP")
    if mlp in wanted:
        pulled[mlp] = _through_mlp(engine, part, block, plain, found)
    return pulled


def _through_slots(
    engine: Engine,
    part: BlockParts,
    block: Block,
    plain: Contributions,
    found: Gradients,
    receivers: Sequence[Receiver],
) -> Sequence[Tensor]:
    groups, size = len(receivers), block.size
    ids = block.tensors["ids"].repeat(groups, 1)
    leaf = plain.streams[part.layer].detach().repeat(groups, 1, 1).requires_grad_()
    seen: list[Tensor] = []

    def note(layer: int, slots: Slots) -> Slots:
        if layer != part.layer:
            return slots
        seen.extend(slots)
        q, k, v = (tensor.detach() for tensor in slots)  # nothing after this needs a gradient
        return q, k, v

    begun = begin_at(part.layer, ids, leaf) | unread(part.mlp, ids)
    engine.model.run_whole(Pass(ids=ids, slots=note, last=part.layer, **begun))
    directions = []
    for name, tensor in zip("QKV", seen, strict=True):
        direction = torch.zeros_like(tensor)
        for group, receiver in enumerate(receivers):
            if receiver.slot == name:
                rows = slice(group * size, (group + 1) * size)
                direction[rows, receiver.head] = found.slots[part.layer, name][:, receiver.head]
        directions.append(direction)
    (gradient,) = torch.autograd.grad(seen, leaf, directions)
    return gradient.split(size)


def _through_mlp(
    engine: Engine, part: BlockParts, block: Block, plain: Contributions, found: Gradients
) -> Tensor:
    """The MLP's input with head outputs held: also what the block's own heads write is read there."""
    ids = block.tensors["ids"]
    leaf = plain.streams[part.layer].detach().clone().requires_grad_()
    seen: list[Tensor] = []

    def hold(layer: int, z: Tensor) -> Tensor:
        return found.z[layer] if layer == part.layer else z

    def note(output: Tensor) -> Tensor:
        seen.append(output)
        return output

    request = Pass(
        ids=ids, heads=hold, modules={part.mlp: note}, last=part.layer, **begin_at(part.layer, ids, leaf)
    )
    engine.model.run_whole(request)
    (gradient,) = torch.autograd.grad(seen[0], leaf, found.slots[part.layer, "MLP"])
    return gradient


def edge_gradients(
    engine: Engine,
    parts: Parts,
    block: Block,
    edges: Sequence[Edge],
    spans: Mapping[str, Tensor],
    level: float = 1.0,
) -> tuple[np.ndarray, Gradients]:
    """The score of every edge on every row `[V, S]` at one gate level, and the run that it comes from."""
    model = engine.model
    senders = sorted({edge.sender for edge in edges}, key=writing_order)
    with torch.no_grad():
        plain = contributions(model, parts, block, senders, level)
    found = gradients(engine, parts, block, level)
    table = _EdgeTable(edges, senders, plain, spans)
    scores = np.empty((len(edges), block.size))
    for part in parts.blocks:
        of_block = {receiver for receiver in table.numbers if receiver.layer == part.layer}
        if of_block:
            table.fill(scores, pulled_back(engine, part, block, plain, found, of_block))
    if LOGITS in table.numbers:
        assert found.end is not None
        table.fill(scores, {LOGITS: found.end})
    return scores, found


class _EdgeTable:
    """Which edges lead into each receiver, and what their senders change in the stream."""

    def __init__(
        self,
        edges: Sequence[Edge],
        senders: Sequence[Head],
        plain: Contributions,
        spans: Mapping[str, Tensor],
    ) -> None:
        self.edges, self.spans = edges, spans
        self.numbers: dict[Receiver, list[int]] = {}
        for number, edge in enumerate(edges):
            self.numbers.setdefault(edge.receiver, []).append(number)
        self.place = {sender: number for number, sender in enumerate(senders)}
        self.deltas = torch.stack([plain.deltas[sender].flatten(1) for sender in senders], dim=1)  # S, U, T·W

    def fill(self, scores: np.ndarray, gradients: Mapping[Receiver, Tensor]) -> None:
        """−Σ_t Δ(t) · ∂m/∂x(t) of every edge into these receivers: one product for all of them."""
        receivers = list(gradients)
        towards = torch.stack([gradients[receiver] for receiver in receivers], dim=1)  # S, R, T, W
        numbers = [n for receiver in receivers for n in self.numbers[receiver]]
        column = {receiver: number for number, receiver in enumerate(receivers)}
        for span in {self.edges[n].span for n in numbers}:
            some = [n for n in numbers if self.edges[n].span == span]
            seen = towards
            if span in self.spans:
                seen = towards * self.spans[span].to(towards.device)[:, None, :, None]
            rows = [self.place[self.edges[n].sender] for n in some]
            # Senders stand in the order in which they write, so those before a block are the first ones.
            deltas = self.deltas[:, : max(rows) + 1]
            products = torch.bmm(deltas, seen.flatten(2).to(deltas.dtype).mT)  # S, U, R
            columns = [column[self.edges[n].receiver] for n in some]
            scores[some] = -products[:, rows, columns].double().cpu().numpy().T
