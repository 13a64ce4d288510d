"""Which sequences make up which update: a function of the seed and the update's number alone."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.errors import HeadwiseError

_HELD_BACK = 24
"""One text sequence in so many is never trained on, but looked at during training."""
_MOST_HELD_BACK = 48


class Pool:
    """Text sequences and sampled ones `[N, T]`, drawn without replacement until each is used up."""

    def __init__(self, texts: Tensor, sampled: Tensor, batch: int, text_share: float, seed: int) -> None:
        both = [part for part in (texts, sampled) if len(part)]
        if not both:
            raise HeadwiseError("there is nothing to train on; give --text FILE, or --sample N, or both")
        held = [part[:: max(_HELD_BACK, -(-len(part) // _MOST_HELD_BACK))] for part in both]
        kept = [_without(part, max(_HELD_BACK, -(-len(part) // _MOST_HELD_BACK))) for part in both]
        self.held_back = torch.cat(held)
        self.held_back_given = _firsts(len(held[0]) if len(texts) else 0, len(self.held_back))
        self._parts = [part if len(part) else own for part, own in zip(kept, both, strict=True)]
        from_text = min(batch - 1, max(1, round(batch * text_share))) if len(both) == 2 else batch
        self._counts = [from_text, batch - from_text][: len(both)]
        self.given = _firsts(self._counts[0] if len(texts) else 0, batch)
        """Which sequences of every batch are of the given texts, 1 or 0 `[B]`."""
        self._seed = seed
        self._orders: dict[tuple[int, int], Tensor] = {}

    def batch(self, step: int) -> Tensor:
        """The sequences of one update `[B, T]`."""
        return torch.cat([self._draw(part, step) for part in range(len(self._parts))])

    def _draw(self, part: int, step: int) -> Tensor:
        size, count = len(self._parts[part]), self._counts[part]
        places = range(step * count, (step + 1) * count)
        rows = torch.tensor([int(self._order(part, place // size)[place % size]) for place in places])
        return self._parts[part][rows]

    def _order(self, part: int, epoch: int) -> Tensor:
        if (part, epoch) not in self._orders:
            self._orders = {key: order for key, order in self._orders.items() if key[1] >= epoch - 1}
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch * 2 + part)
            self._orders[part, epoch] = torch.randperm(len(self._parts[part]), generator=generator)
        return self._orders[part, epoch]


def _firsts(count: int, size: int) -> Tensor:
    return (torch.arange(size) < count).float()


def _without(part: Tensor, every: int) -> Tensor:
    return part[torch.arange(len(part)) % every != 0]
