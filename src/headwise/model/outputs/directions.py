"""Steering directions: for each head, the difference between its output on right and on wrong texts.

After inference-time intervention (Li et al. 2023, arXiv 2306.03341), which Cognitive Mirrors (arXiv 2512.10978)
takes over: adding α·σ·direction to a head's output pushes the text towards what right answers have in common.

L layers, H heads, D head size, N texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.outputs.answers import head_outputs
from headwise.several import several

if TYPE_CHECKING:
    from headwise.model.model import Model


@dataclass(frozen=True)
class Directions:
    """Each head's mean output on right texts minus that on wrong texts."""

    unit: np.ndarray
    """`[L, H, D]`: mean over right texts minus mean over wrong ones, scaled to length 1; 0 where they are equal."""
    spread: np.ndarray
    """`[L, H]`: σ, the standard deviation of the head's output along its direction, over all texts."""
    right: int
    wrong: int
    """How many texts of each kind."""

    def shifts(self, heads: Iterable[Head], alpha: float) -> np.ndarray:
        """`[L, H, D]` for `hw.generate(shifts=...)`: α·σ·direction at the given heads, 0 at all others."""
        added = np.zeros_like(self.unit)
        for layer, head in heads:
            added[layer, head] = alpha * self.spread[layer, head] * self.unit[layer, head]
        return added


def directions(model: Model, right: Sequence[str], wrong: Sequence[str]) -> Directions:
    """Directions from texts that end right and texts that end wrong, read at their last token."""
    right, wrong = several(right), several(wrong)
    if not right or not wrong:
        raise HeadwiseError(
            f"a direction from wrong to right needs texts of both kinds; got {len(right)} right and {len(wrong)} wrong"
        )
    outputs = last_outputs(model, [*right, *wrong])  # N, L, H, D
    difference = outputs[: len(right)].mean(axis=0) - outputs[len(right) :].mean(axis=0)
    length = np.linalg.norm(difference, axis=-1, keepdims=True)
    unit = np.divide(difference, length, out=np.zeros_like(difference), where=length > 0)
    spread = (outputs * unit).sum(axis=-1).std(axis=0)
    return Directions(unit, spread, len(right), len(wrong))


def last_outputs(model: Model, texts: Sequence[str]) -> np.ndarray:
    """Every head's output at the last token of each text, `[N, L, H, D]`; 0 for heads that do not exist."""
    encoded = [ids or model.text.start() for ids in model.text.encode_many(list(texts))]

    def at_last(numbers: Sequence[int]) -> Callable[[Tensor], Tensor]:
        last = torch.tensor([len(encoded[n]) - 1 for n in numbers])
        return lambda z: z[torch.arange(len(last), device=z.device), last.to(z.device)]

    return head_outputs(model, encoded, at_last, model.batch_tokens, np.float64)
