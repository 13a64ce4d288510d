"""What was verified for one loaded model: which shortcuts give the same numbers, and how far equal numbers may differ.

One object per model, and none of its facts ever changes. What every pass needs is verified when the model is loaded;
what only some jobs need is verified when it is first needed, because on a large model each check takes several passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import nn

from headwise.model.backward import packing_works, plain_unembedding
from headwise.model.forward.kernels import Compiled
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.verify.components import (
    norm_after_heads,
    query_groups,
    verified_embeddings,
    verified_mlps,
)
from headwise.model.verify.shortcuts import Decoding, decoding, past_works, short_view_problem


@dataclass(frozen=True)
class Capabilities:
    """What a forward or backward pass of this model may leave out or share."""

    hooks: HeadHooks
    share_rows: bool
    """Rows that are equal up to a block may be computed once there."""
    narrow: tuple[nn.Module, ...]
    """The last block's output projection and feed-forward part, those that may be computed at scored positions only."""

    @cached_property
    def pack(self) -> bool:
        """Rows may be packed into one sequence without attending to one another."""
        return packing_works(self.hooks.model)

    @cached_property
    def plain_unembedding(self) -> nn.Linear | None:
        """The last layer, where the logits are its results, so that they need not all be held at once."""
        return plain_unembedding(self.hooks.model)

    @cached_property
    def decoding(self) -> Decoding:
        """What batches of generation may do: left padding, KV cache, a shared prefix."""
        return decoding(self.hooks.model)

    @cached_property
    def past(self) -> bool:
        """Rows of one batch may go on from the keys and values of their first tokens, which are run once."""
        return past_works(self.hooks, self.share_rows)

    @cached_property
    def no_short_view(self) -> str:
        """Why heads cannot be given a short view of their prompt (the reference `window`); empty where they can."""
        return short_view_problem(self.hooks)

    @cached_property
    def mlps(self) -> tuple[nn.Module, ...]:
        """The MLP of each decoder block, for gates on its output; a model where they are not found is refused."""
        return verified_mlps(self.hooks)

    @cached_property
    def embeddings(self) -> nn.Module:
        """The token embeddings, for a gate on their output; a model where they are not found is refused."""
        return verified_embeddings(self.hooks)

    @cached_property
    def groups(self) -> np.ndarray:
        """`[L, H]`: the key/value head of each query head; a model where groups are not known is refused."""
        return query_groups(self.hooks)

    @cached_property
    def norm_after_heads(self) -> bool:
        """Norms follow the heads and undo a common factor on them (Gemma 2 and 3, OLMo 2)."""
        return norm_after_heads(self.hooks)

    @cached_property
    def compiled(self) -> Compiled:
        """The model's norms, feed-forward parts and rotary embeddings in compiled form."""
        return Compiled(self.hooks)
