"""A few tokens on which a model is tried before anything is computed with it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.model.sites.devices import entry_device

SAME = 3
"""Tokens that the two rows of the probe have in common at their beginning."""
_CLEARLY, _FEW = 1 / 2, 1 / 4
"""A logit is clearly off if it moves by this share of the spread of its token's logits; so many may be."""


def probe_input(model: nn.Module) -> Tensor:
    """A few tokens that any vocabulary has, enough to make every layer run: two rows that begin alike and end
    differently, so that one pass shows whether later tokens reach earlier ones."""
    return torch.tensor([[3, 4, 5, 6, 7, 8], [3, 4, 5, 8, 7, 6]], device=entry_device(model))


def probe_logits(model: nn.Module) -> Tensor:
    """The logits `[2, T, vocabulary]` of the probe; half precision is widened."""
    with torch.no_grad():
        logits: Tensor = model(input_ids=probe_input(model), use_cache=False).logits
    return widened(logits)


def widened(values: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def rounding(model: nn.Module, values: Tensor, noise: float = 0.0) -> float:
    """What rounding alone may do to such values of a model when the same sum is taken in another order.

    noise: the largest difference between two runs of the same.
    """
    step = torch.finfo(weight_dtype(model)).eps
    return 4 * noise + 64 * step * max(1.0, float(values.abs().max()))


def differ_by_rounding(logits: Tensor, expected: Tensor, limit: float) -> bool:
    """Whether no logit is further off than `limit`, and few are clearly off.

    In half precision the limit is of the size of the logits. So most of them must also be near, against how far the
    logits of their token spread: a lost mask or a wrong position moves many of them by that much.
    """
    gap = (logits - expected).abs()
    spread = (expected - expected.mean(-1, keepdim=True)).abs().mean(-1, keepdim=True)
    clearly_off = (gap > spread * _CLEARLY).double().mean()
    return bool(gap.max() <= limit) and float(clearly_off) <= _FEW


def weight_dtype(model: nn.Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters() if p.is_floating_point())
