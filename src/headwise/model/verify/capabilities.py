"""What was verified for one loaded model: which shortcuts give the same numbers, and how far equal numbers may differ.

One object per model, and none of its facts ever changes. What every pass needs is verified when the model is loaded;
what only some jobs need is verified when it is first needed, because on a large model each check takes several passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
from headwise.model.verify.shortcuts import decoding, past_works, short_view_problem


@dataclass(frozen=True)
class Capabilities:
    """What a forward or backward pass of this model may leave out or share."""

    hooks: HeadHooks
    share_rows: bool
    """Rows that are equal up to a block may be computed once there."""
    narrow: tuple[nn.Module, ...]
    """The last block's output projection and feed-forward part, those that may be computed at scored positions only."""

    pack = cached_property(lambda self: packing_works(self.hooks.model))
    """Rows may be packed into one sequence without attending to one another."""
    plain_unembedding = cached_property(lambda self: plain_unembedding(self.hooks.model))
    """The last layer, where the logits are its results, so that they need not all be held at once; else None."""
    decoding = cached_property(lambda self: decoding(self.hooks.model))
    """What batches of generation may do: left padding, KV cache, a shared prefix."""
    past = cached_property(lambda self: past_works(self.hooks, self.share_rows))
    """Rows of one batch may go on from the keys and values of their first tokens, which are run once."""
    no_short_view = cached_property(lambda self: short_view_problem(self.hooks))
    """Why heads cannot be given a short view of their prompt (the reference `window`); empty where they can."""
    mlps = cached_property(lambda self: verified_mlps(self.hooks))
    """The MLP of each decoder block, for gates on its output; a model where they are not found is refused."""
    embeddings = cached_property(lambda self: verified_embeddings(self.hooks))
    """The token embeddings, for a gate on their output; a model where they are not found is refused."""
    groups = cached_property(lambda self: query_groups(self.hooks))
    """`[L, H]`: the key/value head of each query head; a model where groups are not known is refused."""
    norm_after_heads = cached_property(lambda self: norm_after_heads(self.hooks))
    """Norms follow the heads and undo a common factor on them (Gemma 2 and 3, OLMo 2)."""
    compiled = cached_property(lambda self: Compiled(self.hooks))
    """The model's norms, feed-forward parts and rotary embeddings in compiled form."""
