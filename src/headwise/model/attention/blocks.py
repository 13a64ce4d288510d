"""One batch through the model, and the attention weights of chosen heads handed out block by block.

What rows, columns, profiles and patterns of attention have in common: nobody but the taker decides what is kept
of a block, so a long text never holds a map.

B rows of a batch, h heads of one layer, t queries of a block, s keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.attention.reported import reported_weights
from headwise.model.attention.weights import weight_blocks
from headwise.model.forward.run import Pass, run
from headwise.model.sites.attention_function import Call
from headwise.model.sites.head_hooks import HeadHooks

if TYPE_CHECKING:
    from headwise.model.model import Model

Take = Callable[[list[int], int, Tensor], None]
"""Gets the places of a layer's heads among the chosen ones, the number of the first query, and the weights
`[B, h, t, s]`, which it may change; keys from s on have weight 0."""


def attention_blocks(
    model: Model, watched: HeadHooks | None, ids: Tensor, heads: Sequence[Head], take: Take
) -> None:
    """One batch `[B, T]` through the model; `take` is given every block of the chosen heads' weights.

    `watched` is what `watchable(model.reach)` gave; where it is None, the maps the model reports are handed out
    whole. Layers after the last chosen head are not computed where the model allows it.
    """
    of_layer: dict[int, list[int]] = {}  # layer -> places of its heads among the chosen ones
    for place, head in enumerate(heads):
        of_layer.setdefault(head.layer, []).append(place)
    if watched is None:
        for layer, weights in reported_weights(model, ids).items():
            if layer in of_layer:
                places = of_layer[layer]
                take(places, 0, weights[:, [heads[p].head for p in places]])
        return
    seen: set[int] = set()

    def watch(layer: int, call: Call) -> None:
        places = of_layer.get(layer)
        if places is None:
            return
        if layer in seen:
            raise HeadwiseError(
                f"layer {layer} of {model.name} calls its attention function several times per pass, so its heads "
                "have no single attention map"
            )
        seen.add(layer)
        for start, weights in weight_blocks(call, [heads[p].head for p in places]):
            take(places, start, weights)

    last = max(site.block for site in watched.sites if site.layer in of_layer)
    once = all(site.calls == 1 for site in watched.sites)
    asked = Pass(
        ids=ids.to(model.device),
        scored=torch.zeros(len(ids), 1, dtype=torch.long),
        watch=watch,
        last=last if once else None,
    )
    with torch.inference_mode():
        run(model.hf, asked, watched)
