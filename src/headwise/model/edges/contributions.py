"""What every sender adds to the residual stream, and the stream that every block reads: one pass over some rows.

The rows stand in groups: group 0 is the plain run; in each block, every other group ablates one sender of that block.
Each block begins with the plain stream in all groups, and its MLP is held at its plain output. What a group's output
has more than that of group 0 is then the sender's change of the stream: Δ = contribution of the reference minus
contribution of the sender, through the model's own output projection and norms.

S rows, T tokens, W width, H heads, D head size, G groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headwise.heads import Head
from headwise.model.edges.parts import Parts
from headwise.model.forward.blocks import SharedRows
from headwise.model.forward.gate import by_token, gated
from headwise.model.forward.run import Edit, Pass
from headwise.model.measure.rows import Block
from headwise.names import INPUT, MLP

if TYPE_CHECKING:
    from headwise.model.model import Model

THE_INPUT = Head(0, INPUT)
_SMALL = 1 / 64
"""Step of a central difference by a gate: small against the curvature of a norm, large against rounding."""


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
    """Outputs `z[S, T, H, D]` of a layer's heads, or of an MLP or the embeddings as one head, at one gate."""
    if isinstance(gate, float) and gate == 1:
        return z
    reference = None if block.references is None else block.references[of].to(z.device, z.dtype)
    acts = None if block.acts is None else block.acts.to(z.device)[:, :, None, None]
    number = torch.as_tensor(gate, device=z.device).to(z.dtype)
    return gated(z, number, reference, acts)


def module_at_gate(block: Block, of: Head, output: Tensor, gate: Tensor | float) -> Tensor:
    """The same for a module's output `[S, T, W]`."""
    return at_gate(block, of, output[:, :, None], gate)[:, :, 0]


def contributions(
    model: Model, parts: Parts, block: Block, senders: Sequence[Head], level: float = 1.0
) -> Contributions:
    """The streams and the senders' changes of a block of rows, with heads, MLPs and embeddings at the gate `level`.

    At level 1 a change is that of a full replacement. Below it is the change per unit of the sender's gate, which
    integrated gradients need: exact where nothing bends what is added, else a central difference.
    """
    return _ContributionPass(model, parts, block, senders, level).run()


class _ContributionPass:
    def __init__(
        self, model: Model, parts: Parts, block: Block, senders: Sequence[Head], level: float
    ) -> None:
        self.model, self.parts, self.block, self.level = model, parts, block, level
        # What is added to a sender's gate, and the weight of the change that it makes.
        self.offsets = [(-1.0, 1.0)]
        if level != 1 and not parts.linear:
            self.offsets = [(-_SMALL, 0.5 / _SMALL), (_SMALL, -0.5 / _SMALL)]
        self.of_layer: dict[int, list[Head]] = {}
        for sender in senders:
            # The embeddings write what block 0 reads, so they are ablated before it.
            layer = -1 if sender == THE_INPUT else sender.layer
            self.of_layer.setdefault(layer, []).append(sender)
        most = max((len(some) for some in self.of_layer.values()), default=0)
        self.groups = 1 + most * len(self.offsets)
        self.made = Contributions()

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
        asked = Pass(ids=ids, streams=streams, heads=self._heads, modules=modules, parts=parts, last=last)
        self.model.run_whole(asked)
        return self.made

    def _embeddings(self, output: Tensor) -> Tensor:
        return self._ablated_module(-1, THE_INPUT, output)

    def _begin(self, index: int, stream: Tensor) -> Tensor:
        groups = stream.split(self.block.size)
        if index == 0:
            self._note(-1, groups)
        self.made.streams.append(groups[0])
        return groups[0].repeat(self.groups, 1, 1)

    def _heads(self, layer: int, z: Tensor) -> Tensor:
        plain = z[: self.block.size]
        groups = at_gate(self.block, layer, plain, self.level).repeat(self.groups, 1, 1, 1, 1)
        for group, sender, offset in self._ablated(layer):
            if sender.head >= 0:
                moved = at_gate(self.block, layer, plain, self.level + offset)
                groups[group, :, :, sender.head] = moved[:, :, sender.head]
        return groups.flatten(0, 1)

    def _mlp(self, layer: int, output: Tensor) -> Tensor:
        return self._ablated_module(layer, Head(layer, MLP), output)

    def _ablated_module(self, layer: int, component: Head, output: Tensor) -> Tensor:
        plain = by_token(output, self.groups * self.block.size)[: self.block.size]
        groups = [module_at_gate(self.block, component, plain, self.level)] * self.groups
        for group, sender, offset in self._ablated(layer):
            if sender == component:
                groups[group] = module_at_gate(self.block, component, plain, self.level + offset)
        return torch.cat(groups).reshape(output.shape)

    def _end(self, index: int, output: Tensor) -> Tensor:
        groups = output.split(self.block.size)
        self._note(index, groups)
        if index == self.parts.last:
            self.made.streams.append(groups[0].clone())
        return output

    def _note(self, layer: int, groups: Sequence[Tensor]) -> None:
        """Keep what the senders of a layer change in the stream."""
        weights = dict(self.offsets)
        for group, sender, offset in self._ablated(layer):
            change = weights[offset] * (groups[group] - groups[0])
            before = self.made.deltas.get(sender)
            self.made.deltas[sender] = change if before is None else before + change

    def _ablated(self, layer: int) -> list[tuple[int, Head, float]]:
        """(group, sender, what is added to its gate) of one layer."""
        pairs = [(sender, offset) for sender in self.of_layer.get(layer, ()) for offset, _ in self.offsets]
        return [(1 + number, sender, offset) for number, (sender, offset) in enumerate(pairs)]
