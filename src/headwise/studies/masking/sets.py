"""Which heads each point of a masking curve takes away: the first K of an order, and the draws beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headwise.errors import HeadwiseError
from headwise.heads import Head, Order, ones
from headwise.heads.controls import Draw, layer_matched_heads, random_heads

KS = (16, 32, 64, 128)
"""How many heads are masked where a model has at least 512 (Cognitive Mirrors, arXiv 2512.10978)."""
_MANY, _THEIRS = 512, 1024


@dataclass(frozen=True)
class MaskSet:
    """One point of one curve: k heads, once for the order itself, several times for a random control."""

    series: str
    """`top`, `random` or `random_layer`."""
    k: int
    draws: tuple[Draw, ...]

    @property
    def name(self) -> str:
        return f"{self.series} k={self.k}"

    @property
    def moved(self) -> int:
        """Heads that a layer-matched draw had to take from neighbouring layers, over all draws."""
        return sum(draw.moved for draw in self.draws)

    def gates(self, shape: tuple[int, int], scale: float = 0.0) -> np.ndarray:
        """`[draws, L, H]`: the drawn heads at `scale`, all others at 1."""
        return np.stack([scaled_gates(draw.heads, shape, scale) for draw in self.draws])


def scaled_gates(heads: Sequence[Head], shape: tuple[int, int], scale: float) -> np.ndarray:
    """Gates `[L, H]` with the given heads at `scale` and all others at 1."""
    gates = ones(shape)
    for layer, head in heads:
        gates[layer, head] = scale
    return gates


def default_ks(heads: int) -> tuple[int, ...]:
    """16, 32, 64, 128 in a large model; in a smaller one the same shares, rounded to powers of two.

    >>> default_ks(1024), default_ks(270), default_ks(144)
    ((16, 32, 64, 128), (4, 8, 16, 32), (2, 4, 8, 16))
    """
    if heads >= _MANY:
        return KS
    powers = (2 ** max(0, round(math.log2(k * heads / _THEIRS))) for k in KS)
    return tuple(dict.fromkeys(k for k in powers if 2 * k <= heads))


def checked_ks(chosen: Sequence[int], heads: int, model: str) -> tuple[int, ...]:
    """The numbers of heads to mask, smallest first; each leaves as many for a random draw."""
    ks = tuple(sorted(set(chosen))) or default_ks(heads)
    for k in ks:
        if 2 * k > heads:
            raise HeadwiseError(
                f"k is {k}, but {model} has {heads} heads: a random control needs as many heads again, so mask "
                f"1 to {heads // 2}"
            )
    if not ks:
        raise HeadwiseError(f"{model} has only {heads} heads: too few to mask one and compare with another")
    return ks


def middle_k(ks: Sequence[int]) -> int:
    """The third of the grid, where a curve says most: the point of everything that is asked at one K only."""
    return ks[min(2, len(ks) - 1)]


def mask_sets(
    order: Order, ks: Sequence[int], layer_matched: Sequence[int], draws: int, seed: int | str
) -> list[MaskSet]:
    """Every point of one ability's curves; `order` holds every head of the model once."""
    sets = [MaskSet("top", k, (Draw(list(order[:k]), 0),)) for k in ks]
    controls = (("random", ks, random_heads), ("random_layer", layer_matched, layer_matched_heads))
    for series, points, drawing in controls:
        for k in points:
            drawn = tuple(drawing(order, order[:k], f"{seed}/{k}/{draw}") for draw in range(draws))
            sets.append(MaskSet(series, k, drawn))
    return sets
