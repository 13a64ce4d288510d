"""log p of given tokens, with a backward pass that holds one table of the vocabulary's size beside the logits.

torch's log_softmax would hold four. B rows, P positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CPU_NUMBERS, DEVICE_NUMBERS = 2**20, 2**27
"""Logits per chunk: few enough for the cache of a CPU, many enough to fill an accelerator."""


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """log softmax of `logits[B, P, vocabulary]` at `tokens[B, P]`."""
    if torch.is_grad_enabled() and logits.requires_grad:
        differentiable: Tensor = _TokenLogprobs.apply(logits, tokens)
        return differentiable
    return _at(logits, tokens) - logits.logsumexp(-1)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor) -> Tensor:
        total = logits.new_empty(tokens.shape)
        flat, flat_total = logits.flatten(0, 1), total.flatten()
        for part in _parts(flat):
            flat_total[part] = flat[part].logsumexp(-1)
        ctx.save_for_backward(logits, tokens, total)
        return _at(logits, tokens) - total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """gradient · (1 at the token − softmax)."""
        logits, tokens, total = ctx.saved_tensors
        logit_gradients = logits.new_empty(logits.shape)  # one block, however the logits lie
        flat, flat_gradients = logits.flatten(0, 1), logit_gradients.flatten(0, 1)
        for part in _parts(flat):
            rows = flat_gradients[part]
            torch.sub(flat[part], total.flatten()[part, None], out=rows)
            rows.exp_().mul_(-gradient.flatten()[part, None])
        logit_gradients.scatter_add_(2, tokens[:, :, None], gradient[:, :, None])
        return logit_gradients, None


def _at(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.gather(2, tokens[:, :, None])[:, :, 0]


def _parts(flat: Tensor) -> Iterator[slice]:
    """Rows of `flat[rows, vocabulary]` a few at a time."""
    numbers = CPU_NUMBERS if flat.device.type == "cpu" else DEVICE_NUMBERS
    step = max(1, numbers // flat.shape[1])
    for first in range(0, len(flat), step):
        yield slice(first, first + step)
