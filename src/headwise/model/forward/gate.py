"""Where a head's gate is applied: z' = g·z + (1 − g)·r, the one formula of every intervention.

V variants, S rows of a block, B = V·S rows of a batch, T tokens, N tokens of a packed sequence, L layers, H heads,
D head size. An MLP, or the embeddings, is treated as a layer of one head whose size is the width of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, where

from headwise.heads import Head
from headwise.model.forward.short_view import ShortView
from headwise.model.sites.attention_function import Attention, AttentionHook
from headwise.names import MLP

MakeAttention = Callable[[Tensor | None], AttentionHook]
"""From the mask of all tokens `[B, S]`, 0 where they are padding, to what attends in a pass."""


def gated(z: Tensor, gates: Tensor, reference: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Outputs under gates, exact at both ends: gate 1 leaves z, gate 0 gives the reference.

    All arguments broadcast against z. reference: what replaces an ablated head, None for zero. mask: True where gates
    act, None for everywhere.
    """
    replaced = gates * z
    if reference is not None:
        replaced = replaced + (1 - gates) * reference
    return replaced if mask is None else where(mask, replaced, z)


def per_query_head(gates: Tensor, groups: Tensor | None) -> Tensor:
    """Gates of key/value heads `[B, L, KV]` or `[B, L, KV, T]` as those of the query heads of their groups.

    groups: `[L, H]`, the key/value head of each query head; None where query heads have gates of their own.
    """
    if groups is None:
        return gates
    return gates[:, torch.arange(len(groups), device=groups.device)[:, None], groups]


@dataclass
class HeadGates:
    """The gates of one forward pass: edits the head outputs z of each layer (`Pass.heads`)."""

    values: Tensor
    """`[B, L, H]`, or `[1, L, H]` for the same gates in every row; of a packed sequence `[S, L, H]`. With components
    other than heads two columns more. `[B, L, H, T]` where every token has gates of its own."""
    layers: Collection[int] | None = None
    """Layers where some gate is not 1; None for all. The others are left alone."""
    reference: Mapping[Any, Tensor] | ShortView | None = None
    """Layer, MLP or input -> what replaces an ablated head, broadcastable to `[S, T, H, D]`; None for zero. A short
    view is computed in the pass, which needs `attention` for it (`Pass.attention`)."""
    mask: Tensor | None = None
    """`[S, T]`: where gates act; None for everywhere."""
    block: int = 1
    """S: reference and mask belong to this many rows, which the batch repeats V times."""
    rows: Mapping[int, Tensor] = field(default_factory=dict)
    """Layers that compute only some rows of the batch, their MLPs included: which."""
    packed: tuple[Tensor, Tensor] | None = None
    """The row and the position of every token `[N]`, where the rows are packed into one sequence."""
    _short: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    """Layer -> the heads' outputs under the short view, between the layer's attention and its gates."""

    def __call__(self, layer: int, z: Tensor) -> Tensor:
        if self.layers is not None and layer not in self.layers:
            return z
        if self.packed is not None:
            return self._packed(layer, z)
        gates = self.values[:, layer, : z.shape[2]]
        return self._gated(gates[self.rows[layer]] if layer in self.rows else gates, z, layer)

    @property
    def attention(self) -> MakeAttention | None:
        """What computes the short view beside each gated layer's attention; None for a reference that is stored."""
        return self._beside if isinstance(self.reference, ShortView) else None

    def _beside(self, mask: Tensor | None) -> AttentionHook:
        assert isinstance(self.reference, ShortView)
        view = self.reference.of(mask)

        def hook(layer: int, implementation: str, function: Attention) -> Attention:
            if self.layers is not None and layer not in self.layers:
                return function

            def attend(*call: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
                self._short[layer] = view.z(implementation, function, call, options)
                return function(*call, **options)

            return attend

        return hook

    def module(self, component: Head, output: Tensor) -> Tensor:
        """The output of an MLP or of the embeddings `[B, T, D]` under the gate of the component."""
        # With a list in place of the number, a CUDA graph could not be recorded.
        gates = self.values[:, component.layer, component.head, None]
        if component.head == MLP and component.layer in self.rows:
            gates = gates[self.rows[component.layer]]
        z = by_token(output, len(gates))[:, :, None]  # B, T, 1, D
        return self._gated(gates, z, component).reshape(output.shape)

    def _gated(self, gates: Tensor, z: Tensor, of: int | Head) -> Tensor:
        of_tokens = gates.transpose(1, 2) if gates.dim() == 3 else gates[:, None]  # B, T or 1, H
        g = of_tokens.to(z.device, z.dtype).unflatten(0, (-1, min(self.block, len(gates))))[..., None]
        mask = None if self.mask is None else self.mask.to(z.device)[None, :, :, None, None]
        split = z.unflatten(0, (-1, self.block))  # V, S, T, H, D
        return gated(split, g, self._reference(of, split), mask).flatten(0, 1)

    def _packed(self, layer: int, z: Tensor) -> Tensor:
        assert self.packed is not None
        row, position = self.packed
        g = self.values[:, layer, : z.shape[2]].index_select(0, row)[:, :, None].to(z.dtype)  # N, H, 1
        reference = self._reference(layer, z)
        if reference is not None and reference.dim() > 2:
            reference = reference[row, position] if reference.dim() == 4 else reference[position]
        mask = None if self.mask is None else self.mask[row, position][:, None, None]
        return gated(z[0], g, reference, mask)[None]

    def _reference(self, of: int | Head, z: Tensor) -> Tensor | None:
        if isinstance(self.reference, ShortView):
            assert not isinstance(of, Head), "only heads have a short view"
            return self._short.pop(of).reshape(z.shape)
        return None if self.reference is None else self.reference[of].to(z.device, z.dtype)


def by_token(output: Tensor, rows: int) -> Tensor:
    """A module's output as `[rows, T, D]`: OPT writes the tokens of all rows one behind the other."""
    return output.unflatten(0, (rows, -1)) if output.dim() == 2 else output


@dataclass
class Frozen:
    """Gates of a pass whose first S rows are the plain run; after the gates, some heads keep their output there.

    Freezing is the same formula with gate 0 and the head's plain output on the same prompt as reference.
    """

    gates: HeadGates
    values: Tensor
    """`[B, L, H]`: 0 for frozen heads, 1 for all others, and for all heads of the first S rows."""

    def __call__(self, layer: int, z: Tensor) -> Tensor:
        z = self.gates(layer, z)
        block = self.gates.block
        return HeadGates(self.values, reference={layer: z[:block]}, block=block)(layer, z)


def same_gates(gates: np.ndarray | Tensor) -> HeadGates:
    """One set of gates `[L, H]` for every row; ablated heads are replaced by zero."""
    values = torch.as_tensor(gates)
    changed = torch.nonzero((values != 1).any(1)).flatten().tolist()
    return HeadGates(values[None], layers=set(changed))
