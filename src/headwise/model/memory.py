"""Out of memory: how it is recognised, and what is done before the next try."""

from __future__ import annotations

import torch


def out_of_memory(error: BaseException) -> bool:
    """Whether an accelerator or the machine itself had no room for a tensor."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def release() -> None:
    """Give cached blocks back to the device, so that a smaller try meets no fragments."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
