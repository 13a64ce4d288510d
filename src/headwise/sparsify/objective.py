"""How much worse than the dense model, and what that is worth.

The goal for every next token is q = (1 − w)·dense model + w·the text's own token. C is the excess over the dense
model, Σ q·(log p_dense − log p): the divergence from it at w = 0, the difference of two cross-entropies at w = 1.
Text that the model itself sampled has w = 0: its own tokens are draws from the dense model's distribution, which
say less than the distribution and can be memorised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_AT_ONCE = 2**27
"""Logits widened at once, in numbers: 512 MB in float32."""

Block = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def excess_block(student: Tensor, dense: Tensor, tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Σ over rows of C, and its derivative by the student's logits, softmax − q; logits `[N, V]`, the rest `[N]`."""
    ours, theirs = (logits.float().log_softmax(-1) for logits in (student, dense))
    goal = (1 - weight[:, None]) * theirs.exp()
    goal = goal.scatter_add(-1, tokens[:, None], weight[:, None])
    return (goal * (theirs - ours)).sum(), (ours.exp() - goal).to(student.dtype)


class _Excess(torch.autograd.Function):
    """The derivative is computed on the way, some rows at a time, so that no float32 copy of all logits is held."""

    @staticmethod
    def forward(
        ctx: Any, student: Tensor, dense: Tensor, tokens: Tensor, weight: Tensor, block: Block, rows: int
    ) -> Tensor:
        slope = torch.empty_like(student)
        total = torch.zeros((), dtype=torch.float32, device=student.device)
        for start in range(0, len(student), rows):
            part = slice(start, start + rows)
            value, slope[part] = block(student[part], dense[part], tokens[part], weight[part])
            total += value
        ctx.save_for_backward(slope)
        return total / len(student)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * (grads[0] / len(slope)), None, None, None, None, None


def excess(student: Tensor, dense: Tensor, ids: Tensor, weight: Tensor, block: Block | None = None) -> Tensor:
    """C in nats per token, from the logits `[B, T, V]` after each token of `ids[B, T]`.

    weight: w of every sequence `[B]`.
    block: a compiled `excess_block`, which widens nothing and may have all rows at once.
    """
    ours, theirs = student[:, :-1].flatten(0, 1), dense[:, :-1].flatten(0, 1)
    rows = len(ours) if block is not None else max(1, _AT_ONCE // ours.shape[1])
    tokens, weights = ids[:, 1:].flatten().long(), weight.repeat_interleave(ids.shape[1] - 1)
    value: Tensor = _Excess.apply(ours, theirs, tokens, weights, block or excess_block, rows)
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
