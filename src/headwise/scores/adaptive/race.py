"""Who is among the first k, from bounds of what heads are ranked by. Arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

KEYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "signed": lambda values: values,
    "absolute": np.abs,
    "hinders": lambda values: -values,
}
"""The orders of `Scores.order`, as what is largest first."""


def key_interval(order: str, values: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of what heads are ranked by."""
    key = KEYS[order](values)
    lo = np.maximum(key - half, 0) if order == "absolute" else key - half
    return lo, key + half


def distance_to_place(keys: np.ndarray, k: int) -> np.ndarray:
    """How far each key is from the middle between the k-th and the next."""
    ranked = np.sort(keys)[::-1]
    return np.abs(keys - (ranked[k - 1] + ranked[k]) / 2)


class Race:
    """Which heads are surely among the first k, which surely not; the rest compare among themselves."""

    def __init__(self, k: int, K: int) -> None:
        self.k = k
        self.entered = np.zeros(K, bool)
        self.open = np.ones(K, bool)

    def decide(self, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """Take in and strike out whom these bounds settle; who is still open `[K]`."""
        while True:
            places = self.k - int(self.entered.sum())
            heads = np.flatnonzero(self.open)
            above = lo[heads][:, None] > hi[heads][None, :]  # a surely beats b
            takes = above.sum(axis=1) >= len(heads) - places
            drops = above.sum(axis=0) >= places
            if not (takes | drops).any():
                return self.open.copy()
            self.entered[heads[takes]] = True
            self.open[heads[takes | drops]] = False

    def inside(self, keys: np.ndarray) -> np.ndarray:
        """The first k: who entered, and of those no bound could part (equal to the last bit) the earlier heads."""
        places = self.k - int(self.entered.sum())
        ties = sorted(np.flatnonzero(self.open), key=lambda head: (-keys[head], head))[:places]
        return np.concatenate([np.flatnonzero(self.entered), np.array(ties, dtype=int)])
