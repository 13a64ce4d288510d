"""What is run together: which rows make a block, which variants a batch, and which of their rows are one and the same.

Numbers in, numbers out; no model. V variants, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Row numbers, rows of about equal length together, each batch within the budget of tokens.

    >>> list(batches([9, 4, 9, 4], 18))
    [[1, 3], [0, 2]]
    """
    order = sorted(range(len(lengths)), key=lambda n: lengths[n])
    while order:
        size = 1
        while size < len(order) and (size + 1) * lengths[order[size]] <= budget:
            # Padding is work for nothing: a longer row begins a new batch, once this one is worth a pass.
            if lengths[order[size]] > 1.1 * lengths[order[0]] and size >= 8:
                break
            size += 1
        yield order[:size]
        order = order[size:]


def blocks_of_rows(
    lengths: np.ndarray, rows: Sequence[int], variants: int, budget: int
) -> Iterator[list[int]]:
    """`rows` in blocks of about equal length, small enough that `variants` copies have at most `budget` tokens.

    >>> list(blocks_of_rows(np.array([9, 4, 9, 4]), range(4), variants=2, budget=20))
    [[1, 3], [0], [2]]
    """
    order = sorted(rows, key=lambda n: lengths[n])
    while order:
        shortest = lengths[order[0]]
        size = 1
        while size < len(order):
            length = lengths[order[size]]
            copies = variants if size >= 8 else 2  # few rows: only what must fit, one variant and its partner
            if (size + 1) * length * copies > budget:
                break
            # Padding is work for nothing: a longer row begins a new block, once this one fills the device.
            if length > 1.02 * shortest and size * shortest * variants >= budget // 8:
                break
            size += 1
        yield order[:size]
        order = order[size:]


def batch_size(waiting: int, at_once: int) -> int:
    """How many of the variants that wait make the next batch: batches are about equal, so that none is left with a few.

    A batch may have a sixteenth more than `at_once`.

    >>> [batch_size(n, 32) for n in (9, 34, 35, 100)]
    [9, 34, 18, 34]
    """
    most = at_once + at_once // 16
    batches = max(1, -(-waiting // most))
    return -(-waiting // batches)


def queues(gates: np.ndarray, entries: np.ndarray, enough: int, at_once: int) -> list[list[int]]:
    """Variants `gates[V, L, H]` in the order in which they are run; those of one queue may share a batch.

    entries `[V]`: the decoder block in which each may be entered. Those with like gates stand side by side, so that
    what they have in common is computed once, and a variant that enters late costs no more operations in a batch that
    enters early. It costs copies of rows in every block, though: once the batches of a queue, of `at_once` variants
    each, have `enough` of them to fill the device, those that enter later have a queue of their own.
    """
    found: list[list[int]] = []
    for v in sorted(range(len(gates)), key=lambda v: (entries[v], gates[v].tobytes())):
        last = found[-1] if found else []
        in_batch = batch_size(len(last), at_once)
        if not last or (in_batch >= min(enough, at_once) and entries[v] != entries[last[-1]]):
            found.append([])
        found[-1].append(v)
    return found


class Alike(NamedTuple):
    """Variants that have been alike up to and including some block."""

    first: list[int]
    """One variant of each group."""
    group: list[int]
    """The group of every variant."""


def alike(gates: np.ndarray, layers: Sequence[Sequence[int]], entry: int) -> dict[int, Alike]:
    """For each block from `entry` on in which some of `gates[V, L, H]` have been alike so far: which.

    layers: those of each block. The last block is left out: it is read row by row.

    >>> gates = np.array([[[1.0], [1.0], [1.0]], [[1.0], [0.0], [1.0]]])
    >>> alike(gates, [[0], [1], [2]], 0)
    {0: Alike(first=[0], group=[0, 0])}
    """
    found = {}
    group = [0] * len(gates)
    for index, here in enumerate(layers[:-1]):
        keys = [(old, part.tobytes()) for old, part in zip(group, gates[:, list(here)], strict=True)]
        first = {key: v for v, key in reversed(list(enumerate(keys)))}
        number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        group = [number[key] for key in keys]
        if len(number) == len(gates):
            break  # they differ, and go on differing
        if index >= entry:
            found[index] = Alike([first[key] for key in number], group)
    return found
