"""Attention of packed rows, each row by itself.

transformers attends to packed rows with one mask over all pairs of tokens, most of it empty, and repeats keys and
values for every query head that shares them; autograd keeps the copies. Here each row is attended to alone, and
grouped keys and values are not repeated.

Whatever is not known to be that very attention is left to the family: another mask (a sliding window that cuts),
another implementation, another argument. H heads, N tokens of all rows, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_KNOWN = {"scaling", "dropout", "is_causal"}
_WITHOUT_EFFECT = {"position_ids", "cache_position", "past_key_values", "use_cache", "sliding_window"}
"""Arguments that transformers' "sdpa" function takes from a family and does not read."""


class RowAttention:
    """The attention function of one packed sequence whose tokens are numbered `place[N]`, from 0 in each row."""

    def __init__(self, place: Tensor) -> None:
        row = (place == 0).cumsum(0)
        order = torch.arange(len(row), device=row.device)
        self.visible = (row[:, None] == row) & (order[:, None] >= order)
        """`[N, N]`: which token attends to which."""
        self.lengths: list[int] = torch.bincount(row)[1:].tolist()
        self._same: dict[int, tuple[Tensor, bool]] = {}

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: dict[str, Any]
    ) -> Tensor | None:
        """z `[1, N, H, D]`, or None where this is not the attention that was asked for."""
        if not self._applies(query, key, value, mask, options):
            return None
        rows = zip(*(tensor.split(self.lengths, 2) for tensor in (query, key, value)), strict=True)
        scale = options.get("scaling")
        outputs = [
            scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
            for q, k, v in rows
        ]
        return torch.cat([z.transpose(1, 2) for z in outputs], 1)

    def _applies(self, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: dict[str, Any]) -> bool:
        further = {name for name, given in options.items() if given is not None} - _KNOWN - _WITHOUT_EFFECT
        return (
            not further
            and not options.get("dropout")
            and options.get("is_causal") is not False
            and query.shape[0] == 1
            and query.shape[2] == key.shape[2] == len(self.visible)
            and query.shape[3] == key.shape[3] == value.shape[3]
            and query.shape[1] % key.shape[1] == 0
            and self._same_mask(mask)
        )

    def _same_mask(self, mask: Any) -> bool:
        if not isinstance(mask, Tensor):
            return False
        if id(mask) not in self._same:  # the mask is kept, so that no other takes its id
            same = mask.dtype == torch.bool and mask.numel() == self.visible.numel()
            same = same and torch.equal(mask.reshape(self.visible.shape), self.visible)
            self._same[id(mask)] = (mask, same)
        return self._same[id(mask)][1]
