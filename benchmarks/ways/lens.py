"""TransformerLens: a TransformerBridge and hooks on `hook_z`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from headwise.heads import Head
from ways import by_layer


class Lens:
    gradients = True

    def __init__(self, bridge: Any) -> None:
        self.bridge = bridge

    def logits(self, ids: Tensor, off: list[Head], narrow: bool) -> Tensor:
        def zeroed(heads: list[int]) -> Callable[..., Tensor]:
            def change(z: Tensor, hook: Any) -> Tensor:
                z[:, :, heads if len(heads) > 1 else heads[0]] = 0
                return z

            return change

        return self._last(ids, narrow, {layer: zeroed(heads) for layer, heads in by_layer(off).items()})

    def gated(self, ids: Tensor, gates: Tensor, narrow: bool) -> Tensor:
        def times(layer: int) -> Callable[..., Tensor]:
            return lambda z, hook: z * gates[:, None, layer, :, None].to(z.dtype)

        return self._last(ids, narrow, {layer: times(layer) for layer in range(self.bridge.cfg.n_layers)})

    def _last(self, ids: Tensor, narrow: bool, changes: dict[int, Callable[..., Tensor]]) -> Tensor:
        kept = {"logits_to_keep": 1} if narrow else {}
        hooks = [(f"blocks.{layer}.attn.hook_z", change) for layer, change in changes.items()]
        logits: Tensor = self.bridge.run_with_hooks(ids, fwd_hooks=hooks, **kept)
        return logits[:, -1].float()


def load(folder: str, device: str, dtype: torch.dtype) -> Lens:
    bridge = TransformerBridge.boot_transformers(folder, device=device, dtype=dtype)
    bridge.eval()
    for parameter in bridge.parameters():
        parameter.requires_grad_(False)
    return Lens(bridge)
