"""nnsight: a traced forward pass that writes into the input of the output projections."""

from __future__ import annotations

from typing import Any

import torch
from nnsight import TransformersModel
from torch import Tensor

from headwise.heads import Head
from ways import by_layer


class Traced:
    gradients = True

    def __init__(self, model: Any) -> None:
        self.model = model
        config = model.config
        self.size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def logits(self, ids: Tensor, off: list[Head], narrow: bool) -> Tensor:
        model, size = self.model, self.size
        # A trace runs in the order of the model, so layers must come in order.
        columns = {
            layer: [head * size + i for head in heads for i in range(size)]
            if len(heads) > 1
            else slice(heads[0] * size, heads[0] * size + size)
            for layer, heads in sorted(by_layer(off).items())
        }
        with model.trace(ids, use_cache=False, **({"logits_to_keep": 1} if narrow else {})):
            for layer, which in columns.items():
                model.model.layers[layer].self_attn.o_proj.input[..., which] = 0
            last = model.lm_head.output[:, -1].save()
        return last.float()

    def gated(self, ids: Tensor, gates: Tensor, narrow: bool) -> Tensor:
        model, size = self.model, self.size
        with model.trace(ids, use_cache=False, **({"logits_to_keep": 1} if narrow else {})):
            for layer, block in enumerate(model.model.layers):
                z = block.self_attn.o_proj.input
                split = z.unflatten(-1, (-1, size))
                gate = gates[:, None, layer, :, None].to(z.dtype)
                block.self_attn.o_proj.input = (split * gate).flatten(-2)
            last = model.lm_head.output[:, -1].save()
        return last.float()


def load(folder: str, device: str, dtype: torch.dtype) -> Traced:
    model = TransformersModel(folder, task="text-generation", device_map=device, dtype=dtype, dispatch=True)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return Traced(model)
