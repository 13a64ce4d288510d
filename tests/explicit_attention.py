"""Attention with every mask written out, in place of a model's own: what short views are compared with."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from transformers import AttentionInterface

NAME = "explicit_masks"


@contextmanager
def explicit_attention(hf, gates, sink, window, starts=(0,)):
    """While this holds, head h of layer l puts out g·z + (1 − g)·z_short, where z_short sees the first `sink` tokens
    and the last `window`. gates `[L, H]`; starts: how much padding each row has before it. Only passes without a cache.
    """

    def attend(
        module, query, key, value, _, scaling=None, softcap=None, s_aux=None, sliding_window=None, **__
    ):
        groups = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
        scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        rows, heads, tokens, _ = query.shape

        def seen_by(near):
            i, j = torch.arange(tokens)[:, None], torch.arange(tokens)[None]
            seen = torch.zeros(rows, 1, tokens, tokens, dtype=torch.bool)
            for row in range(rows):
                start = starts[row % len(starts)]
                seen[row] = (j <= i) & (j >= start)
                if sliding_window is not None:
                    seen[row] &= i - j < sliding_window
                if near:
                    seen[row] &= (j - start < sink) | (i - j < window)
            return seen

        def z(seen):
            masked = scores.masked_fill(~seen, -1e30)
            if s_aux is not None:
                sinks = s_aux.reshape(1, heads, 1, 1).expand(rows, heads, tokens, 1)
                weights = torch.cat([masked, sinks], -1).softmax(-1)[..., :-1]
            else:
                weights = masked.softmax(-1)
            return (weights @ value).transpose(1, 2)

        g = torch.as_tensor(gates[module.layer_idx, :heads], dtype=query.dtype)[:, None]
        return g * z(seen_by(False)) + (1 - g) * z(seen_by(True)), None

    AttentionInterface.register(NAME, attend)
    configs = {id(module.config): module.config for module in hf.modules() if hasattr(module, "config")}
    before = {key: config._attn_implementation for key, config in configs.items()}
    for config in configs.values():
        config._attn_implementation = NAME
    try:
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]
