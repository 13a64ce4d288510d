"""What is run together (which rows make a block, which variants a batch, which variants share a run of a block), and
what happens when memory runs out: the work is done in halves, down to one row, and an error names that row.

V variants, L layers, H heads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import TypeVar

import numpy as np
import torch

from headwise.errors import HeadwiseError, out_of_memory

LOGIT_BUDGET = 2**26
"""Maximum number of logits in memory at once: 256 MB in float32."""


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Row numbers, rows of about equal length together, each batch within the budget of tokens.

    >>> list(batches([9, 4, 9, 4], 18))
    [[1, 3], [0, 2]]
    """

    def joins(size: int, shortest: float, length: float, left: int) -> bool:
        # Padding is work for nothing: a longer row begins a new batch, once this one is worth a pass.
        return (size + 1) * length <= budget and (size < 8 or length <= 1.1 * shortest)

    return cut_rows(range(len(lengths)), lengths, joins)


def blocks_of_rows(
    lengths: np.ndarray, rows: Sequence[int], variants: int, budget: int
) -> Iterator[list[int]]:
    """`rows` in blocks of about equal length, small enough that `variants` copies have at most `budget` tokens.

    >>> list(blocks_of_rows(np.array([9, 4, 9, 4]), range(4), variants=2, budget=20))
    [[1, 3], [0], [2]]
    """

    def joins(size: int, shortest: float, length: float, left: int) -> bool:
        # A few rows need not leave room for all variants, only for enough of them to share a prefix.
        copies = variants if size >= 8 else min(variants, 8)
        # Padding is work for nothing: a longer row begins a new block where both blocks fill the device.
        both_filled = min(size * shortest, left * length) * variants >= budget // 8
        return (size + 1) * length * copies <= budget and (length <= 1.02 * shortest or not both_filled)

    return cut_rows(rows, lengths, joins)


def cut_rows(
    rows: Sequence[int], lengths: Sequence[int] | np.ndarray, joins: Callable[[int, float, float, int], bool]
) -> Iterator[list[int]]:
    """Rows by length, shortest first, in batches; each ends before the row that does not join it.

    joins: from the size of the batch, its shortest row, the length of the next one, and how many rows are left.
    """
    order = sorted(rows, key=lambda n: lengths[n])
    while order:
        size = 1
        while size < len(order) and joins(size, lengths[order[0]], lengths[order[size]], len(order) - size):
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


def in_batches(variants: Sequence[int] | np.ndarray, at_once: int) -> list[np.ndarray]:
    """The numbers of the variants, those of each batch together; see `batch_size`."""
    waiting, found = np.asarray(variants, dtype=int), []
    while len(waiting):
        size = batch_size(len(waiting), at_once)
        found.append(waiting[:size])
        waiting = waiting[size:]
    return found


def equal_prefixes(
    gates: np.ndarray, layers: Sequence[Sequence[int]]
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """For each decoder block up to which some of `gates[V, L, H]` are equal: one variant of each group of equals, and
    the group of every variant.

    layers: those of each block.

    >>> gates = np.array([[[1.0], [1.0]], [[1.0], [0.0]]])
    >>> equal_prefixes(gates, [[0], [1]])
    {0: (array([0]), array([0, 0]))}
    """
    prefixes: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    group = np.zeros(len(gates), dtype=int)
    for block, of_block in enumerate(layers):
        so_far = np.column_stack([group, gates[:, list(of_block)].reshape(len(gates), -1)])
        _, first, group = np.unique(so_far, axis=0, return_index=True, return_inverse=True)
        if len(first) == len(gates):
            break  # all differ, and go on differing
        prefixes[block] = first, group.reshape(-1)
    return prefixes


# ---- when memory runs out --------------------------------------------------------------------------------


log = logging.getLogger("headwise")

T = TypeVar("T")


def try_run(work: Callable[[], object]) -> bool:
    """Do `work`; False where memory ran out, after cached blocks were given back to the device."""
    try:
        work()
        return True
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
    # Outside the except block: the error holds on to the tensors that filled the memory.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    _say_once()
    return False


@cache
def _say_once() -> None:
    log.warning(
        "memory ran out; smaller batches are tried, which give the same results and take longer (batch_tokens sets "
        "their size; another program may use the same memory)"
    )


def in_halves(
    items: Sequence[T],
    work: Callable[[Sequence[T]], object],
    too_large: Callable[[T], HeadwiseError],
    shrink: Callable[[], None] = lambda: None,
) -> None:
    """`work` on all items; where they do not fit into memory, `shrink` and go on with half as many at a time.

    too_large: the error for an item that does not fit even alone.
    """
    size, done = len(items), 0
    while done < len(items):
        some = items[done : done + size]
        if try_run(partial(work, some)):
            done += len(some)
            continue
        shrink()
        if len(some) == 1:
            raise too_large(some[0])
        size = len(some) // 2


def example_too_large(number: int) -> HeadwiseError:
    """The error for an example that does not fit into memory alone."""
    return HeadwiseError(
        f"example {number + 1} alone does not fit into the device's memory; use shorter texts, dtype=bfloat16 or "
        "another device"
    )
