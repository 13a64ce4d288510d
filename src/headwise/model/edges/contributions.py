"""What every sender adds to the residual stream, and the stream that every block reads: one pass over some rows.

The rows stand in groups: group 0 is the plain run; in each block, every other group ablates one sender of that block.
Each block begins with the plain stream in all groups, and its MLP is held at its plain output. What a group's output
has more than that of group 0 is then the sender's change of the stream: Δ = contribution of the reference minus
contribution of the sender, through the model's own output projection and norms. Integrated gradients need the change
per unit of a sender's gate. Where a norm bends what is added, that is a slope: it comes from forward-mode
differentiation, because towards 0 such a norm bends over ever smaller steps, and a small difference of two streams is
lost in the rounding of bfloat16.

S rows, T tokens, W width, H heads, D head size, G groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual

from headwise.heads import Head
from headwise.model.edges.parts import BlockParts, Parts
from headwise.model.forward.gate import by_token, gated
from headwise.model.forward.run import Edit, Pass, SharedRows
from headwise.model.forward.short_view import ShortView
from headwise.model.measure.rows import Block
from headwise.model.sites.attention_function import Slots
from headwise.model.sites.patch import hooked
from headwise.names import INPUT, MLP

if TYPE_CHECKING:
    from headwise.model.model import Model

THE_INPUT = Head(0, INPUT)


@dataclass
class Contributions:
    """A run of some rows with all components at one gate level."""

    streams: list[Tensor] = field(default_factory=list)
    """`[S, T, W]`: what each block reads, and last what the last block writes."""
    deltas: dict[Head, Tensor] = field(default_factory=dict)
    """`[S, T, W]`: how the stream changes when a sender is replaced by its reference."""


def writing_order(sender: Head) -> tuple[bool, int, bool, int]:
    """Sorts senders by when they write: the embeddings, then layer by layer the heads and the MLP."""
    return sender != THE_INPUT, sender.layer, sender.head == MLP, sender.head


def at_gate(block: Block, of: int | Head, z: Tensor, gate: Tensor | float) -> Tensor:
    """Outputs `z[…, S, T, H, D]` of a layer's heads, or of an MLP or the embeddings as one head, at one gate."""
    if isinstance(gate, float) and gate == 1:
        return z
    assert not isinstance(block.references, ShortView), "edges refuse it"
    reference = None if block.references is None else block.references[of].to(z.device, z.dtype)
    mask = None if block.mask is None else block.mask.to(z.device)[:, :, None, None]
    number = torch.as_tensor(gate, device=z.device).to(z.dtype)
    return gated(z, number, reference, mask)


def module_at_gate(block: Block, of: Head, output: Tensor, gate: Tensor | float) -> Tensor:
    """The same for a module's output `[…, S, T, W]`."""
    return at_gate(block, of, output[..., None, :], gate)[..., 0, :]


def contributions(
    model: Model, parts: Parts, block: Block, senders: Sequence[Head], level: float = 1.0
) -> Contributions:
    """The streams and the senders' changes of a block of rows, with heads, MLPs and embeddings at the gate `level`.

    At level 1 a change is that of a full replacement. Below it is the change per unit of the sender's gate, which
    integrated gradients need.
    """
    return _ContributionPass(model, parts, block, senders, level).run()


