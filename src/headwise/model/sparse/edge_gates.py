"""Edge gates: attention in which each head keeps only some of its edges (arXiv 2512.05865).

An edge is one head's pair of a query and a key at or before it. Its score is s = q·k/√d, after rotary
embedding, and it is open where s + b > 0, with one number b for each head. The output is Σ softmax(s)·z·v with
z = 1 for open edges and 0 for others: closed edges still take their share of the softmax, nothing is
renormalised, and a query whose edges are all closed gets 0 from its head.

Two attention functions are registered with transformers. `edge_gated` is the model as it is used: hard
thresholds. `edge_gated_noisy` is for training: the logit gets logistic noise, z passes gradients as if it were
the sigmoid, and each layer stores how many edges it expects to be open. b and this count are attributes of the
attention module, so two models do not disturb one another.

B rows, H heads, T queries, S keys, D head size, L layers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.sites.attention_function import Call, Watcher
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.patch import attention_named, name_attention
from headwise.model.sites.probe import differ_by_rounding, probe_logits, rounding

HARD, NOISY = "edge_gated", "edge_gated_noisy"
"""Names in transformers' registry. Not "headwise_…": that is how names of already wrapped functions begin."""

_BIAS, _TEMPERATURE, _EXPECTED, _NOISE = "_edge_bias", "_edge_temperature", "_edges_expected", "_edge_noise"
_AT_ONCE = 2**26
"""Maximum number of scores in memory at once without gradients: 256 MB in float32."""


