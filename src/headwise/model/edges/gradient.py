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
from headwise.heads.edges import LOGITS, Edge, Receiver
from headwise.model.edges.contributions import (
    THE_INPUT,
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

    def note(layer: int, slots: Slots) -> None:
        found.update({(layer, name): tensor for name, tensor in zip("QKV", slots, strict=True)})

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

    modules: dict[nn.Module, Edit] = {part.mlp: partial(mlp, part.layer) for part in parts.blocks}
    modules[model.hooks.blocks[-1]] = ends.append
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


def edge_gradients(
    engine: Engine,
    parts: Parts,
    block: Block,
    edges: Sequence[Edge],
    spans: Mapping[str, Tensor],
    level: float = 1.0,
) -> tuple[np.ndarray, Gradients]:
    """The score of every edge on every row `[V, S]` at one gate level, and the run that it comes from."""
    of_rows = _EdgeGradients(engine, parts, block, edges, spans, level)
    scores = np.empty((len(edges), block.size))
    for part in parts.blocks:
        of_block = {receiver for receiver in of_rows.numbers if receiver.layer == part.layer}
        if of_block:
            of_rows.fill(scores, of_rows.pulled_back(part, of_block))
    if LOGITS in of_rows.numbers:
        assert of_rows.found.end is not None
        of_rows.fill(scores, {LOGITS: of_rows.found.end})
    return scores, of_rows.found


@dataclass
class _EdgeGradients:
    """Some rows at one gate level: gradients, what senders change in the stream, which edges lead to each receiver."""

    engine: Engine
    parts: Parts
    block: Block
    edges: Sequence[Edge]
    spans: Mapping[str, Tensor]
    level: float

    def __post_init__(self) -> None:
        senders = sorted({edge.sender for edge in self.edges}, key=writing_order)
        with torch.no_grad():
            self.plain = contributions(self.engine.model, self.parts, self.block, senders, self.level)
        self.found = gradients(self.engine, self.parts, self.block, self.level)
        self.numbers: dict[Receiver, list[int]] = {}
        for number, edge in enumerate(self.edges):
            self.numbers.setdefault(edge.receiver, []).append(number)
        self.place = {sender: number for number, sender in enumerate(senders)}
        deltas = [self.plain.deltas[sender].flatten(1) for sender in senders]
        self.deltas = torch.stack(deltas, dim=1)  # S, U, T·W

    def pulled_back(self, part: BlockParts, wanted: set[Receiver]) -> dict[Receiver, Tensor]:
        """∂m/∂x `[S, T, W]` for each receiver of one block: the gradient by the stream that it alone reads."""
        slots = [Receiver(part.layer, head, "Q") for head in range(part.heads)]
        slots += [Receiver(part.layer, head, slot) for slot in "KV" for head in range(part.kv_heads)]
        slots = [receiver for receiver in slots if receiver in wanted]
        pulled: dict[Receiver, Tensor] = {}
        at_once = max(1, self.engine.batch_tokens // (2 * self.block.size * self.block.length))
        for first in range(0, len(slots), at_once):
            some = slots[first : first + at_once]
            pulled |= dict(zip(some, self._through_slots(part, some), strict=True))
        mlp = Receiver(part.layer, -1, "MLP")
        if mlp in wanted:
            pulled[mlp] = self._through_mlp(part)
        return pulled

    def _through_slots(self, part: BlockParts, receivers: Sequence[Receiver]) -> Sequence[Tensor]:
        groups, size = len(receivers), self.block.size
        ids = self.block.tensors["ids"].repeat(groups, 1)
        leaf = self.plain.streams[part.layer].detach().repeat(groups, 1, 1).requires_grad_()
        seen: list[Tensor] = []

        def note(layer: int, slots: Slots) -> Slots | None:
            if layer != part.layer:
                return None
            seen.extend(slots)
            q, k, v = (tensor.detach() for tensor in slots)  # nothing after this needs a gradient
            return q, k, v

        begun = begin_at(part.layer, ids, leaf) | unread(part.mlp, ids)
        self.engine.model.run_whole(Pass(ids=ids, slots=note, last=part.layer, **begun))
        directions = []
        for name, tensor in zip("QKV", seen, strict=True):
            direction = torch.zeros_like(tensor)
            for group, receiver in enumerate(receivers):
                if receiver.slot == name:
                    rows = slice(group * size, (group + 1) * size)
                    direction[rows, receiver.head] = self.found.slots[part.layer, name][:, receiver.head]
            directions.append(direction)
        (gradient,) = torch.autograd.grad(seen, leaf, directions)
        return gradient.split(size)

    def _through_mlp(self, part: BlockParts) -> Tensor:
        """The MLP's input with head outputs held: also what the block's own heads write is read there."""
        ids = self.block.tensors["ids"]
        leaf = self.plain.streams[part.layer].detach().clone().requires_grad_()
        seen: list[Tensor] = []

        def hold(layer: int, z: Tensor) -> Tensor | None:
            return self.found.z[layer] if layer == part.layer else None

        begun = begin_at(part.layer, ids, leaf) | {"last": part.layer}
        self.engine.model.run_whole(Pass(ids=ids, heads=hold, modules={part.mlp: seen.append}, **begun))
        (gradient,) = torch.autograd.grad(seen[0], leaf, self.found.slots[part.layer, "MLP"])
        return gradient

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
