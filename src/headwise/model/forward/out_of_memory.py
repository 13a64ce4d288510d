"""What happens when memory runs out: the work is done in halves, down to one row, and an error names that row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeVar

import torch

from headwise.errors import HeadwiseError, out_of_memory

log = logging.getLogger("headwise")

T = TypeVar("T")


def fits(work: Callable[[], object]) -> bool:
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
        if fits(partial(work, some)):
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