class _ContributionPass:
    def __init__(
        self, model: Model, parts: Parts, block: Block, senders: Sequence[Head], level: float
    ) -> None:
        self.model, self.parts, self.block, self.level = model, parts, block, level
        nonlinear = [-1, *(part.layer for part in parts.blocks if not part.linear)]
        self.nonlinear = frozenset(nonlinear if level != 1 else ())
        """Layers whose senders' changes are slopes, -1 for the embeddings (nanochat has a norm after them). Where
        nothing bends what is added, a full replacement is the same."""
        self.of_layer: dict[int, list[Head]] = {}
        for sender in senders:
            # The embeddings write what block 0 reads, so they are ablated before it.
            layer = -1 if sender == THE_INPUT else sender.layer
            self.of_layer.setdefault(layer, []).append(sender)
        self.groups = 1 + max((len(some) for some in self.of_layer.values()), default=0)
        self.result = Contributions()

    def run(self) -> Contributions:
        blocks, size = self.model.hooks.blocks, self.block.size
        streams: dict[int, Edit] = {index: partial(self._begin, index) for index in range(len(blocks))}
        modules: dict[nn.Module, Edit] = {p.mlp: partial(self._mlp, p.layer) for p in self.parts.blocks}
        modules |= {module: partial(self._end, index) for index, module in enumerate(blocks)}
        if self.level != 1 or -1 in self.of_layer:
            modules[self.model.capabilities.embeddings] = self._embeddings
        rows = torch.arange(size, device=self.model.device)
        held = SharedRows(rows, rows.repeat(self.groups))
        ids = self.block.tensors["ids"].repeat(self.groups, 1)
        # A tensor with as many rows as tokens could not be told apart.
        parts = {p.mlp: held for p in self.parts.blocks} if len(ids) != ids.shape[1] else {}
        last = self.parts.last
        request = Pass(ids=ids, streams=streams, heads=self._heads, modules=modules, parts=parts, last=last)
        # A held MLP needs no slope, and not every family's has one.
        held_modules = [p.mlp for p in self.parts.blocks if p.layer in self.nonlinear]
        with dual_level() if self.nonlinear else nullcontext(), hooked(held_modules, before=_without_slopes):
            self.model.run_whole(request)
        return self.result

    def _embeddings(self, output: Tensor) -> Tensor:
        return self._ablated_module(-1, THE_INPUT, output)

    def _begin(self, index: int, stream: Tensor) -> Tensor:
        if index == 0:
            self._note(-1, stream)
        plain = _values(stream)[: self.block.size]
        self.result.streams.append(plain)
        return plain.repeat(self.groups, 1, 1)

    def _heads(self, layer: int, z: Tensor) -> Tensor:
        plain = z[: self.block.size]
        groups = at_gate(self.block, layer, plain, self.level).repeat(self.groups, 1, 1, 1, 1)
        changed, moved = self._changed(layer, groups), self._moved(layer, layer, plain)
        for group, sender in enumerate(self.of_layer.get(layer, ()), 1):
            if sender.head >= 0:
                changed[group, :, :, sender.head] = moved[:, :, sender.head]
        return self._with(layer, groups, changed).flatten(0, 1)

    def _mlp(self, layer: int, output: Tensor) -> Tensor:
        return self._ablated_module(layer, Head(layer, MLP), output)

    def _ablated_module(self, layer: int, component: Head, output: Tensor) -> Tensor:
        plain = _values(by_token(output, self.groups * self.block.size)[: self.block.size])[:, :, None]
        groups = at_gate(self.block, component, plain, self.level)[:, :, 0].repeat(self.groups, 1, 1, 1)
        changed = self._changed(layer, groups)
        for group, sender in enumerate(self.of_layer.get(layer, ()), 1):
            if sender == component:
                changed[group] = self._moved(layer, component, plain)[:, :, 0]
        return self._with(layer, groups, changed).reshape(output.shape)

    def _changed(self, layer: int, groups: Tensor) -> Tensor:
        """What is edited where a sender is replaced: the outputs of all groups, or their slopes."""
        return torch.zeros_like(groups) if layer in self.nonlinear else groups

    def _moved(self, layer: int, of: int | Head, plain: Tensor) -> Tensor:
        """Outputs at a gate lower by 1; their slope is the way to the reference."""
        if layer in self.nonlinear:
            return at_gate(self.block, of, plain, 0.0) - plain
        return at_gate(self.block, of, plain, self.level - 1)

    def _with(self, layer: int, groups: Tensor, changed: Tensor) -> Tensor:
        return make_dual(groups, changed) if layer in self.nonlinear else groups

    def _end(self, index: int, output: Tensor) -> Tensor:
        self._note(index, output)
        if index == self.parts.last:
            self.result.streams.append(_values(output)[: self.block.size].clone())
        return _values(output)

    def _note(self, layer: int, stream: Tensor) -> None:
        """Keep what the senders of a layer change in the stream."""
        size = self.block.size
        for group, sender in enumerate(self.of_layer.get(layer, ()), 1):
            rows = slice(group * size, (group + 1) * size)
            if layer in self.nonlinear:
                self.result.deltas[sender] = unpack_dual(stream).tangent[rows].clone()
            else:
                self.result.deltas[sender] = stream[rows] - stream[:size]


