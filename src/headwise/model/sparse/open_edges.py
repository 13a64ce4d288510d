"""Which edges of a model are open, counted while it runs.

For models with edge gates (`edge_gates.install`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headwise.model.sites.attention_function import Call, Watcher
from headwise.model.sparse.edge_gates import _BIAS, _allowed, edge_scores


class EdgeCounts:
    """Open edges of every head, and how far they reach, over all texts run so far."""

    def __init__(self, shape: tuple[int, int], length: int) -> None:
        """length: of the longest sequence; an edge from a token to itself has length 0, the longest length − 1."""
        self.shape, self.length = shape, length
        self.open_by_length = np.zeros((*shape, length), dtype=np.int64)  # L, H, T: numbers of open edges
        self.possible = np.zeros(length, dtype=np.int64)  # T: causal edges of each length, in one head

    @property
    def by_head(self) -> np.ndarray:
        """Part of causal edges open `[L, H]`."""
        return self.open_by_length.sum(2) / max(1, self.possible.sum())

    @property
    def share(self) -> float:
        """Part of all causal edges of all heads that is open."""
        return float(self.by_head.mean())

    def watcher(self, first_layer: int = 0) -> Watcher:
        """For `HeadHooks.watching`: counts every pass of right-padded or unpadded sequences without a cache."""

        def watch(layer: int, call: Call) -> None:
            opened = open_edges(call)
            by_length = _by_length(opened)  # H, T
            heads, longest = by_length.shape
            self.open_by_length[layer, :heads, :longest] += by_length
            if layer == first_layer:
                rows, keys = opened.shape[0], opened.shape[3]
                self.possible[:keys] += rows * (keys - np.arange(keys))

        return watch


def open_edges(call: Call) -> Tensor:
    """True for every open edge `[B, H, T, S]` of one call."""
    scores = edge_scores(call.query, call.key, call.options.get("scaling"))
    bias = getattr(call.module, _BIAS).to(scores)
    return (scores + bias[:, None, None] > 0) & _allowed(call.mask, call.query, call.key)


def _by_length(opened: Tensor) -> np.ndarray:
    """Numbers of open edges by their length `[H, T]`."""
    per_pair = opened.sum(0)  # H, T, T
    tokens = per_pair.shape[-1]
    position = torch.arange(tokens, device=opened.device)
    lengths = (position[:, None] - position[None, :]).clamp_min(0).flatten()
    counts = torch.zeros(len(per_pair), tokens, dtype=torch.int64, device=opened.device)
    counts.index_add_(1, lengths, per_pair.flatten(1))
    return counts.cpu().numpy()
