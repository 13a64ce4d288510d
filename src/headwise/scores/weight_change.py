"""How much the weights of each head changed between two models of one architecture.

The weights of a head are its rows of the query projection, its columns of the output projection, and the rows of the
key and value projections that its group shares. L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.model import Model
from headwise.model.sites.probe import input_width, is_transposed
from headwise.model.sites.sites import Site

_SEPARATE = ("q_proj", "k_proj", "v_proj")
_FUSED = {"qkv_proj": "o_proj", "c_attn": "c_proj"}
"""One matrix with all queries, then all keys, then all values -> the output projection beside it. Other matrices have
these names too, with other orders."""


def weight_change(base: Model, tuned: Model) -> np.ndarray:
    """‖W_tuned − W_base‖ / ‖W_base‖ of every head (Frobenius norm), `[L, H]`; NaN where there is no head.

    Of a layer with an adapter that is not merged the effective weights count. Raises where weights cannot be read.
    """
    found = np.full(base.shape, np.nan)
    for site, other in zip(base.hooks.sites, tuned.hooks.sites, strict=True):
        changed, whole = np.zeros(site.heads), np.zeros(site.heads)
        parts = zip(_parts(base, site), _parts(tuned, other), strict=True)
        for (count, before), (other_count, after) in parts:
            if (count, before.shape) != (other_count, after.shape):
                raise HeadwiseError(
                    f"the projections of layer {site.layer} have other shapes in {tuned.name} than in {base.name}"
                )
            before, after = before.float(), after.to(before.device).float()
            for norms, matrix in ((changed, after - before), (whole, before)):
                squares = matrix.reshape(count, -1).square().sum(1).cpu().numpy()
                norms += np.repeat(squares, site.heads // count)  # a group's rows count for each of its heads
        found[site.layer, : site.heads] = np.sqrt(changed / np.where(whole > 0, whole, np.nan))
    return found


def _parts(model: Model, site: Site) -> Iterator[tuple[int, Tensor]]:
    """Each projection of a layer: how many heads or groups its rows belong to, and the rows, `[rows, ...]`."""
    output = site.projections[0]
    owners = [site.module, *(one for one in model.hf.modules() if output in one.children())]
    counts = (site.heads, site.kv_heads, site.kv_heads)
    for owner in owners:
        parts = [getattr(owner, name, None) for name in _SEPARATE]
        fused = next((getattr(owner, name) for name in _FUSED if _has(owner, name)), None)
        if all(isinstance(part, nn.Module) for part in parts):
            matrices = [_matrix(part, model) for part in parts]
        elif fused is not None:
            matrix = _matrix(fused, model)
            width = len(matrix) // sum(counts)
            matrices = list(matrix.split([count * width for count in counts]))
        else:
            continue
        rows = [*zip(counts, matrices, strict=True), (site.heads, _matrix(output, model).T)]
        if all(len(matrix) % count == 0 for count, matrix in rows):
            yield from rows
            return
    raise HeadwiseError(
        f"the query, key and value projections of {model.name} ({type(model.hf).__name__}) cannot be told apart"
    )


def _has(owner: nn.Module, name: str) -> bool:
    fused = getattr(owner, name, None)
    return (
        isinstance(fused, nn.Module)
        and hasattr(owner, _FUSED[name])
        and (name != "c_attn" or is_transposed(fused))
    )


def _matrix(projection: Any, model: Model) -> Tensor:
    """The weights `[out, in]` that a projection applies; with an adapter, packed or offloaded: found by applying it."""
    weight = getattr(projection, "weight", None)
    if type(projection) is nn.Linear and isinstance(weight, Tensor) and not weight.is_meta:
        return weight.detach()
    if is_transposed(projection) and isinstance(weight, Tensor) and not weight.is_meta:
        return weight.detach().T
    with torch.no_grad():
        one = torch.eye(input_width(projection), device=model.device, dtype=model.dtype)
        made: Tensor = projection(one) - projection(torch.zeros_like(one[:1]))
    return made.T