def _values(tensor: Tensor) -> Tensor:
    """A tensor without the slopes that it may carry."""
    values: Tensor = unpack_dual(tensor).primal
    return values


def _without_slopes(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    plain = [_values(one) if isinstance(one, Tensor) else one for one in (*args, *kwargs.values())]
    return tuple(plain[: len(args)]), dict(zip(kwargs, plain[len(args) :], strict=True))


# ---- what the slots of one block see of a sender ---------------------------------------------------------
# The queries, keys, values and MLP outputs of one block when one sender is replaced on the stream that it reads. One
# pass begins at the block. Group 0 of its rows reads the plain stream x, every other group x + Δ of one sender. What
# differs in a group's query, key or value from group 0 is what the receiver's slot sees of the sender. For the MLP,
# head outputs are held at those of group 0; for a head of the same block its own output is replaced instead of the
# stream.


def slot_changes(
    model: Model,
    part: BlockParts,
    block: Block,
    plain: Contributions,
    senders: Sequence[tuple[Head, Tensor | None]],
    wanted: set[str],
) -> dict[str, Tensor]:
    """What each sender changes in one block, which runs on the plain stream and on the stream changed by each.

    `Q`: `[U, S, H, T, D]`; `K`, `V`: `[U, S, KV, T, D]`; `MLP`: `[U, S, T, W]`.

    senders: each with the positions `[S, T]` it is replaced at, None for all that the reference acts on.
    wanted: the slots whose changes are kept.
    """
    size, groups = block.size, 1 + len(senders)
    found: dict[str, Tensor] = {}

    def note(layer: int, slots: Slots) -> None:
        for name, tensor in zip("QKV", slots, strict=True):
            if layer == part.layer and name in wanted:
                found[name] = _against_first(tensor, size)

    def hold(layer: int, z: Tensor) -> Tensor | None:
        if layer != part.layer:
            return None
        first = z[:size]
        rows = [first.clone() for _ in range(groups)]
        for group, (sender, where) in enumerate(senders, 1):
            if sender.layer == layer and sender.head >= 0:
                ablated = at_gate(block, layer, first, 0.0)
                if where is not None:
                    ablated = torch.where(where.to(z.device)[:, :, None, None], ablated, first)
                rows[group][:, :, sender.head] = ablated[:, :, sender.head]
        return torch.cat(rows)

    def note_mlp(output: Tensor) -> None:
        found["MLP"] = _against_first(by_token(output, groups * size), size)

    with_mlp = "MLP" in wanted
    modules: dict[nn.Module, Edit] = {part.mlp: note_mlp} if with_mlp else {}
    ids = block.tensors["ids"].repeat(groups, 1)
    stream = torch.cat([plain.streams[part.layer], *(_changed(plain, part, *one) for one in senders)])
    begun = begin_at(part.layer, ids, stream)
    if not with_mlp:
        begun |= unread(part.mlp, ids)
    request = Pass(
        ids=ids, slots=note, heads=hold if with_mlp else None, modules=modules, last=part.layer, **begun
    )
    model.run_whole(request)
    return found


def begin_at(index: int, ids: Tensor, stream: Tensor) -> dict[str, Any]:
    """What lets a pass over `ids[B, T]` begin at a block with `stream[B, T, W]`, as fields of `Pass`.

    The blocks before it compute one row, which nobody reads; masks and positions are the model's own.
    """
    one = _one_row(ids)
    return {"streams": {index: lambda _: stream}, "shared": dict.fromkeys(range(index), one) if one else {}}


def unread(mlp: nn.Module, ids: Tensor) -> dict[str, Any]:
    """What lets an MLP whose output nobody reads compute one row of a pass over `ids[B, T]`, as fields of `Pass`."""
    one = _one_row(ids)
    return {"parts": {mlp: one} if one else {}}


def _one_row(ids: Tensor) -> SharedRows | None:
    """One computed row in place of all; None where as many rows as tokens could be taken for one another."""
    zero = torch.zeros(1, dtype=torch.long, device=ids.device)
    return SharedRows(zero, zero.expand(len(ids))) if len(ids) != ids.shape[1] else None


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
