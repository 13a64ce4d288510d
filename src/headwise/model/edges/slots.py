"""The queries, keys, values and MLP outputs of one block when one sender is replaced on the stream that it reads.

One pass begins at the block. Group 0 of its rows reads the plain stream x, every other group x + Δ of one sender. What
differs in a group's query, key or value from group 0 is what the receiver's slot sees of the sender. For the MLP, head
outputs are held at those of group 0; for a head of the same block its own output is replaced instead of the stream.

S rows, T tokens, W width, H heads, KV key/value heads, D head size, U senders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.heads import Head
from headwise.model.edges.contributions import Contributions, at_gate
from headwise.model.edges.parts import BlockParts
from headwise.model.forward.blocks import SharedRows
from headwise.model.forward.gate import by_token
from headwise.model.forward.run import Edit, Pass
from headwise.model.measure.rows import Block
from headwise.model.sites.attention_function import Slots

if TYPE_CHECKING:
    from headwise.model.model import Model


@dataclass
class SlotChanges:
    """What each of some senders changes in one block; the first axis of every tensor is the sender."""

    senders: list[Head]
    slots: dict[str, Tensor]
    """`Q`: `[U, S, H, T, D]`; `K`, `V`: `[U, S, KV, T, D]`; `MLP`: `[U, S, T, W]`, where it was asked for."""


def slot_changes(
    model: Model,
    part: BlockParts,
    block: Block,
    plain: Contributions,
    senders: Sequence[tuple[Head, Tensor | None]],
    wanted: set[str],
) -> SlotChanges:
    """Run one block on the plain stream and on the stream changed by each sender.

    senders: each with the positions `[S, T]` it is replaced at, None for all that the reference acts on.
    wanted: the slots whose changes are kept.
    """
    size, groups = block.size, 1 + len(senders)
    found: dict[str, Tensor] = {}

    def note(layer: int, slots: Slots) -> Slots:
        if layer == part.layer:
            for name, tensor in zip("QKV", slots, strict=True):
                if name in wanted:
                    found[name] = _against_first(tensor, size)
        return slots

    def hold(layer: int, z: Tensor) -> Tensor:
        if layer != part.layer:
            return z
        first = z[:size]
        rows = [first.clone() for _ in range(groups)]
        for group, (sender, where) in enumerate(senders, 1):
            if sender.layer == layer and sender.head >= 0:
                ablated = at_gate(block, layer, first, 0.0)
                if where is not None:
                    ablated = torch.where(where.to(z.device)[:, :, None, None], ablated, first)
                rows[group][:, :, sender.head] = ablated[:, :, sender.head]
        return torch.cat(rows)

    def note_mlp(output: Tensor) -> Tensor:
        found["MLP"] = _against_first(by_token(output, groups * size), size)
        return output

    with_mlp = "MLP" in wanted
    modules: dict[nn.Module, Edit] = {part.mlp: note_mlp} if with_mlp else {}
    ids = block.tensors["ids"].repeat(groups, 1)
    stream = torch.cat([plain.streams[part.layer], *(_changed(plain, part, *one) for one in senders)])
    begun = begin_at(part.layer, ids, stream)
    if not with_mlp and len(ids) != ids.shape[1]:  # nobody reads what the MLP computes here
        zero = torch.zeros(1, dtype=torch.long, device=ids.device)
        begun["parts"] = {part.mlp: SharedRows(zero, zero.expand(len(ids)))}
    asked = Pass(
        ids=ids, slots=note, heads=hold if with_mlp else None, modules=modules, last=part.layer, **begun
    )
    model.run_whole(asked)
    return SlotChanges([sender for sender, _ in senders], found)


def begin_at(index: int, ids: Tensor, stream: Tensor) -> dict[str, Any]:
    """What lets a pass over `ids[B, T]` begin at a block with `stream[B, T, W]`, as fields of `Pass`.

    The blocks before it compute one row, which nobody reads; masks and positions are the model's own.
    """
    fields: dict[str, Any] = {"streams": {index: lambda _: stream}}
    if len(ids) != ids.shape[1]:  # as many rows as tokens could be taken for one another
        zero = torch.zeros(1, dtype=torch.long, device=ids.device)
        one_row = SharedRows(zero, zero.expand(len(ids)))
        fields["shared"] = dict.fromkeys(range(index), one_row)
    return fields


def delta_at(plain: Contributions, sender: Head, where: Tensor | None) -> Tensor:
    """The change of the stream `[S, T, W]` by a sender, at the positions `where[S, T]` only."""
    delta = plain.deltas[sender]
    return delta if where is None else delta * where.to(delta.device)[:, :, None]


def _changed(plain: Contributions, part: BlockParts, sender: Head, where: Tensor | None) -> Tensor:
    stream = plain.streams[part.layer]
    if sender.layer == part.layer and sender.head >= 0:
        return stream  # its own output is replaced inside the block
    return stream + delta_at(plain, sender, where)


def _against_first(tensor: Tensor, size: int) -> Tensor:
    """The difference of every group of `size` rows to the first one `[U, S, …]`."""
    groups = tensor.unflatten(0, (-1, size))
    return groups[1:] - groups[:1]
