"""Which rows of an update are run together: pieces whose gradients add up, so that never all are held at once."""

from __future__ import annotations

import numpy as np


def packed_pieces(lengths: np.ndarray, budget: int) -> list[np.ndarray]:
    """Row numbers in few pieces of about equal size, for rows that stand one behind the other.

    No piece has more than `budget` tokens, unless a single row has.

    >>> [piece.tolist() for piece in packed_pieces(np.array([9, 4, 5, 2]), 12)]
    [[0, 3], [1, 2]]
    """
    order = np.argsort(-lengths, kind="stable")
    count = max(1, -(-int(lengths.sum()) // budget))
    while True:
        filled, of_row = np.zeros(count, dtype=int), np.empty(len(lengths), dtype=int)
        for row in order:  # the longest first, each to the piece that has least
            of_row[row] = filled.argmin()
            filled[of_row[row]] += lengths[row]
        if count >= len(lengths) or filled.max() <= budget:
            return [np.flatnonzero(of_row == piece) for piece in range(count) if (of_row == piece).any()]
        count += 1


def padded_pieces(lengths: np.ndarray, budget: int, overhead: int) -> list[np.ndarray]:
    """Row numbers in pieces of similar length, for rows that are padded to the longest of their piece: least tokens,
    padding included, plus `overhead` per piece.

    No piece has more than `budget` tokens, unless a single row has.

    >>> [piece.tolist() for piece in padded_pieces(np.array([5, 40, 5, 41]), 1000, 10)]
    [[0, 2], [1, 3]]
    """
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    cost, cut = np.zeros(len(order) + 1), np.zeros(len(order) + 1, dtype=int)
    for end in range(1, len(order) + 1):
        longest = int(ordered[end - 1])
        first = max(0, end - max(1, budget // longest))
        # From each place where the piece that ends here could begin.
        options = cost[first:end] + longest * np.arange(end - first, 0, -1) + overhead
        cut[end] = first + int(options.argmin())
        cost[end] = options.min()
    found, end = [], len(order)
    while end:
        found.append(order[cut[end] : end])
        end = cut[end]
    return found[::-1]
