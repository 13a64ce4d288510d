"""What a head copies from a token when nothing but the token's embedding is known: the OV circuit of its weights.

A prompt of one token attends only to itself, so a head's output there is its value vector. With the token's embedding
in place of the residual stream before the head's block, this is norm, value projection and head split of the family
itself; grouped keys and values, biases and fused projections need no code of their own (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits").

N tokens, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.model.forward.run import Pass
from headwise.model.sites.patch import hooked

if TYPE_CHECKING:
    from headwise.model.model import Model


def value_outputs(model: Model, layer: int, tokens: Sequence[int]) -> Tensor:
    """The output `[N, H, D]` of a layer's heads that attend to each token alone, read from its embedding.

    With learned positions the embedding includes that of the first position.
    """
    block = next(site.block for site in model.hooks.sites if site.layer == layer)
    embeddings: list[Tensor] = []
    outputs: dict[int, Tensor] = {}

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        embeddings.append(args[0] if args else kwargs["hidden_states"])

    def swap(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = embeddings[0].to((args[0] if args else kwargs["hidden_states"]).device)
        return ((first, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": first})

    def note(at: int, z: Tensor) -> Tensor:
        outputs[at] = z.detach()
        return z

    blocks = model.hooks.blocks
    ids = torch.tensor(tokens, device=model.device)[:, None]
    with torch.no_grad(), hooked(blocks[:1], before=keep), hooked([blocks[block]], before=swap):
        model.run_whole(Pass(ids=ids, heads=note, last=block))
    return outputs[layer][:, 0]
