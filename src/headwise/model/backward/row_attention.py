"""Attention of packed rows, each by itself, with no more remembered than there is.

transformers attends to packed rows in one table of all pairs of tokens, most of it masked, and repeats keys and values
for every query head that shares them; autograd keeps the copies. The same attention is taken here row by row, or,
where rows are so short that a call costs more than its table, in one table without the copies.

Whatever is not known to be that very attention is left to the family: another mask (a window that cuts), another
implementation, another argument, another device. H heads, N tokens of all rows, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_slopes = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

CALL = 1200
"""What one more call costs, in pairs of tokens."""
_SAID = {"scaling", "dropout", "is_causal"}
_OF_NO_EFFECT = {"position_ids", "cache_position", "past_key_values", "use_cache", "sliding_window"}
"""Arguments that transformers' function for this implementation takes from a family and does not read."""


class RowAttention:
    """The attention function of one packed sequence whose tokens are numbered `place[N]`, from 0 in each row."""

    def __init__(self, place: Tensor, by_row: bool | None = None) -> None:
        """by_row: whether each row gets a call of its own; by default where that is faster."""
        row = (place == 0).cumsum(0)
        order = torch.arange(len(row), device=row.device)
        self.seen = (row[:, None] == row) & (order[:, None] >= order)
        """`[N, N]`: which token sees which."""
        lengths = torch.bincount(row)[1:]
        self.lengths: list[int] = lengths.tolist()
        spared = len(row) ** 2 - int(lengths.square().sum())
        self.by_row = spared > CALL * len(lengths) if by_row is None else by_row
        self._added: Tensor | None = None
        self._same: dict[int, tuple[Tensor, bool]] = {}

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: dict[str, Any]
    ) -> Tensor | None:
        """z `[1, N, H, D]`, or None where this is not the attention that was asked for."""
        if not self._is_ours(query, key, value, mask, options):
            return None
        scale = options.get("scaling")
        if self.by_row:
            z: Tensor = _ByRow.apply(query, key, value, self.lengths, scale)
            return z
        if self._added is None:  # as numbers, which is what the library makes of it in every layer
            self._added = query.new_zeros(self.seen.shape).masked_fill_(~self.seen, -torch.inf)[None, None]
        z = functional.scaled_dot_product_attention(
            query, key, value, self._added, scale=scale, enable_gqa=True
        )
        return z.transpose(1, 2).contiguous()

    def _is_ours(self, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: dict[str, Any]) -> bool:
        tokens = len(self.seen)
        further = {name for name, given in options.items() if given is not None} - _SAID - _OF_NO_EFFECT
        return (
            not further
            and not options.get("dropout")
            and options.get("is_causal") is not False
            and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in (query, key, value))
            and query.shape[0] == 1
            and query.shape[2] == key.shape[2] == tokens
            and query.shape[3] == key.shape[3] == value.shape[3]
            and query.shape[1] % key.shape[1] == 0
            and self._same_mask(mask)
            and _shares_keys(query, key, value)
        )

    def _same_mask(self, mask: Any) -> bool:
        if not isinstance(mask, Tensor):
            return False
        if id(mask) not in self._same:  # the mask is kept, so that no other takes its number
            same = mask.dtype == torch.bool and mask.numel() == self.seen.numel()
            same = same and torch.equal(mask.reshape(self.seen.shape), self.seen)
            self._same[id(mask)] = (mask, same)
        return self._same[id(mask)][1]


def _shares_keys(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether this torch has a fast attention in which several query heads read the same keys."""
    chosen = torch._fused_sdp_choice(query, key, value, None, 0.0, True, enable_gqa=True)
    return bool(chosen == SDPBackend.FLASH_ATTENTION.value)


class _ByRow(torch.autograd.Function):
    """Causal attention of each row; remembers one tensor each for all rows, and keys and values unrepeated."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scale: float | None
    ) -> Tensor:
        rows = zip(*(tensor.split(lengths, 2) for tensor in (query, key, value)), strict=True)
        pairs = [_attend(*row, 0.0, True, scale=scale) for row in rows]
        z = torch.cat([one.transpose(1, 2) for one, _ in pairs], 1)
        ctx.save_for_backward(query, key, value, z, *(size for _, size in pairs))
        ctx.lengths, ctx.scale = lengths, scale
        return z

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, z, *sizes = ctx.saved_tensors
        whole = (slopes[0].transpose(1, 2), query, key, value, z.transpose(1, 2))
        rows = zip(*(tensor.split(ctx.lengths, 2) for tensor in whole), sizes, strict=True)
        found = zip(*(_slopes(*row, 0.0, True, scale=ctx.scale) for row in rows), strict=True)
        # Token by token in memory, as the products that come next read it.
        joined = (torch.cat([one.transpose(1, 2) for one in parts], 1).transpose(1, 2) for parts in found)
        return (*joined, None, None)