def edge_scores(query: Tensor, key: Tensor, scaling: float | None) -> Tensor:
    """s = q·k·scaling for every head `[B, H, T, S]`, at least in float32: gates must not hang on rounding."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    rows, heads, queries, size = query.shape
    groups = key.shape[1]
    scale = size**-0.5 if scaling is None else scaling
    # The queries of heads that share keys are stacked, so that no key is copied: B, key heads, queries, D.
    grouped = (query.to(dtype) * scale).reshape(rows, groups, -1, size)
    with torch.autocast(query.device.type, enabled=False):
        return torch.matmul(grouped, key.to(dtype).transpose(2, 3)).view(rows, heads, queries, -1)


def edge_gated_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Hard edge gates: z `[B, T, H, D]` and the gated weights softmax(s)·z `[B, H, T, S]`.

    Very long texts are done block by block of queries, without weights.
    """
    rows, heads, queries, _size = query.shape
    at_once = max(1, _AT_ONCE // max(1, rows * heads * key.shape[2]))
    if queries <= at_once:
        return _gated_block(module, query, key, value, attention_mask, scaling)
    mask = _allowed(attention_mask, query, key) if attention_mask is None else attention_mask
    blocks = []
    for start in range(0, queries, at_once):
        block = slice(start, start + at_once)
        part = mask[:, :, block] if mask.shape[2] > 1 else mask
        blocks.append(_gated_block(module, query[:, :, block], key, value, part, scaling)[0])
    return torch.cat(blocks, dim=1), None


def _gated_block(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
) -> tuple[Tensor, Tensor]:
    scores = edge_scores(query, key, scaling)
    allowed = _allowed(mask, query, key)
    bias: Tensor = getattr(module, _BIAS).to(scores.device, scores.dtype)
    opened = (scores + bias[:, None, None] > 0) & allowed
    weights = _softmax(scores, mask, allowed) * opened
    return _mixed(weights, value), weights.to(query.dtype)


def noisy_edge_gated_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """z = 1[(s + b)/temperature + logistic noise > 0], with the gradient of the sigmoid of the same number.

    Noise comes from `prepare_training`, or else from torch's own generator. The number of edges expected to be open,
    Σ sigmoid((s + b)/temperature), and the number of causal edges are left at the module, for `expected_share`.
    """
    with torch.autocast(query.device.type, enabled=False):
        scores = edge_scores(query, key, scaling)
        allowed = _allowed(attention_mask, query, key)
        noise = getattr(module, _NOISE, None)
        uniform = torch.rand_like(scores) if noise is None else noise
        bias, temperature = getattr(module, _BIAS), getattr(module, _TEMPERATURE)
        weights, opened = _noisy_weights(scores, bias, temperature, allowed, uniform)
        setattr(module, _EXPECTED, opened / (allowed.sum() * (scores.numel() // allowed.numel())))
    return _mixed(weights, value), None


def _noisy_weights(
    scores: Tensor, bias: Tensor, temperature: Tensor, allowed: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """softmax(s)·z with noisy z, and the number of edges expected to be open."""
    logits = (scores + bias[:, None, None]) / temperature
    soft = torch.sigmoid(logits + torch.logit(uniform, eps=1e-6))
    gates = soft + ((soft > 0.5).to(soft.dtype) - soft).detach()
    opened = torch.sigmoid(logits).masked_fill(~allowed, 0.0).sum()
    return _softmax(scores, None, allowed) * gates, opened


def _softmax(scores: Tensor, mask: Tensor | None, allowed: Tensor) -> Tensor:
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask
    return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1)


def _mixed(weights: Tensor, value: Tensor) -> Tensor:
    """Σ weights · v `[B, T, H, D]`."""
    rows, heads, queries, keys = weights.shape
    grouped = weights.to(value.dtype).reshape(rows, value.shape[1], -1, keys)
    mixed = torch.matmul(grouped, value).view(rows, heads, queries, -1)
    return mixed.transpose(1, 2).contiguous()


def _allowed(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """True where a query may look at a key `[B or 1, 1, T, S]`."""
    if mask is None:
        queries, keys = query.shape[2], key.shape[2]
        both = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        return both.tril(keys - queries)[None, None]
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


# ---- putting gates into a model ---------------------------------------------------------------------------


def _full_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The mask that sdpa takes, also where sdpa would need none."""
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})


def _register() -> None:
    """Make both attention functions known to transformers by their names."""
    from transformers import AttentionInterface, AttentionMaskInterface

    for name, function in {HARD: edge_gated_attention, NOISY: noisy_edge_gated_attention}.items():
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, _full_mask)


def install(hf: nn.Module, bias: np.ndarray) -> None:
    """From now on every head of `hf` has edge gates with b = `bias[L, H]`.

    A model whose attention is more than softmax(s)·v (soft-capping, sinks) is refused: with all edges open the
    logits must be its own.
    """
    hooks = HeadHooks(hf)
    if hooks.mechanism != "attention function":
        raise HeadwiseError(
            f"{type(hf).__name__} calls no attention function that edge gates could replace; its attention stays dense"
        )
    if bias.shape != hooks.shape:
        raise HeadwiseError(
            f"edge gates for {bias.shape[0]} layers × {bias.shape[1]} heads do not fit {type(hf).__name__} with "
            f"{hooks.shape[0]} layers × {hooks.shape[1]} heads"
        )
    _register()
    _check_all_open(hf, hooks)
    _set_bias(hooks, bias)
    name_attention(hf, lambda _: HARD)


def _set_bias(hooks: HeadHooks, bias: np.ndarray) -> None:
    for site in hooks.sites:
        device = next(site.module.parameters()).device
        of_heads = torch.tensor(bias[site.layer, : site.heads], dtype=torch.float32, device=device)
        # A buffer moves with its model to another device; one that does not persist is in no checkpoint.
        site.module.register_buffer(_BIAS, of_heads, persistent=False)
    # Part of the configuration, so that a model's fingerprint knows its gates.
    digest = hashlib.sha256(np.ascontiguousarray(bias, dtype=np.float32).tobytes()).hexdigest()[:16]
    hooks.model.config.edge_gates = digest  # type: ignore[union-attr]


def _check_all_open(hf: nn.Module, hooks: HeadHooks) -> None:
    plain = probe_logits(hf)
    with attention_named(hf, lambda _: "eager"):  # the family's own function too, but it rounds otherwise
        noise = float((probe_logits(hf) - plain).abs().max())
    _set_bias(hooks, np.full(hooks.shape, np.inf))
    with attention_named(hf, lambda _: HARD):
        gated = probe_logits(hf)
    moved = float((gated - plain).abs().max())
    if not differ_by_rounding(gated, plain, 4 * max(rounding(hf, plain), noise)):
        raise HeadwiseError(
            f"edge gates do not fit {type(hf).__name__}: with every edge open its logits move by {moved:.2g}, so its "
            "attention is more than a softmax of scores (for example, it has soft-capping or sinks)"
        )


# ---- training ---------------------------------------------------------------------------------------------


def prepare_training(hooks: HeadHooks, temperature: Tensor, noise: Sequence[Tensor] | None = None) -> None:
    """Let every layer's noisy attention read this one number, which may change from step to step.

    noise: uniform numbers `[B, H, T, T]` for each layer, drawn anew before each pass; without, a layer draws its own,
    which compiled code cannot do while it is being recorded.
    """
    for index, site in enumerate(hooks.sites):
        setattr(site.module, _TEMPERATURE, temperature)
        setattr(site.module, _NOISE, None if noise is None else noise[index])


def expected_share(hooks: HeadHooks) -> Tensor:
    """The part of causal edges that the last noisy pass expects to be open, with its gradient.

    Can be called once per pass: the counts at the modules are deleted, because they keep the autograd graph alive.
    """
    total = sum(site.heads for site in hooks.sites)
    shares = [getattr(site.module, _EXPECTED) * (site.heads / total) for site in hooks.sites]
    for site in hooks.sites:
        delattr(site.module, _EXPECTED)
    return torch.stack(shares).sum()


# ---- which edges of a model are open, counted while it runs ----------------------------------------------


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
