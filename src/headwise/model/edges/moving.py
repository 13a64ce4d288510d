"""The change of the stream by each sender where the MLPs between sender and receiver are computed again.

One pass begins at the first sender's block. Group 0 of its rows is the plain run; in every other group one sender is
replaced, all other heads keep the outputs of group 0, and MLPs read the changed stream (Wang et al. 2022, arXiv
2211.00593). What a group's stream has more than that of group 0 before the receiver's block is the sender's change.

S rows, T tokens, W width, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from headwise.heads import Head
from headwise.model.edges.contributions import THE_INPUT, Contributions, at_gate, module_at_gate
from headwise.model.edges.parts import Parts
from headwise.model.edges.slots import begin_at
from headwise.model.forward.gate import by_token
from headwise.model.forward.run import Edit, Pass
from headwise.model.measure.rows import Block
from headwise.names import MLP

if TYPE_CHECKING:
    from headwise.model.model import Model


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

    def hold(layer: int, z: Tensor) -> Tensor:
        if layer < first:  # nobody reads these blocks, and they may compute one row for all
            return z
        own = z[:size]
        rows = own.repeat(groups, 1, 1, 1, 1)
        for group, sender in enumerate(before, 1):
            if sender.layer == layer and sender.head >= 0:
                rows[group, :, :, sender.head] = at_gate(block, layer, own, 0.0)[:, :, sender.head]
        return rows.flatten(0, 1)

    def without(sender: Head) -> Edit:
        group = 1 + before.index(sender)

        def edit(output: Tensor) -> Tensor:
            rows = by_token(output, groups * size).clone()
            rows[group * size : (group + 1) * size] = module_at_gate(block, sender, rows[:size], 0.0)
            return rows.reshape(output.shape)

        return edit

    def note(output: Tensor) -> Tensor:
        found.append(output)
        return output

    mlps = {part.layer: part.mlp for part in parts.blocks}
    modules: dict[nn.Module, Edit] = {
        mlps[sender.layer]: without(sender) for sender in before if sender.head == MLP
    }
    modules[model.hooks.blocks[index - 1]] = note
    ids = block.tensors["ids"].repeat(groups, 1)
    begun = begin_at(first, ids, stream)
    model.run_whole(Pass(ids=ids, heads=hold, modules=modules, last=index - 1, **begun))
    after = found[0].unflatten(0, (groups, size))
    moved = {sender: after[group] - after[0] for group, sender in enumerate(before, 1)}
    return replace(plain, deltas={**plain.deltas, **moved})
