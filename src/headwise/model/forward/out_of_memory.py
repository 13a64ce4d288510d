"""What happens when memory runs out: the work is done in halves, down to one row, and an error names that row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from headwise.errors import HeadwiseError

T = TypeVar("T")


def out_of_memory(error: BaseException) -> bool:
    """Whether an accelerator or the machine itself had no room for a tensor."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def fits(work: Callable[[], object]) -> bool:
    """Do `work`; False where memory ran out, after cached blocks were given back to the device."""
    try:
        work()
        return True
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
    # Outside the except block: the error holds on to the tensors that filled the memory.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False


def in_halves(
    items: Sequence[T],
    work: Callable[[Sequence[T]], object],
    too_large: Callable[[T], HeadwiseError],
    shrink: Callable[[], None] = lambda: None,
) -> None:
    """`work` on all items; where they do not fit into memory, `shrink` and on two halves in turn.

    too_large: the error for an item that does not fit even alone.
    """
    if fits(lambda: work(items)):
        return
    shrink()
    if len(items) == 1:
        raise too_large(items[0])
    middle = len(items) // 2
    for half in (items[:middle], items[middle:]):
        in_halves(half, work, too_large, shrink)


def example_too_large(number: int) -> HeadwiseError:
    """The error for an example that does not fit into memory alone."""
    return HeadwiseError(
        f"example {number + 1} alone does not fit into the device's memory; use shorter texts, dtype=bfloat16 or "
        "another device"
    )
