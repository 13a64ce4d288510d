"""How much worse than the dense model, and what that is worth.

The goal for every next token is q = (1 − w)·dense model + w·the text's own token. C is the excess over the dense
model, Σ q·(log p_dense − log p): the divergence from it at w = 0, the difference of two cross-entropies at w = 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_AT_ONCE = 2**27
"""Logits widened at once, in numbers: 512 MB in float32."""


class _Excess(torch.autograd.Function):
    """The derivative by the student's logits is softmax − q: it is computed on the way, block by block, so that
    no float32 copy of all logits is ever held."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, dense: Tensor, tokens: Tensor, weight: float) -> Tensor:
        rows, vocabulary = student.shape
        slope = torch.empty_like(student)
        total = torch.zeros((), dtype=torch.float32, device=student.device)
        size = max(1, _AT_ONCE // vocabulary)
        for start in range(0, rows, size):
            part = slice(start, start + size)
            ours, theirs = (logits[part].float().log_softmax(-1) for logits in (student, dense))
            own = tokens[part, None]
            total += weight * (theirs - ours).gather(-1, own).sum()
            goal = theirs.exp()
            total += (1 - weight) * (goal * (theirs - ours)).sum()
            goal.mul_(1 - weight).scatter_add_(-1, own, torch.full_like(own, weight, dtype=goal.dtype))
            slope[part] = (ours.exp_().sub_(goal) / rows).to(slope.dtype)
        ctx.save_for_backward(slope)
        return total / rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * grads[0], None, None, None


def excess(student: Tensor, dense: Tensor, ids: Tensor, weight: float) -> Tensor:
    """C in nats per token, from the logits `[B, T, V]` after each token of `ids[B, T]`."""
    value: Tensor = _Excess.apply(
        student[:, :-1].flatten(0, 1), dense[:, :-1].flatten(0, 1), ids[:, 1:].flatten().long(), weight
    )
    return value


class Multiplier:
    """λ, which grows while the bound is broken and falls while there is room.

    λ ← λ·exp(η·violation), where the violation is the moving average of C − τ in units of τ, held within ±1 so
    that a bad start or a long rest cannot send λ away; for the same reason λ itself has a floor and a ceiling. All
    on the device: no update waits for a number.
    """

    LEAST, MOST = 1.0, 300.0
    _KEPT = 0.95  # of the moving average, per update

    def __init__(self, start: float, rate: float, bound: float, device: torch.device) -> None:
        self.rate, self.bound = rate, bound
        self.value = torch.tensor(start, dtype=torch.float32, device=device)
        self.average = torch.tensor(bound, dtype=torch.float32, device=device)

    def update(self, now: Tensor) -> None:
        """In place, so that the same numbers can be used by a recorded update."""
        self.average.mul_(self._KEPT).add_(now.detach().float(), alpha=1 - self._KEPT)
        violation = ((self.average - self.bound) / self.bound).clamp(-1, 1)
        self.value.mul_(torch.exp(self.rate * violation)).clamp_(self.LEAST, self.MOST)
