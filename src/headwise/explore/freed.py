"""Memory of a long prompt goes back to the system as soon as it is freed.

On Linux the C library keeps freed blocks of up to 32 MB for later use. A KV cache that grows piece by piece leaves
holes that larger blocks do not fit into: reading 8,192 tokens then takes twice the memory that is in use.
"""

from __future__ import annotations

import ctypes
import functools
import sys

_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of glibc's malloc.h."""
_LARGE = 1 << 20
"""Bytes; tensors of short prompts are smaller, so their speed does not change."""


@functools.cache
def free_at_once() -> bool:
    """From now on, blocks of 1 MB and more are returned when freed; False where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, _LARGE))
