"""No library: forward hooks on the output projections of a transformers model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headwise.heads import Head
from ways import by_layer, plain_model


class Hooks:
    gradients = True

    def __init__(self, hf: Any) -> None:
        self.hf = hf
        config = hf.config
        self.size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def logits(self, ids: Tensor, off: list[Head], narrow: bool) -> Tensor:
        with self.without(off):
            return self._last(ids, narrow)

    def gated(self, ids: Tensor, gates: Tensor, narrow: bool) -> Tensor:
        def times(layer: int) -> Callable[[Tensor], Tensor]:
            def change(z: Tensor) -> Tensor:
                split = z.unflatten(-1, (-1, self.size))  # B, T, H, D
                return (split * gates[:, None, layer, :, None].to(z.dtype)).flatten(-2)

            return change

        with self._hooked({layer: times(layer) for layer in range(len(self.hf.model.layers))}):
            return self._last(ids, narrow)

    def _last(self, ids: Tensor, narrow: bool) -> Tensor:
        kept = {"logits_to_keep": 1} if narrow else {}
        last: Tensor = self.hf(input_ids=ids, use_cache=False, **kept).logits[:, -1]
        return last.float() if last.dtype in (torch.float16, torch.bfloat16) else last

    @contextmanager
    def without(self, off: list[Head]) -> Iterator[None]:
        """While this holds, the heads' columns of what the output projections read are 0."""

        def zeroed(heads: list[int]) -> Callable[[Tensor], Tensor]:
            # One head is a slice; several are one write into the split view.
            def change(z: Tensor) -> Tensor:
                z = z.clone()
                z.unflatten(-1, (-1, self.size))[..., heads if len(heads) > 1 else heads[0], :] = 0
                return z

            return change

        with self._hooked({layer: zeroed(heads) for layer, heads in by_layer(off).items()}):
            yield

    @contextmanager
    def _hooked(self, changes: dict[int, Callable[[Tensor], Tensor]]) -> Iterator[None]:
        handles = []
        for layer, change in changes.items():

            def before(
                _: nn.Module, args: tuple[Tensor], change: Callable[[Tensor], Tensor] = change
            ) -> tuple[Tensor]:
                return (change(args[0]),)

            projection = self.hf.model.layers[layer].self_attn.o_proj
            handles.append(projection.register_forward_pre_hook(before))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def load(folder: str, device: str, dtype: torch.dtype) -> Hooks:
    return Hooks(plain_model(folder, device, dtype))
