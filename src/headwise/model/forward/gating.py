"""The one formula of every intervention: z' = g·z + (1 − g)·r."""

from __future__ import annotations

from torch import Tensor, where


def gated(z: Tensor, gates: Tensor, reference: Tensor | None = None, acts: Tensor | None = None) -> Tensor:
    """Head outputs `[…, T, H, D]` under gates, exact at both ends.

    All arguments broadcast against z. reference: what a gated-out head is replaced by, None for zero.
    acts: True where gates act, None for everywhere.
    """
    replaced = gates * z
    if reference is not None:
        replaced = replaced + (1 - gates) * reference
    return replaced if acts is None else where(acts, replaced, z)
