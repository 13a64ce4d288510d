"""pyvene: an intervenable model with one zero intervention per layer, on the chosen heads' columns."""

from __future__ import annotations

from typing import Any

import pyvene as pv
import torch
from torch import Tensor

from headwise.heads import Head
from ways import by_layer, plain_model


class Intervenable:
    gradients = False  # its interventions are given per unit, not per row and head

    def __init__(self, hf: Any) -> None:
        self.hf = hf
        config = hf.config
        self.size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def logits(self, ids: Tensor, off: list[Head], narrow: bool) -> Tensor:
        inputs = {"input_ids": ids, "use_cache": False, **({"logits_to_keep": 1} if narrow else {})}
        layers = by_layer(off)
        if not layers:
            plain: Tensor = self.hf(**inputs).logits
            return plain[:, -1].float()
        config = [
            {
                "layer": layer,
                "component": f"model.layers[{layer}].self_attn.o_proj.input",
                "intervention": self._zero(heads),
            }
            for layer, heads in layers.items()
        ]
        intervenable = pv.IntervenableModel(config, model=self.hf)
        _, found = intervenable(inputs)
        return found.logits[:, -1].float()

    def _zero(self, heads: list[int]) -> Any:
        size = self.size

        def zero(base: Tensor, source: Tensor | None, **_: Any) -> Tensor:
            changed = base.clone()
            changed.unflatten(-1, (-1, size))[..., heads if len(heads) > 1 else heads[0], :] = 0
            return changed

        return zero

    def gated(self, ids: Tensor, gates: Tensor, narrow: bool) -> Tensor:
        raise NotImplementedError


def load(folder: str, device: str, dtype: torch.dtype) -> Intervenable:
    return Intervenable(plain_model(folder, device, dtype))
