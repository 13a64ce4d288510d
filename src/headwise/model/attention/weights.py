"""Attention weights of chosen heads, from what one call of the attention function was given.

Fused kernels never store the weights. The family's eager function is called again on the queries, keys and values of
the chosen heads, one block of queries after another. Queries and keys include the rotary embedding already;
soft-capping, sinks and scaling are part of the function; the mask is converted to the form it takes. Weights times
values must equal the head's output in every block, or the layer is refused.

B rows, H heads, h chosen heads, T queries, t queries of a block, S keys, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.sites.attention_function import Call, own_attention
from headwise.model.sparse.edge_gates import HARD

_BLOCK_CPU, _BLOCK_ACCELERATOR = 2**22, 2**26
"""Weights of a block, in numbers: small enough for a CPU's cache, large enough to fill an accelerator."""

_TIGHTEST = 3e-5
"""Allowed difference between output and weights × values, as a share of the largest value. Kernels that sum in
another order differ by a tenth of it in float32; a wrong mask or a lost cap, by a hundred times as much."""


def weight_blocks(call: Call, heads: Sequence[int], block: int | None = None) -> Iterator[tuple[int, Tensor]]:
    """(number of the first query, weights `[B, h, t, s]`) block by block; keys from s on have weight 0.

    `block`: queries at once; by default what suits the device. The weights may be changed in place.
    """
    if call.query.dim() != 4 or call.z.dim() != 4 or call.query.shape[1] != call.z.shape[2]:
        raise HeadwiseError(
            f"{type(call.module).__name__} calls its attention function with queries of shape "
            f"{tuple(call.query.shape)} for outputs of shape {tuple(call.z.shape)}, which cannot be assigned to heads"
        )
    total, queries, keys = call.query.shape[1], call.query.shape[2], call.key.shape[2]
    # A fused kernel keeps scores in float32 whatever the weights are in; the eager function would not.
    wide = call.query.dtype.itemsize < 4 and call.own != "eager"
    dtype = torch.float32 if wide else call.query.dtype
    chosen = torch.tensor(list(heads), device=call.query.device)
    of_key = chosen // (total // call.key.shape[1])  # key and value head of each chosen head
    of_value = chosen // (total // call.value.shape[1])
    q = call.query[:, chosen].to(dtype)  # B, h, T, D
    k, v = call.key[:, of_key].to(dtype), call.value[:, of_value].to(dtype)  # B, h, S, D
    # Edge gates are no business of the family's eager function; their own function hands out its weights.
    eager = own_attention(call.own if call.own == HARD else "eager", call.module)
    module = _OnlyTheseHeads(call.module, chosen, total)
    most = _BLOCK_CPU if call.query.device.type == "cpu" else _BLOCK_ACCELERATOR
    size = block or max(1, most // (len(q) * len(heads) * keys))
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        # Later keys cannot be reached: every loaded model has been shown to be causal.
        seen = stop if keys == queries else keys
        part = _Part(call, chosen, start, stop, seen)
        mask = _additive(part, dtype)
        options = {name: part.of(value) for name, value in call.options.items()}
        output, weights = eager(
            module, q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen], mask, **{**options, "dropout": 0.0}
        )
        yield start, _proven(part, output, weights, v[:, :, :seen])


class _OnlyTheseHeads:
    """An attention module as its eager function should see it when it gets some heads, each with its own keys."""

    def __init__(self, module: nn.Module, chosen: Tensor, total: int) -> None:
        self._module, self._chosen, self._total = module, chosen, total

    def __getattr__(self, name: str) -> Any:
        if name == "num_key_value_groups":
            return 1
        return _of_heads(getattr(self._module, name), self._chosen, self._total)


def _of_heads(value: Any, chosen: Tensor, total: int) -> Any:
    """The numbers of the chosen heads where `value` has one number per head, such as a sink; else `value` itself."""
    per_head = isinstance(value, Tensor) and value.dim() == 1 and len(value) == total
    return value[chosen.to(value.device)] if per_head else value


