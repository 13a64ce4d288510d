"""What is kept of the last pass over a prompt, so that a changed gate costs only the blocks from its layer on.

The residual stream after every block and the keys and values of every layer are kept for prompts of up to `LONGEST`
tokens. The next pass with other gates skips the blocks before the first layer whose gates differ.

T tokens, W width of the stream, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from headwise.explore.freed import free_at_once
from headwise.model.forward.decode import Batch
from headwise.model.model import Model

LONGEST = 2048
"""Longest prompt of which streams are kept, in tokens."""
PIECE = 1024
"""Tokens of a longer prompt that are read at once."""


@dataclass(frozen=True)
class Kept:
    """One pass over a prompt."""

    gates: np.ndarray  # L, H
    replaced_by: str
    """What replaced the heads: the ablation type, and of a patch the counterfactual."""
    streams: dict[int, Tensor]
    """Block -> the residual stream after it, `[1, T, W]`."""
    layers: Sequence[tuple[Tensor, Tensor]]
    """Keys and values of every layer."""

    def before(self, gates: np.ndarray, replaced_by: str) -> int:
        """How many first blocks compute the same under these gates."""
        differs = (self.gates != gates).any(1)
        if replaced_by != self.replaced_by:
            differs |= (gates != 1).any(1)
        changed = np.flatnonzero(differs)
        return int(changed[0]) if len(changed) else len(gates)


def can_keep(model: Model, tokens: int) -> bool:
    """Whether blocks may be skipped: they exchange nothing but the stream, and block k is layer k of the cache."""
    sites, blocks = model.hooks.sites, model.hooks.blocks
    plain = [(site.layer, site.block, site.calls) for site in sites] == [
        (k, k, 1) for k in range(len(blocks))
    ]
    return tokens <= LONGEST and plain and model.capabilities.share_rows and model.capabilities.decoding.cache


def piece_of(model: Model, tokens: int) -> int | None:
    """How many tokens of a prompt are read at once; None for all. Long prompts are read in pieces, to save memory."""
    # `prefix`: several tokens may be read after a cache.
    if tokens <= LONGEST or not model.capabilities.decoding.prefix:
        return None
    free_at_once()
    return PIECE


def kept_after(batch: Batch, streams: dict[int, Tensor], gates: np.ndarray, replaced_by: str) -> Kept | None:
    """What to keep after the first pass of a batch; None where a block or the cache does not allow it."""
    layers = batch.cached_layers()
    if layers is None or len(layers) != len(gates) or len(streams) != len(gates):
        return None
    return Kept(gates, replaced_by, streams, layers)
