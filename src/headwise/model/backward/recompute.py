"""Activation checkpointing: which parts of a model a backward pass computes again instead of keeping them.

A gated feed-forward part keeps three tensors as wide as its hidden layer, together more than all else that autograd
keeps of a block. Computed again from the part's input they cost two of its three products; torch's checkpoint stops
there, because the third keeps nothing when weights are frozen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise.model.backward.packing import packed_probe
from headwise.model.backward.row_attention import RowAttention
from headwise.model.forward.gate import HeadGates
from headwise.model.forward.run import run
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.kinds import is_feed_forward

_ROUNDING = 1e-3
"""Most that logits and gradients may differ, as a part of the largest: gradients of nonsense are large, and so is
their last digit. What attends to the wrong tokens differs by about as much as there is."""


def feed_forward_parts(hooks: HeadHooks, share: float) -> list[nn.Module]:
    """The feed-forward parts of the first blocks, this share of all.

    The first ones, because by the time that they are computed again the later ones have been freed.
    """
    blocks = hooks.blocks[: round(share * len(hooks.blocks))]
    return [part for block in blocks for part in block.modules() if is_feed_forward(part)]


def low_memory_works(hooks: HeadHooks) -> bool:
    """Whether packed rows give the same logits and the same gradients by every gate with attention row by row and
    recomputation as without; weights are frozen meanwhile."""
    model = hooks.model
    packed = packed_probe(model)
    gates = torch.ones(int(packed.row.max()) + 1, *hooks.shape, device=packed.ids.device, requires_grad=True)
    heads = HeadGates(gates, packed=(packed.row, packed.place))

    def logits_and_gradients(**more: Any) -> tuple[Tensor, Tensor]:
        logits = run(model, packed.pass_(heads=heads, **more), hooks).logits
        picked = logits.log_softmax(-1).gather(2, packed.tokens[:, :, None])
        return logits.detach(), torch.autograd.grad(picked.sum(), gates)[0]

    try:
        with torch.enable_grad():
            plain = logits_and_gradients()
            ours = logits_and_gradients(
                attention=RowAttention(packed.place), recompute=feed_forward_parts(hooks, 1.0)
            )
    except Exception:  # a family that computes what is not expected of any
        return False
    return all(
        float((mine - expected).abs().max()) <= _ROUNDING * float(expected.abs().max())
        for mine, expected in zip(ours, plain, strict=True)
    )
