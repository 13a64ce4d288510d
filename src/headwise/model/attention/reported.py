"""Attention weights as a model itself reports them, for families that call no attention function.

Such a family runs once more in its eager form, and every map of every head is held for a moment: fit for
prompts, not for books. That the reported weights are those of the heads we reach is shown on the first layer,
where a token's value vector does not depend on the tokens before it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.forward.run import Pass
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.patch import attention_named

if TYPE_CHECKING:
    from headwise.model.model import Model

LARGEST = 2**30
"""Most numbers that the maps of all heads may take up at once: 4 GB in float32."""


def watchable(hooks: HeadHooks) -> HeadHooks | None:
    """A view of the same layers through their attention function, where they call one; else None.

    Some families call it and change its result before the output projection (by a norm over all heads). Their
    gates need the hook, their weights do not.
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


def reported_weights(model: Model, ids: Tensor) -> dict[int, Tensor]:
    """layer -> weights `[B, H, T, T]` of one run, shown on the first layer to be those of our heads."""
    _check_size(model, ids)
    with model.hooks.without_hooks():
        _check_first_layer(model)
    return _run(model, ids)


def _run(model: Model, ids: Tensor) -> dict[int, Tensor]:
    with torch.inference_mode(), _eager(model.hf):
        raw = model.run_whole(Pass(ids=ids.to(model.device), inputs={"output_attentions": True})).raw
    maps = [one for one in getattr(raw, "attentions", None) or () if one is not None]
    sites, (rows, length) = model.hooks.sites, ids.shape
    if [tuple(one.shape) for one in maps] != [(rows, site.heads, length, length) for site in sites]:
        raise HeadwiseError(
            f"{model.name} ({type(model.hf).__name__}) calls no attention function and reports no map for each of "
            f"its {len(sites)} layers, so its attention cannot be shown"
        )
    return {site.layer: one for site, one in zip(sites, maps, strict=True)}


def _check_size(model: Model, ids: Tensor) -> None:
    numbers = sum(site.heads for site in model.hooks.sites) * ids.numel() * ids.shape[1]
    if numbers > LARGEST:
        raise HeadwiseError(
            f"{type(model.hf).__name__} calls no attention function, so all maps of all heads are held at once: "
            f"{numbers / 2**28:.0f} GB for {ids.shape[1]} tokens; use a shorter prompt"
        )


def _check_first_layer(model: Model) -> None:
    """After [a, b] and after [c, b], weights and outputs must tell of the same value vector of b."""
    ids = torch.tensor([[3, 5], [4, 5]])
    site = model.hooks.sites[0]
    weights = _run(model, ids)[site.layer].double()  # 2, H, 2, 2
    seen: dict[int, Tensor] = {}

    def note(layer: int, z: Tensor) -> Tensor:
        seen[layer] = z.double()
        return z

    with torch.inference_mode(), _eager(model.hf):
        model.run_whole(Pass(ids=ids.to(model.device), heads=note))
    z = seen[site.layer].transpose(1, 2)  # 2, H, 2, D
    first = z[:, :, 0] / weights[:, :, 0, :1]  # the value vector of the first token: it sees only itself
    rest = z[:, :, 1] - weights[:, :, 1, :1] * first  # share of b × its value vector
    share = weights[:, :, 1, 1:]
    gap = float((rest[0] * share[1] - rest[1] * share[0]).abs().max())
    allowed = max(3e-5, 8 * torch.finfo(model.dtype).eps) * float(first.abs().max())
    if not gap <= allowed:
        raise HeadwiseError(
            f"the weights that {type(model.hf).__name__} reports do not give the outputs of its heads (off by "
            f"{gap:.2g} in the first layer), so they are not shown"
        )


def _eager(model: nn.Module) -> AbstractContextManager[None]:
    """While this holds, the model's configurations name the eager implementation: others report nothing."""
    return attention_named(model, lambda _: "eager")
