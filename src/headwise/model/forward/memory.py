"""Out of memory: how it is recognised, and what is done before the next try."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headwise.errors import HeadwiseError


def out_of_memory(error: BaseException) -> bool:
    """Whether an accelerator or the machine itself had no room for a tensor."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def release() -> None:
    """Give cached blocks back to the device, so that a smaller try meets no fragments."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def in_halves(numbers: list[int], work: Callable[[list[int]], None]) -> None:
    """`work` on the rows of these numbers; where they do not fit into memory, on two halves in turn."""
    try:
        work(numbers)
        return
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        if len(numbers) == 1:
            raise HeadwiseError(
                f"example {numbers[0] + 1} alone does not fit into the device's memory; use shorter texts, "
                "dtype=bfloat16 or another device"
            ) from error
    release()  # out here, where the error no longer holds what was computed before it
    for half in (numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]):
        in_halves(half, work)
