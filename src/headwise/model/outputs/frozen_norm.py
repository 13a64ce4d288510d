"""A norm as the linear map it is once its scale is held fixed.

A LayerNorm or RMSNorm divides each vector by its own size. With that divisor frozen, what is left is a weight
per coordinate, perhaps taking off the mean, perhaps a bias. Families store the weight in different ways, so
the form is not looked up by name: the one that reproduces what the module wrote is taken, or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class FrozenNorm:
    """y = scale · weight · (x, less its mean if `centred`) + bias. W width, B rows, P positions."""

    scale: Tensor  # B, P, 1
    weight: Tensor  # W
    bias: Tensor  # W
    centred: bool

    def transposed(self, direction: Tensor) -> Tensor:
        """The direction in x that reads what `direction[B, P, W]` reads in y, the bias aside."""
        back = self.scale * self.weight * direction
        return back - back.mean(-1, keepdim=True) if self.centred else back


def frozen_norm(norm: nn.Module, x: Tensor, y: Tensor) -> FrozenNorm | None:
    """The linear map by which `norm` took `x` to `y`; None if it is no norm over the last axis."""
    if x.shape != y.shape or list(norm.children()):
        return None
    room = rounding(y.dtype)
    x, y = x.double(), y.double()
    width = x.shape[-1]
    stored, bias = (_vector(norm, name, width, x.device) for name in ("weight", "bias"))
    weights = [torch.ones_like(x.flatten(0, -2)[0])] if stored is None else [stored, 1 + stored]
    offset = torch.zeros_like(weights[0]) if bias is None else bias
    best, least = None, room * float(y.norm())
    for weight in weights:
        for centred in (False, True):
            base = weight * (x - x.mean(-1, keepdim=True) if centred else x)
            size = (base * base).sum(-1, keepdim=True).clamp_min(1e-30)
            scale = (base * (y - offset)).sum(-1, keepdim=True) / size
            missed = float((scale * base + offset - y).norm())
            if missed <= least:
                best, least = FrozenNorm(scale, weight, offset, centred), missed
    return best


def rounding(dtype: torch.dtype) -> float:
    """What a few operations in this precision may lose, as a share of the size of what they compute."""
    if dtype in (torch.float16, torch.bfloat16):
        return 2 * torch.finfo(dtype).eps
    # Many families compute norms in float32 whatever the weights are in.
    return 16 * torch.finfo(torch.float32).eps


def _vector(module: nn.Module, name: str, width: int, device: torch.device) -> Tensor | None:
    value = getattr(module, name, None)
    if isinstance(value, Tensor) and value.shape == (width,):
        return value.detach().to(device).double()
    return None
