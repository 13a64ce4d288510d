"""log p of given tokens without ever holding all their logits, for models whose logits are a plain product.

The gradient of log p by the last hidden state, the token's row of the unembedding less the expected row, is computed
along with the value, a part of the vocabulary at a time, while those logits are there.
B rows, P positions, W width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.model.forward.run import Pass, run
from headwise.model.sites.patch import hooked
from headwise.model.sites.probe import probe_input

POSITIONS, WORDS = 256, 4096
"""Logits of so many positions for so many words are held at a time: few words, so that their part of the unembedding
is still at hand when it is read for the second time."""


def plain_unembedding(model: nn.Module) -> nn.Linear | None:
    """The last layer of `model`, where its results are the logits: not scaled, capped or cut afterwards."""
    layer = model.get_output_embeddings()  # type: ignore[operator]
    if type(layer) is not nn.Linear or layer.weight.dtype not in (torch.float32, torch.float64):
        return None
    results: list[Tensor] = []
    with torch.no_grad(), hooked([layer], after=lambda _, __, ___, result: results.append(result)):
        logits = run(model, Pass(ids=probe_input(model))).logits
    same = (
        len(results) == 1 and results[0].data_ptr() == logits.data_ptr() and results[0].shape == logits.shape
    )
    return layer if same else None


def target_logprobs(hidden: Tensor, unembedding: nn.Linear, tokens: Tensor) -> Tensor:
    """log p of `tokens[B, P]`, from what the unembedding reads at their positions `[B, P, W]` (`Pass.hidden`)."""
    logprobs: Tensor = _Logprobs.apply(hidden, unembedding.weight, unembedding.bias, tokens)
    return logprobs


class _Logprobs(torch.autograd.Function):
    """Of a frozen unembedding: no gradient by its weight is computed."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor) -> Tensor:
        rows, right = hidden.flatten(0, 1), tokens.flatten()
        gradients = weight[right]
        values = (rows * gradients).sum(-1)
        if bias is not None:
            values += bias[right]
        for part in (slice(first, first + POSITIONS) for first in range(0, len(rows), POSITIONS)):
            log_total, expected = _expected(rows[part], weight, bias)
            values[part] -= log_total
            gradients[part] -= expected
        ctx.save_for_backward(gradients)
        ctx.shape = hidden.shape
        return values.unflatten(0, tokens.shape)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (gradients,) = ctx.saved_tensors
        return (gradients * gradient[0].flatten()[:, None]).reshape(ctx.shape), None, None, None


def _expected(rows: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """log Σ exp of each row's logits `[P]`, and the mean row of the unembedding under their softmax `[P, W]`."""
    peak = rows.new_full((len(rows), 1), torch.finfo(rows.dtype).min)
    total, mean = torch.zeros_like(peak), torch.zeros_like(rows)
    for first in range(0, len(weight), WORDS):
        words = slice(first, first + WORDS)
        table = functional.linear(rows, weight[words], None if bias is None else bias[words])
        higher = torch.maximum(peak, table.amax(-1, keepdim=True))
        table.sub_(higher).exp_()
        shrink = (peak - higher).exp_()
        total.mul_(shrink).add_(table.sum(-1, keepdim=True))
        mean.mul_(shrink).add_(table @ weight[words])
        peak = higher
        del table  # before the next is made
    return (peak + total.log())[:, 0], mean / total
