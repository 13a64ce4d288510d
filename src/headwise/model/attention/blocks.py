"""One batch through the model, and the attention weights of chosen heads, block by block.

The caller decides what it keeps of a block, so a long text needs no memory for whole maps.

Some families call no attention function. They run once more in their eager form and report the maps of all heads at
once, which takes memory for every map. That these are the weights of our heads is checked on the first layer, where a
token's value vector does not depend on the tokens before it.

B rows of a batch, h heads of one layer, t queries of a block, s keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.attention.weights import weight_blocks
from headwise.model.forward.run import Pass, run
from headwise.model.sites.attention_function import Call, HeadHook
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.patch import attention_named

if TYPE_CHECKING:
    from headwise.model.model import Model

Take = Callable[[list[int], int, Tensor], None]
"""Gets the indices of a layer's heads in the list of chosen heads, the first query's number, and the weights
`[B, h, t, s]`, which it may change; keys from s on have weight 0."""

LARGEST = 2**30
"""Maximum size of the reported maps of all heads, in numbers: 4 GB in float32."""


def watchable(hooks: HeadHooks) -> HeadHooks | None:
    """The same layers hooked at their attention function, where they call one; else None.

    Some families call it and change its result before the output projection (by a norm over all heads). Their
    gates need the projection hook, their weights do not.
    """
    if hooks.mechanism == "attention function":
        return hooks
    with hooks.without_hooks():
        try:
            other = HeadHooks(hooks.model, "attention function")
        except HeadwiseError:
            return None
    same = [(s.layer, s.heads) for s in other.sites] == [(s.layer, s.heads) for s in hooks.sites]
    return other if same else None


def attention_blocks(
    model: Model, watched: HeadHooks | None, ids: Tensor, heads: Sequence[Head], take: Take
) -> None:
    """One batch `[B, T]` through the model; `take` gets every block of the chosen heads' weights.

    watched: `watchable(model.hooks)`; where it is None, `take` gets the whole maps that the model reports. Layers
    after the last chosen head are not computed where the model allows it.
    """
    of_layer: dict[int, list[int]] = {}  # layer -> indices of its heads in `heads`
    for index, head in enumerate(heads):
        of_layer.setdefault(head.layer, []).append(index)
    if watched is None:
        maps = _reported_weights(model, ids)
        for layer, indices in of_layer.items():
            take(indices, 0, maps[layer][:, [heads[i].head for i in indices]])
        return
    seen: set[int] = set()

    def watch(layer: int, call: Call) -> None:
        if layer not in of_layer:
            return
        if layer in seen:
            raise HeadwiseError(
                f"layer {layer} of {model.name} calls its attention function several times per pass, so its heads "
                "have no single attention map"
            )
        seen.add(layer)
        for start, weights in weight_blocks(call, [heads[i].head for i in of_layer[layer]]):
            take(of_layer[layer], start, weights)

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


# ---- families that call no attention function -----------------------------------------------------------------


def _reported_weights(model: Model, ids: Tensor) -> dict[int, Tensor]:
    """layer -> weights `[B, H, T, T]` of one run, checked on the first layer."""
    numbers = sum(site.heads for site in model.hooks.sites) * ids.numel() * ids.shape[1]
    if numbers > LARGEST:
        raise HeadwiseError(
            f"{type(model.hf).__name__} calls no attention function, so all maps of all heads are held at once: "
            f"{numbers / 2**28:.0f} GB for {ids.shape[1]} tokens; use a shorter prompt"
        )
    with model.hooks.without_hooks():
        _check_first_layer(model)
    return _eager_maps(model, ids)


def _eager_maps(model: Model, ids: Tensor, hook: HeadHook | None = None) -> dict[int, Tensor]:
    """layer -> the weights that the model reports in its eager form; other forms report none."""
    asked = Pass(ids=ids.to(model.device), inputs={"output_attentions": True}, heads=hook)
    with torch.inference_mode(), attention_named(model.hf, lambda _: "eager"):
        raw = model.run_whole(asked).raw
    maps = [weights for weights in getattr(raw, "attentions", None) or () if weights is not None]
    sites, (rows, length) = model.hooks.sites, ids.shape
    if [tuple(weights.shape) for weights in maps] != [(rows, site.heads, length, length) for site in sites]:
        raise HeadwiseError(
            f"{model.name} ({type(model.hf).__name__}) calls no attention function and reports no map for each of "
            f"its {len(sites)} layers, so its attention cannot be shown"
        )
    return {site.layer: weights for site, weights in zip(sites, maps, strict=True)}


def _check_first_layer(model: Model) -> None:
    """After [a, b] and after [c, b], weights and outputs must give the same value vector of b."""
    outputs: dict[int, Tensor] = {}

    def note(layer: int, z: Tensor) -> Tensor:
        outputs[layer] = z.double()
        return z

    layer = model.hooks.sites[0].layer
    weights = _eager_maps(model, torch.tensor([[3, 5], [4, 5]]), note)[layer].double()  # 2, H, 2, 2
    z = outputs[layer].transpose(1, 2)  # 2, H, 2, D
    # The first token attends to itself alone, so this is its value vector.
    first = z[:, :, 0] / weights[:, :, 0, :1]
    rest = z[:, :, 1] - weights[:, :, 1, :1] * first  # weight of b × its value vector
    weight = weights[:, :, 1, 1:]
    gap = float((rest[0] * weight[1] - rest[1] * weight[0]).abs().max())
    allowed = max(3e-5, 8 * torch.finfo(model.dtype).eps) * float(first.abs().max())
    if not gap <= allowed:
        raise HeadwiseError(
            f"the weights that {type(model.hf).__name__} reports do not give the outputs of its heads (off by "
            f"{gap:.2g} in the first layer), so they are not shown"
        )
