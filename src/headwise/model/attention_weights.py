"""The attention weights of every head, from the family's own eager function.

Fast attention functions never form the weights. For as long as it takes, the model's configurations name the
eager implementation, which does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.model.sparse import HARD

if TYPE_CHECKING:
    from headwise.model.load import Model


def attention_weights(model: Model, ids: Tensor) -> dict[int, Tensor]:
    """Each layer's attention `[B, H, T, T]` (query, key) on `ids[B, T]`; the upper triangle is 0.

    All layers at once: the caller sees to it that B · L · H · T² numbers fit.
    """
    with torch.no_grad(), _eager(model):
        given = model.hf(input_ids=ids.to(model.device), use_cache=False, output_attentions=True)
    weights = [w for w in getattr(given, "attentions", None) or () if w is not None]
    sites = model.reach.sites
    if len(weights) != len(sites) or any(
        w.shape[1] != site.heads or w.shape[2:] != (ids.shape[1],) * 2
        for w, site in zip(weights, sites, strict=True)
    ):
        raise HeadwiseError(
            f"{model.name} does not hand out its attention weights ({len(weights)} arrays for {len(sites)} layers "
            "with attention), so what its heads attend to cannot be seen"
        )
    return {site.layer: w.detach() for site, w in zip(sites, weights, strict=True)}


@contextmanager
def _eager(model: Model) -> Iterator[None]:
    """While this holds, the model computes attention in the plain way."""
    configs = {id(m.config): m.config for m in model.hf.modules() if hasattr(m, "config")}
    with ExitStack() as undo:
        for config in configs.values():
            own = getattr(config, "_attn_implementation_internal", None)
            if (
                own is not None and own != HARD
            ):  # edge gates hand out their weights, and eager has none of them
                # The internal field: the public setter would also overwrite sub-configurations.
                config._attn_implementation_internal = "eager"  # type: ignore[union-attr]
                undo.callback(setattr, config, "_attn_implementation_internal", own)
        yield