@dataclass(frozen=True)
class _Part:
    """Some heads and queries of a call, and the keys up to the last of these queries."""

    call: Call
    heads: Tensor
    start: int
    stop: int
    seen: int

    def of(self, value: Any) -> Any:
        """This part of anything that has an axis of heads, of queries or of keys; anything else unchanged."""
        (_, total, queries, _), keys = self.call.query.shape, self.call.key.shape[2]
        shape = value.shape if isinstance(value, Tensor) else ()
        if len(shape) != 4 or shape[2] not in (1, queries) or shape[3] not in (1, keys):
            return _of_heads(value, self.heads, total)
        if shape[1] == total > 1:
            value = value[:, self.heads.to(value.device)]
        if shape[2] > 1:
            value = value[:, :, self.start : self.stop]
        return value[..., : self.seen]

    def positions(self) -> tuple[Tensor, Tensor]:
        """The positions of the queries `[t, 1]` and of the keys `[1, s]`."""
        device, before = self.call.query.device, self.call.key.shape[2] - self.call.query.shape[2]
        query = torch.arange(self.start, self.stop, device=device) + before
        return query[:, None], torch.arange(self.seen, device=device)[None, :]


def _additive(part: _Part, dtype: torch.dtype) -> Tensor:
    """The mask of a part as the eager function takes it: 0 where allowed, very negative elsewhere."""
    call, mask, device = part.call, part.call.mask, part.call.query.device
    query, key = part.positions()
    if isinstance(mask, Tensor) and mask.dim() == 4:
        allowed = part.of(mask)
        if mask.dtype != torch.bool:
            return allowed.to(dtype)
    elif mask is None:
        allowed = key <= query
        window = call.options.get("sliding_window")
        if isinstance(window, int) and window > 0:
            allowed = allowed & (key > query - window)
        allowed = allowed[None, None]
    elif hasattr(mask, "mask_mod"):  # flex attention's BlockMask: a function of the row, head, query and key
        row = torch.arange(len(call.query), device=device)[:, None, None, None]
        head = part.heads[None, :, None, None]
        allowed = torch.as_tensor(mask.mask_mod(row, head, query[None, None], key[None, None]), device=device)
    else:
        kind = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"type {type(mask).__name__}"
        raise HeadwiseError(
            f"{type(call.module).__name__} under {call.own!r} uses a mask of {kind}, from which no weights can be "
            "computed; load the model with attn_implementation='sdpa' or 'eager'"
        )
    blocked = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)
    return torch.where(allowed, torch.zeros((), dtype=dtype, device=device), blocked)


def _proven(part: _Part, output: Tensor, weights: Tensor | None, v: Tensor) -> Tensor:
    """The weights, checked: the recomputed output equals z in every query, Σ weights · v equals it in the last."""
    call = part.call
    z = call.z[:, part.start : part.stop, part.heads].transpose(1, 2)  # B, h, t, D
    output = output.transpose(1, 2)
    if weights is None or weights.shape != (*z.shape[:3], part.seen) or output.shape != z.shape:
        raise HeadwiseError(
            f"the eager attention of {type(call.module).__name__} returns no weights of one number per head, query "
            "and key; its attention cannot be shown"
        )
    largest = float(v.abs().max())
    allowed = max(_TIGHTEST, 4 * torch.finfo(z.dtype).eps) * largest
    gap = _gap(torch.matmul(weights[:, :, -1:], v), output[:, :, -1:])
    if gap > allowed:
        # A sink may act as a factor on the output, after the weights were taken: then it belongs to the weights.
        plain = torch.matmul(weights, v)
        factor = (plain * output).sum(-1, keepdim=True) / (plain * plain).sum(-1, keepdim=True)
        weights = weights * factor
        gap = _gap(torch.matmul(weights, v), output)
    gap = float(np.maximum(gap, _gap(output, z)))  # unlike max, NaN wins
    if not gap <= allowed:
        raise HeadwiseError(
            f"the attention of {type(call.module).__name__} recomputed from its queries and keys does not give its "
            f"output under {call.own!r} (off by {gap:.2g} where values reach {largest:.2g}), so its weights would not "
            "be the model's own and are not shown"
        )
    return weights


def _gap(recomputed: Tensor, expected: Tensor) -> float:
    return float((recomputed.to(expected.dtype) - expected).abs().max())
