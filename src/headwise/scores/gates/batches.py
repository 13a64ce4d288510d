"""Which examples an update sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Batches:
    """Examples for one update after the other: every example once per round, in an order of the seed's own."""

    def __init__(self, n: int, size: int, seed: Sequence[int]) -> None:
        self.n, self.size = n, min(n, size)
        self._draw = np.random.default_rng(list(seed))
        self._left = np.empty(0, dtype=int)

    def next(self) -> np.ndarray:
        if self.size == self.n:
            return np.arange(self.n)
        while len(self._left) < self.size:
            self._left = np.concatenate([self._left, self._draw.permutation(self.n)])
        taken, self._left = self._left[: self.size], self._left[self.size :]
        return taken
