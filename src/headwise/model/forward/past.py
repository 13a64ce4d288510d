"""Rows that begin alike: what their first tokens have computed is read from a KV cache, and only the rest is run.

A head that is gated at one position changes nothing at earlier tokens, because attention is causal. Many gates at a
position then need the tokens before it once. Whether that is exact for a model is not assumed:
`verify/decoding.py` compares.

V variants, S rows of a block, B = V·S rows of a batch, T tokens, t tokens of the past.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.model.forward.blocks import SharedRows
from headwise.model.forward.run import Pass, run
from headwise.model.sites.head_hooks import HeadHooks


@dataclass(frozen=True)
class Past:
    """Keys and values of the first t tokens of S rows, in every layer."""

    cache: type[Any]
    layers: list[tuple[Tensor, Tensor]]  # S, key/value heads, t, D

    @classmethod
    def read(cls, hooks: HeadHooks, ids: Tensor) -> Past:
        """Run the first tokens `ids[S, t]` of the rows, all gates at 1."""
        first = torch.zeros_like(ids[:, :1])
        output = run(hooks.model, Pass(ids=ids, scored=first, inputs={"use_cache": True}), hooks)
        cache = output.raw.past_key_values
        plain = {type(layer).__name__ for layer in cache.layers} == {"DynamicLayer"}
        if not plain or len(cache.layers) != len(hooks.blocks):
            raise ValueError("the cache holds something else than the keys and values of every block")
        return cls(type(cache), [(layer.keys, layer.values) for layer in cache.layers])

    def inputs(self, times: int, shared: Mapping[int, SharedRows], tokens: int) -> dict[str, Any]:
        """Arguments of the model for the next `tokens` of the rows, all of them repeated; `shared`: see `Pass`."""
        keys = self.layers[0][0]
        rows, t = torch.arange(len(keys), device=keys.device), keys.shape[2]
        cache = self.cache()
        for block, (keys, values) in enumerate(self.layers):
            chosen = shared[block].compute % len(rows) if block in shared else rows.repeat(times)
            cache.update(*(part.index_select(0, chosen.to(part.device)) for part in (keys, values)), block)
        places = torch.arange(t, t + tokens, device=keys.device)[None]
        return {"past_key_values": cache, "use_cache": True, "position_ids": places}
