"""Exact edges: path patching of one direct edge at a time, many edges in one pass.

The pass begins at the receiver's block. Group 0 of its rows is the plain run; every other group has one slot of one
receiver changed to what it would be if the sender were replaced on the stream (`slot_changes`). Everything after the
receiver is recomputed; what lies between sender and receiver keeps its plain output (Goldowsky-Dill et al. 2023, arXiv
2304.05969; edges as in Syed et al. 2023, arXiv 2310.10348), unless MLPs are to move (`moving_mlps`).

V edges, S rows, T tokens, E examples, U senders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.heads import Head
from headwise.heads.edges import Edge, Receiver
from headwise.model.edges.contributions import (
    THE_INPUT,
    Contributions,
    at_gate,
    begin_at,
    delta_at,
    module_at_gate,
    slot_changes,
)
from headwise.model.edges.parts import BlockParts, Parts
from headwise.model.forward.gate import by_token
from headwise.model.forward.run import Edit, Pass
from headwise.model.measure.engine import Engine
from headwise.model.measure.rows import Block, beside_baseline
from headwise.model.sites.attention_function import Slots
from headwise.names import MLP

if TYPE_CHECKING:
    from headwise.model.model import Model


@dataclass
class ExactEdges:
    """Measures edges on the rows of one block."""

    engine: Engine
    parts: Parts
    block: Block
    plain: Contributions
    spans: Mapping[str, Tensor]
    """Name -> the positions `[S, T]` of these rows."""
    moving: bool = False
    """Whether MLPs between sender and receiver are computed again."""

    def __post_init__(self) -> None:
        self.model = self.engine.model

    def values(self, edges: Sequence[Edge]) -> np.ndarray:
        """The metric of every row with each edge replaced, and in the plain run of the same batch `[2, V, S]`."""
        values = np.empty((2, len(edges), self.block.size))
        by_block: dict[int, list[int]] = {}
        for number, edge in enumerate(edges):
            to_end = edge.receiver.slot == "logits"
            by_block.setdefault(self.parts.last if to_end else edge.receiver.layer, []).append(number)
        for index, numbers in sorted(by_block.items()):
            waiting = [n for n in numbers if edges[n].receiver.slot != "logits"]
            for chunk in self._chunks(waiting, edges):
                values[:, chunk] = self._through_slots(self.parts.blocks[index], [edges[n] for n in chunk])
            to_logits = [n for n in numbers if edges[n].receiver.slot == "logits"]
            if to_logits:
                values[:, to_logits] = self._through_end([edges[n] for n in to_logits])
        return values

    def _chunks(self, numbers: list[int], edges: Sequence[Edge]) -> list[list[int]]:
        """Edges of one block whose senders fit one pass, so that each sender is run through the block once."""
        most = max(1, self.engine.batch_tokens // (self.block.size * self.block.length))
        chunks: list[list[int]] = []
        senders: set[tuple[Head, str]] = set()
        for n in sorted(numbers, key=lambda n: (edges[n].sender, edges[n].span)):
            key = (edges[n].sender, edges[n].span)
            if not chunks or (key not in senders and len(senders) == most):
                chunks.append([])
                senders = set()
            senders.add(key)
            chunks[-1].append(n)
        return chunks

    def _through_slots(self, part: BlockParts, edges: list[Edge]) -> np.ndarray:
        senders = list(dict.fromkeys((edge.sender, edge.span) for edge in edges))
        where = [(sender, self.spans.get(span)) for sender, span in senders]
        wanted = {edge.receiver.slot for edge in edges}
        seen = self._seen_by(part.layer, [sender for sender, _ in senders])
        changes = slot_changes(self.model, part, self.block, seen, where, wanted)
        of_sender = {sender: number for number, sender in enumerate(senders)}
        changed = [(edge.receiver, of_sender[edge.sender, edge.span]) for edge in edges]

        def measure(some: np.ndarray) -> np.ndarray:
            swapped = _swapped(part, changes, [changed[n] for n in some], self.block.size)
            return self._values(part.layer, 1 + len(some), swapped)

        return beside_baseline(self.engine, self.block, range(len(edges)), measure)

    def _through_end(self, edges: list[Edge]) -> np.ndarray:
        """Edges to the logits: the change is added to what the last block writes."""
        last = self.parts.last
        module = self.model.hooks.blocks[last]

        def measure(some: np.ndarray) -> np.ndarray:
            seen = self._seen_by(last + 1, list(dict.fromkeys(edges[n].sender for n in some)))
            deltas = [delta_at(seen, edges[n].sender, self.spans.get(edges[n].span)) for n in some]
            change = torch.cat([torch.zeros_like(deltas[0]), *deltas])
            modules: dict[nn.Module, Edit] = {module: lambda output: output + change}
            return self._values(last, 1 + len(some), {"modules": modules})

        return beside_baseline(self.engine, self.block, range(len(edges)), measure)

    def _seen_by(self, index: int, senders: Sequence[Head]) -> Contributions:
        """The streams, and the changes by these senders as block `index` reads them."""
        if not self.moving:
            return self.plain
        return moving_mlps(self.model, self.parts, self.block, self.plain, senders, index)

    def _values(self, index: int, groups: int, fields: Mapping[str, Any]) -> np.ndarray:
        """The metric of the rows `[groups, S]` in a pass that begins at a block with the plain stream."""
        request = self.block.pass_(groups)
        stream = self.plain.streams[index].repeat(groups, 1, 1)
        begun = begin_at(index, request.ids, stream)
        whole = Pass(ids=request.ids, scored=request.scored, **begun, **fields)
        # Edits inside the last block meet parts that compute scored positions only.
        last = index == self.parts.last
        logits = (self.model.run_whole if last else self.model.run)(whole).logits
        return self.engine.read(self.block, logits)[..., 0]


def _swapped(
    part: BlockParts, changes: Mapping[str, Tensor], changed: Sequence[tuple[Receiver, int]], size: int
) -> dict[str, Any]:
    """Edits of a pass in which group 1 + n has the slot of receiver n changed by sender n, as fields of `Pass`."""
    by_slot: dict[str, list[tuple[int, int, int]]] = {}  # slot -> group, head, sender
    for group, (receiver, sender) in enumerate(changed, 1):
        by_slot.setdefault(receiver.slot, []).append((group, receiver.head, sender))

    def swap(slot: str, tensor: Tensor) -> Tensor:
        if slot not in by_slot:
            return tensor
        group, head, sender = torch.tensor(by_slot[slot], device=tensor.device).T
        groups = tensor.unflatten(0, (-1, size)).clone()  # groups, S, then of heads: heads, T, D
        if slot == "MLP":
            groups[group] += changes[slot][sender]
        else:
            groups[group, :, head] += changes[slot][sender, :, head]
        return groups.flatten(0, 1)

    def slots(layer: int, tensors: Slots) -> Slots | None:
        if layer != part.layer:
            return None
        q, k, v = (swap(name, tensor) for name, tensor in zip("QKV", tensors, strict=True))
        return q, k, v

    def mlp(output: Tensor) -> Tensor:
        return swap("MLP", by_token(output, (1 + len(changed)) * size)).reshape(output.shape)

    return {"slots": slots, "modules": {part.mlp: mlp} if "MLP" in by_slot else {}}


# ---- senders whose change passes through the MLPs before the receiver ------------------------------------
# One pass begins at the first sender's block. Group 0 of its rows is the plain run; in every other group one sender
# is replaced, all other heads keep the outputs of group 0, and MLPs read the changed stream (Wang et al. 2022, arXiv
# 2211.00593). What a group's stream has more than that of group 0 before the receiver's block is the sender's change.


def moving_mlps(
    model: Model, parts: Parts, block: Block, plain: Contributions, senders: Sequence[Head], index: int
) -> Contributions:
    """The contributions `plain` with the changes that block `index` reads (the end of the model where there is none).

    senders: those of block `index` itself have no MLP between them and its MLP, and are left as they are.
    """
    before = [s for s in dict.fromkeys(senders) if s == THE_INPUT or s.layer < index]
    if not before or index == 0:
        return plain
    size, groups = block.size, 1 + len(before)
    first = min(sender.layer for sender in before)
    stream = plain.streams[first].repeat(groups, 1, 1)
    if THE_INPUT in before:
        group = 1 + before.index(THE_INPUT)
        stream[group * size : (group + 1) * size] += plain.deltas[THE_INPUT]
    found: list[Tensor] = []

    def hold(layer: int, z: Tensor) -> Tensor | None:
        if layer < first:  # nobody reads these blocks, and they may compute one row for all
            return None
        plain = z[:size]
        rows = plain.repeat(groups, 1, 1, 1, 1)
        for group, sender in enumerate(before, 1):
            if sender.layer == layer and sender.head >= 0:
                rows[group, :, :, sender.head] = at_gate(block, layer, plain, 0.0)[:, :, sender.head]
        return rows.flatten(0, 1)

    def without(sender: Head) -> Edit:
        group = 1 + before.index(sender)

        def edit(output: Tensor) -> Tensor:
            rows = by_token(output, groups * size).clone()
            rows[group * size : (group + 1) * size] = module_at_gate(block, sender, rows[:size], 0.0)
            return rows.reshape(output.shape)

        return edit

    mlps = {part.layer: part.mlp for part in parts.blocks}
    modules: dict[nn.Module, Edit] = {
        mlps[sender.layer]: without(sender) for sender in before if sender.head == MLP
    }
    modules[model.hooks.blocks[index - 1]] = found.append
    ids = block.tensors["ids"].repeat(groups, 1)
    begun = begin_at(first, ids, stream)
    model.run_whole(Pass(ids=ids, heads=hold, modules=modules, last=index - 1, **begun))
    after = found[0].unflatten(0, (groups, size))
    moved = {sender: after[group] - after[0] for group, sender in enumerate(before, 1)}
    return replace(plain, deltas={**plain.deltas, **moved})
