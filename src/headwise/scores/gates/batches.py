"""Which examples an update sees, and which of its rows run together: pieces whose gradients add up, so that the
activations of all rows are never held at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

CPU_OVERHEAD, DEVICE_OVERHEAD = 30, 4096
"""What one more piece costs, in tokens: on a CPU reading the weights twice more."""
_DEVICE_SHARE, _DEVICE_MOST = 4, 16_384


def device_tokens(batch_tokens: int) -> int:
    """Most tokens of one backward pass on an accelerator: a part of those of a plain forward pass, and no more than
    fill it."""
    return max(1, min(batch_tokens // _DEVICE_SHARE, _DEVICE_MOST))


def batches(n: int, size: int, seed: Sequence[int]) -> Iterator[np.ndarray]:
    """Numbers of the examples for one update after another: every example once per round, in an order of the seed."""
    random = np.random.default_rng(list(seed))
    waiting = np.empty(0, dtype=int)
    while True:
        while len(waiting) < min(n, size):
            waiting = np.concatenate([waiting, np.arange(n) if size >= n else random.permutation(n)])
        yield waiting[:size]
        waiting = waiting[size:]


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
        # One for each row with which the piece that ends here could begin.
        options = cost[first:end] + longest * np.arange(end - first, 0, -1) + overhead
        cut[end] = first + int(options.argmin())
        cost[end] = options.min()
    pieces, end = [], len(order)
    while end:
        pieces.append(order[cut[end] : end])
        end = cut[end]
    return pieces[::-1]
