"""log p of given tokens without ever holding all their logits, for models whose logits are a plain product.

The slope of log p by the last hidden state, the token's row of the unembedding less the expected row, is computed
along with the value, a few words of the vocabulary at a time, while their logits are there.
B rows, P positions, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.model.forward.products import product
from headwise.model.forward.unembed import logits_at
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
    handle = layer.register_forward_hook(lambda _, __, result: results.append(result))
    try:
        with torch.no_grad():
            logits = model(input_ids=probe_input(model), use_cache=False).logits
    finally:
        handle.remove()
    same = (
        len(results) == 1 and results[0].data_ptr() == logits.data_ptr() and results[0].shape == logits.shape
    )
    return layer if same else None


def target_logprobs(
    model: nn.Module,
    unembedding: nn.Linear,
    ids: Tensor,
    positions: Tensor,
    tokens: Tensor,
    tail: Sequence[nn.Module] = (),
    places: Tensor | None = None,
) -> Tensor:
    """log p of `tokens[B, P]` after the tokens at `positions[B, P]`; the other arguments are those of `logits_at`."""
    hidden: list[Tensor] = []

    def keep(last: Tensor) -> Tensor:
        hidden.append(last)
        return last

    had = vars(unembedding).get("forward")
    unembedding.forward = keep  # type: ignore[method-assign, assignment]
    try:
        logits_at(model, ids, positions, tail, places)
    finally:
        if had is None:
            del unembedding.forward
        else:
            unembedding.forward = had  # type: ignore[method-assign]
    logprobs: Tensor = _Logprobs.apply(hidden[0], unembedding.weight, unembedding.bias, tokens)
    return logprobs


class _Logprobs(torch.autograd.Function):
    """Of a frozen unembedding: no slope by its weight is wanted."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor) -> Tensor:
        rows, right = hidden.flatten(0, 1), tokens.flatten()
        slopes = weight[right]
        values = (rows * slopes).sum(-1)
        if bias is not None:
            values += bias[right]
        for part in (slice(first, first + POSITIONS) for first in range(0, len(rows), POSITIONS)):
            log_total, expected = _expected(rows[part], weight, bias)
            values[part] -= log_total
            slopes[part] -= expected
        ctx.save_for_backward(slopes)
        ctx.shape = hidden.shape
        return values.unflatten(0, tokens.shape)

    @staticmethod
    def backward(ctx: Any, *slope: Tensor) -> tuple[Tensor, None, None, None]:
        (slopes,) = ctx.saved_tensors
        return (slopes * slope[0].flatten()[:, None]).reshape(ctx.shape), None, None, None


def _expected(rows: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """log Σ exp of each row's logits `[P]`, and the mean row of the unembedding under their softmax `[P, W]`."""
    peak = rows.new_full((len(rows), 1), torch.finfo(rows.dtype).min)
    total, mean = torch.zeros_like(peak), torch.zeros_like(rows)
    for first in range(0, len(weight), WORDS):
        words = slice(first, first + WORDS)
        table = product(rows, weight[words], None if bias is None else bias[words])
        higher = torch.maximum(peak, table.amax(-1, keepdim=True))
        table.sub_(higher).exp_()
        shrink = (peak - higher).exp_()
        total.mul_(shrink).add_(table.sum(-1, keepdim=True))
        mean.mul_(shrink).add_(product(table, weight[words].t()))
        peak = higher
        del table  # before the next is made
    return (peak + total.log())[:, 0], mean / total
