"""Attention that sees the first `sink` tokens of a row and the last `window`: the reference `window`, and the heads of
a streaming cache.

It runs through the family's own function, so that scaling, soft-capping and sinks are the model's own; a mask of the
model (a sliding window, padding) still holds. The keys of a chunk of queries are cut out before attention: cost and
memory grow with the number of tokens, not with its square.

B rows, Q query heads, K key/value heads, T tokens that attend, S tokens that they may see (the last T of them their
own), D head size. *Places* count the tokens of a row from its first real one; padding before it has negative places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headwise.model.sites.attention_function import Attention, Slots, own_attention
from headwise.names import WINDOW, reference_name

Attend = Callable[..., Tensor]
"""From query, key, value, and what may be seen `[B or 1, 1, T, S]` (None: everything) to z `[B, T, Q, D]`. As a further
argument the model's own mask, which then holds too."""


def masked_attention(
    implementation: str, function: Attention, module: nn.Module, options: dict[str, Any]
) -> Attend:
    """A layer's own attention under masks of ours."""
    if "flash" in implementation or "flex" in implementation:  # they take no mask of ours
        # Of the other two, only the family's own eager function knows soft-capping and sinks.
        special = options.get("softcap") is not None or options.get("s_aux") is not None
        implementation = "eager" if special else "sdpa"
        function = own_attention(implementation, module)

    def attend(
        query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, model_mask: Any = None
    ) -> Tensor:
        mask = seen
        if isinstance(model_mask, Tensor) and seen is not None:
            cut = model_mask & seen if model_mask.dtype == torch.bool else None
            mask = model_mask.masked_fill(~seen, torch.finfo(model_mask.dtype).min) if cut is None else cut
        if implementation == "eager" and mask is not None and mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, torch.finfo(query.dtype).min).to(query.dtype)
        z: Tensor = function(module, query, key, value, mask, **options)[0]
        return z

    return attend


@dataclass(frozen=True)
class ShortView:
    """The reference `window`: what a head puts out if it sees the first `sink` tokens and the last `window`, its own
    included. It is computed in the pass itself, from that pass's queries, keys and values."""

    sink: int
    window: int
    places: Tensor | None = None
    """`[B, S]`, of all tokens so far; None where rows have no padding before them and all their keys are there."""
    padded: int = 0
    """Most tokens of padding before a row."""
    chunk: int = 512
    """Tokens whose view is computed at once."""

    @property
    def name(self) -> str:
        """As results name the reference."""
        return reference_name(WINDOW, self.window, self.sink)

    def of(self, attention_mask: Tensor | None) -> ShortView:
        """The same for rows with this mask `[B, S]`, 0 where tokens are padding."""
        if attention_mask is None:
            return self
        places = attention_mask.long().cumsum(1) - 1
        return replace(self, places=places, padded=int((places < 0).sum(1).max()))

    def z(
        self, implementation: str, function: Attention, call: tuple[Any, ...], options: dict[str, Any]
    ) -> Tensor:
        """z `[B, T, Q, D]` of a layer's call of the attention function: module, query, key, value and mask."""
        module, query, key, value, *rest = call
        options = dict(options)
        model_mask = rest[0] if rest else options.pop("attention_mask", None)
        total, places, dropped = key.shape[2], self.places, 0
        if places is None:
            places = torch.arange(total, device=query.device)[None]
        else:  # a layer with a sliding window may have dropped its first keys
            dropped = places.shape[1] - total
            places = places[:, dropped:].to(query.device)
        attend = masked_attention(implementation, function, module, options)
        model_mask = (
            model_mask[..., :total] if isinstance(model_mask, Tensor) and model_mask.dim() == 4 else None
        )
        sliding = None if model_mask is not None else options.get("sliding_window")
        always = max(0, self.padded + self.sink - dropped)
        return self.attended(attend, (query, key, value), places, always, model_mask, sliding)

    def attended(
        self,
        attend: Attend,
        slots: Slots,
        places: Tensor,
        always: int,
        model_mask: Tensor | None = None,
        sliding: int | None = None,
    ) -> Tensor:
        """z `[B, T, Q, D]` of the queries under the short view.

        places: `[B or 1, S]`. always: so many first keys are given to every chunk; the first `sink` tokens must be
        among them, where they are not among the last `window`. own: the model's mask `[B or 1, Q or 1, T, S]`;
        sliding: a window of the model's own that no mask says.
        """
        query, key, value = slots
        before, chunks = key.shape[2] - query.shape[2], []
        for low in range(0, query.shape[2], self.chunk):
            high = min(query.shape[2], low + self.chunk)
            first = min(always, before + high)
            parts = [(0, first), (max(first, before + low - self.window + 1), before + high)]
            if parts[1][0] == first:
                parts = [(0, before + high)]

            def columns(of: Tensor, dim: int, parts: list[tuple[int, int]] = parts) -> Tensor:
                cut = [of.narrow(dim, start, stop - start) for start, stop in parts]
                return cut[0] if len(cut) == 1 else torch.cat(cut, dim)

            at = columns(places, 1)[:, None]  # B, 1, s
            mine = places[:, before + low : before + high, None]  # B, t, 1
            seen = (at >= 0) & (at <= mine) & ((at < self.sink) | (mine - at < self.window))
            if sliding is not None:
                seen &= mine - at < sliding
            seen |= mine < 0  # padding sees anything, so that nothing is undefined; nobody reads it
            of_chunk = None if model_mask is None else columns(model_mask[:, :, low:high], 3)
            keys, values = columns(key, 2), columns(value, 2)
            chunks.append(attend(query[:, :, low:high], keys, values, seen[:, None], of_chunk))
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks, 1)
