"""A model in which only some edges are kept: a kept edge carries the sender's live output, a dropped one its reference.

Each receiver of a block reads a stream of its own: the live stream, plus the change of every sender whose edge to it is
dropped. One pass has a group of rows for each receiver of a block, and one for each sender, whose change is measured
on the block as in `contributions.py`, but on the live run of the circuit. Group 0 is the circuit itself: its queries,
keys and values are taken from the groups of their receivers, its MLP output from the group of the MLP.

V circuits, S rows, B = V·S rows of a group, T tokens, W width, U senders, R receivers, N edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from headwise.heads import Head
from headwise.heads.edges import LOGITS, Edge, Receiver
from headwise.model.edges.contributions import THE_INPUT, at_gate, begin_at, module_at_gate, writing_order
from headwise.model.edges.parts import Parts, refused
from headwise.model.forward.gate import by_token
from headwise.model.forward.run import Edit, Pass, SharedRows
from headwise.model.measure.engine import Engine
from headwise.model.measure.rows import Block
from headwise.model.sites.attention_function import Slots
from headwise.names import MLP


class Circuits:
    """Runs a block of rows under several circuits at once."""

    def __init__(
        self, engine: Engine, parts: Parts, block: Block, edges: Sequence[Edge], spans: Mapping[str, Tensor]
    ) -> None:
        """edges: those that can be dropped; all others are always kept. spans: name -> positions `[S, T]`."""
        if not parts.linear:
            raise refused(
                engine.model,
                "a norm stands between its heads and the residual stream, so what a kept edge carries depends on the "
                "others (exact and gradient edges work)",
            )
        self.engine, self.model, self.parts, self.block = engine, engine.model, parts, block
        self.edges = list(edges)
        everywhere = torch.ones(block.size, block.length, dtype=torch.bool)
        self.spans = {name: at.to(self.model.device) for name, at in {"": everywhere, **spans}.items()}
        self.span_names = list(dict.fromkeys(edge.span for edge in edges))
        self.senders = sorted({edge.sender for edge in edges}, key=writing_order)
        self.receivers: dict[int, list[Receiver]] = {}
        for receiver in dict.fromkeys(edge.receiver for edge in edges):
            self.receivers.setdefault(receiver.layer, []).append(receiver)
        self.of_layer: dict[int, list[Head]] = {}
        for sender in self.senders:
            self.of_layer.setdefault(-1 if sender == THE_INPUT else sender.layer, []).append(sender)
        reading = max((len(some) for layer, some in self.receivers.items() if layer >= 0), default=0)
        sending = max((len(some) for some in self.of_layer.values()), default=0)
        self.first_sender = 1 + reading
        self.groups = 1 + reading + sending

    def values(self, keep: np.ndarray) -> np.ndarray:
        """The metric of every row under each of the circuits `keep[V, N]`: `[V, S]`."""
        self._begin_pass(keep)
        end = self._stream()  # B, T, W
        block, last = self.block, self.parts.last
        request = block.pass_(len(keep))
        # The last block runs once more, because its output is where a pass can take up a stream again.
        begun = begin_at(last, request.ids, end)
        modules: dict[nn.Module, Edit] = {self.model.hooks.blocks[last]: lambda output: end}
        whole = Pass(ids=request.ids, scored=request.scored, modules=modules, **begun)
        logits = self.model.run_whole(whole).logits
        values: np.ndarray = self.engine.read(block, logits, self.engine.plain_logits(block))[..., 0]
        self.engine.rows_spent += (self.groups - 1) * values.size
        return values

    def _begin_pass(self, keep: np.ndarray) -> None:
        self.copies, self.rows = len(keep), len(keep) * self.block.size
        place = {edge: number for number, edge in enumerate(self.edges)}
        device, dtype = self.model.device, self.model.dtype
        # receiver -> span -> which senders, in the order of `senders`, are dropped in each circuit: U, V
        self.dropped: dict[Receiver, dict[str, Tensor]] = {}
        for receiver in (receiver for some in self.receivers.values() for receiver in some):
            for span in self.span_names:
                numbers = [place.get(Edge(sender, receiver, span), -1) for sender in self.senders]
                gone = np.stack([~keep[:, n] if n >= 0 else np.zeros(len(keep), bool) for n in numbers])
                self.dropped.setdefault(receiver, {})[span] = torch.tensor(gone, device=device).to(dtype)
        self.changes: list[Tensor] = []  # of each sender so far, in the order of `senders`: V, S, T, W
        self.end: Tensor | None = None

    def _stream(self) -> Tensor:
        """What the final norm reads `[B, T, W]`."""
        blocks = self.model.hooks.blocks
        modules: dict[nn.Module, Edit] = {
            part.mlp: partial(self._mlp, part.layer) for part in self.parts.blocks
        }
        modules |= {module: partial(self._finish, index) for index, module in enumerate(blocks)}
        if -1 in self.of_layer:
            modules[self.model.capabilities.embeddings] = self._embeddings
        streams: dict[int, Edit] = {index: partial(self._begin, index) for index in range(len(blocks))}
        ids = self.block.tensors["ids"].repeat(self.copies * self.groups, 1)
        computed = {part.mlp: self._mlp_rows(part.layer) for part in self.parts.blocks}
        parts = computed if len(ids) != ids.shape[1] else {}
        last = self.parts.last
        self.model.run_whole(
            Pass(
                ids=ids,
                streams=streams,
                slots=self._slots,
                heads=self._heads,
                modules=modules,
                parts=parts,
                last=last,
            )
        )
        assert self.end is not None
        return self.end

    # ---- what a block reads ------------------------------------------------------------------------------

    def _begin(self, index: int, stream: Tensor) -> Tensor:
        groups = stream.split(self.rows)
        live = groups[0]
        if index == 0:
            self._note(-1, groups)
        read = [live] * self.groups
        for group, receiver in enumerate(self.receivers.get(index, ()), 1):
            read[group] = self._seen(live, receiver)
        return torch.cat(read)

    def _seen(self, live: Tensor, receiver: Receiver) -> Tensor:
        """The stream that a receiver reads: dropped edges of earlier senders carry their reference."""
        if not self.changes:
            return live
        seen = live.unflatten(0, (self.copies, -1))  # V, S, T, W
        for span, gone in self.dropped[receiver].items():
            gone = gone[: len(self.changes)]
            some = torch.nonzero(gone.any(1)).flatten().tolist()
            if some:
                change = torch.stack([gone[n][:, None, None, None] * self.changes[n] for n in some]).sum(0)
                seen = seen + change * self.spans[span][:, :, None]
        return seen.flatten(0, 1)

    def _slots(self, layer: int, slots: Slots) -> Slots:
        q, k, v = (tensor.clone() for tensor in slots)
        of_slot = {"Q": q, "K": k, "V": v}
        for group, receiver in enumerate(self.receivers.get(layer, ()), 1):
            if receiver.slot in of_slot:
                tensor = of_slot[receiver.slot]
                rows = slice(group * self.rows, (group + 1) * self.rows)
                tensor[: self.rows, receiver.head] = tensor[rows, receiver.head]
        return q, k, v

    # ---- what a block writes -----------------------------------------------------------------------------

    def _heads(self, layer: int, z: Tensor) -> Tensor:
        live = z[: self.rows]
        groups = live.repeat(self.groups, 1, 1, 1, 1)
        ablated = at_gate(self.block, layer, live.unflatten(0, (self.copies, -1)), 0.0).flatten(0, 1)
        for group, sender in enumerate(self.of_layer.get(layer, ()), self.first_sender):
            if sender.head >= 0:
                groups[group, :, :, sender.head] = ablated[:, :, sender.head]
        mlp = Receiver(layer, -1, "MLP")
        if mlp in self.receivers.get(layer, ()):
            group = 1 + self.receivers[layer].index(mlp)
            groups[group] = self._own_heads_dropped(mlp, live, ablated)
        return groups.flatten(0, 1)

    def _own_heads_dropped(self, mlp: Receiver, live: Tensor, ablated: Tensor) -> Tensor:
        """Head outputs of which the block's own MLP sees the reference where their edge to it is dropped."""
        seen = live.unflatten(0, (self.copies, -1)).clone()  # V, S, T, H, D
        instead = ablated.unflatten(0, (self.copies, -1))
        for number, sender in enumerate(self.senders):
            if sender.layer != mlp.layer or sender.head < 0:
                continue
            for span, gone in self.dropped[mlp].items():
                drop = gone[number].bool()[:, None, None, None] & self.spans[span][None, :, :, None]
                seen[..., sender.head, :] = torch.where(
                    drop, instead[..., sender.head, :], seen[..., sender.head, :]
                )
        return seen.flatten(0, 1)

    def _mlp_rows(self, layer: int) -> SharedRows:
        """An MLP computes the rows of its own group, and all groups take its output."""
        mlp = Receiver(layer, -1, "MLP")
        receivers = self.receivers.get(layer, ())
        group = 1 + list(receivers).index(mlp) if mlp in receivers else 0
        rows = torch.arange(self.rows, device=self.model.device)
        return SharedRows(rows + group * self.rows, rows.repeat(self.groups))

    def _mlp(self, layer: int, output: Tensor) -> Tensor:
        rows = by_token(output, self.groups * self.rows)
        shared = self._mlp_rows(layer)
        live = rows.index_select(0, shared.compute)
        return self._module(layer, Head(layer, MLP), live).reshape(output.shape)

    def _embeddings(self, output: Tensor) -> Tensor:
        live = by_token(output, self.groups * self.rows)[: self.rows]
        return self._module(-1, THE_INPUT, live).reshape(output.shape)

    def _module(self, layer: int, component: Head, live: Tensor) -> Tensor:
        groups = [live] * self.groups
        for group, sender in enumerate(self.of_layer.get(layer, ()), self.first_sender):
            if sender == component:
                split = live.unflatten(0, (self.copies, -1))
                groups[group] = module_at_gate(self.block, component, split, 0.0).flatten(0, 1)
        return torch.cat(groups)

    def _finish(self, index: int, output: Tensor) -> None:
        groups = output.split(self.rows)
        self._note(index, groups)
        if index == self.parts.last:
            live = groups[0]
            self.end = self._seen(live, LOGITS) if LOGITS in self.dropped else live.clone()

    def _note(self, layer: int, groups: Sequence[Tensor]) -> None:
        for group, _ in enumerate(self.of_layer.get(layer, ()), self.first_sender):
            self.changes.append((groups[group] - groups[0]).unflatten(0, (self.copies, -1)))
