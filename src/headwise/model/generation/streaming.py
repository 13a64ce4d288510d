"""A KV cache that is really smaller: key/value heads that need the whole context keep it, all others keep the first
`sink` tokens and the last `window`.

What the other heads put out is what they put out under the reference `window`, so a set that was found with it can be
used as it is. Attention runs twice per layer, once for each kind of head, through the family's own function (after
StreamingLLM, Xiao et al. 2023, arXiv 2309.17453, and DuoAttention, Xiao et al. 2024, arXiv 2410.10819).

B rows, K key/value heads, Q query heads, T tokens of a pass, D head size. *Columns* count tokens of the batch with its
padding on the left, *places* those of a row from its first real token; padding has negative places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicSlidingWindowLayer

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.heads.heads_file import named_heads, pattern_sizes
from headwise.model.forward.short_view import Attend, ShortView, masked_attention
from headwise.model.sites.attention_function import Attention, AttentionHook, Slots
from headwise.model.sites.head_hooks import HeadHooks
from headwise.names import WINDOW, reference_name, window_of

GROWTH = 256
"""Tokens by which the memory of a head that keeps everything grows."""
_EMPTY = -(2**30)
"""The place of a slot that holds nothing."""


class Streaming:
    """Which key/value heads of a model keep the whole context; makes caches and computes attention with them."""

    def __init__(self, hooks: HeadHooks, heads: Sequence[Head], view: ShortView) -> None:
        """heads: query heads; the key/value head of each keeps everything."""
        self.hooks, self.view = hooks, view
        self._far: dict[int, list[Tensor]] = {}  # far heads and near ones, then the queries of both
        for site in hooks.sites:
            group = site.heads // site.kv_heads
            kept = {head.head // group for head in heads if head.layer == site.layer}
            of = range(site.kv_heads)
            parts = [
                torch.tensor([head for head in of if (head in kept) is far]).long() for far in (True, False)
            ]
            queries = [(part[:, None] * group + torch.arange(group)).flatten() for part in parts]
            self._far[site.layer] = [*parts, *queries]
        self._config: Any = hooks.model.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]
        self._waiting: dict[int, StreamingLayer | SlidingLayer] = {}

    def cache(self) -> Cache:
        """An empty cache, for `past_key_values` of one batch. Layers with a sliding window of their own store it."""
        kinds = getattr(self._config, "layer_types", None) or []
        if not kinds and getattr(self._config, "sliding_window", None):
            kinds = ["sliding_attention"] * len(self.hooks.blocks)
        layers: list[CacheLayerMixin] = []
        for layer in range(len(self.hooks.blocks)):
            kind = kinds[layer] if layer < len(kinds) else "full_attention"
            if kind == "sliding_attention" and layer in self._far:
                layers.append(SlidingLayer(self, layer, self._far[layer], self._config.sliding_window))
            elif kind == "full_attention" and layer in self._far:
                layers.append(StreamingLayer(self, layer, self._far[layer]))
            else:
                raise HeadwiseError(f"layer {layer} ({kind}) has no keys and values of its own to store")
        return Cache(layers=layers)

    @contextmanager
    def attached(self) -> Iterator[Cache]:
        """While this holds, the model attends as its cache stores, which is given."""
        with self.hooks.attached(attention=self.attention()):
            yield self.cache()

    def attention(self, _: Tensor | None = None) -> AttentionHook:
        """What attends as the cache stores (`Pass.attention`)."""
        return self._attention

    def _attention(self, layer: int, implementation: str, function: Attention) -> Attention:
        def attend(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, **options: Any
        ) -> Any:
            stored = self._waiting.pop(layer, None)
            if stored is None:
                raise HeadwiseError("streaming heads need a cache: pass past_key_values=… and use_cache=True")
            if options.get("s_aux") is not None:
                raise HeadwiseError(
                    "attention sinks that are weights (gpt-oss) cannot be split by kind of head"
                )
            short = masked_attention(implementation, function, module, options)

            def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                z: Tensor = function(module, query, key, value, mask, **options)[0]
                return z

            return stored.attend(plain, short, (query, key, value), mask), None

        return attend


def streaming_of(
    model: Any, heads: Any, k: int | None = None, sink: int | None = None, window: int | None = None
) -> Streaming:
    """What `Model.streaming` means by its arguments. model: a `Model`, whose type would make a circle of imports."""
    if reason := model.capabilities.no_short_view:
        raise HeadwiseError(f"{model.name} cannot have streaming heads: {reason}")
    far = model.query_heads(named_heads(heads, k, model.name, model.heads()))
    model.layout().check(far, model.name)
    sizes = window_of(reference_name(pattern_sizes(heads) or WINDOW, window, sink))
    assert sizes is not None
    return Streaming(model.hooks, far, ShortView(sink=sizes[1], window=sizes[0]))


def first_places(mask: Any, rows: int, device: torch.device) -> Tensor:
    """How much padding stands before each row `[B]`, from the model's mask of the first pass."""
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        return torch.zeros(rows, dtype=torch.long, device=device)
    allowed = mask if mask.dtype == torch.bool else mask >= 0
    return allowed[:, 0].diagonal(dim1=1, dim2=2).int().argmax(-1).expand(rows).clone()  # a token sees itself


class SlidingLayer(DynamicSlidingWindowLayer):
    """A layer with a sliding window of its own, which is all that it stores; in it, near heads see less."""

    def __init__(self, owner: Streaming, layer: int, heads: Sequence[Tensor], sliding_window: int) -> None:
        super().__init__(sliding_window)
        self._owner, self._layer, self._near = owner, layer, (heads[1], heads[3])
        self._start: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *more: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        self._owner._waiting[self._layer] = self
        return super().update(key_states, value_states, *more, **named)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        if self._start is not None:
            self._start = self._start.index_select(0, beam_idx.to(self._start.device))

    def attend(self, plain: Callable[..., Tensor], short: Attend, slots: Slots, mask: Any) -> Tensor:
        query, key, value = slots
        z, device = plain(query, key, value), query.device
        if self._start is None:
            self._start = first_places(mask, len(query), device)
            self._padded = int(self._start.max())
        heads, queries = (part.to(device) for part in self._near)
        if len(heads):
            length, total = self.cumulative_length, key.shape[2]
            places = torch.arange(length - total, length, device=device) - self._start[:, None]
            always = max(0, self._padded + self._owner.view.sink - (length - total))
            model_mask = mask[..., :total] if isinstance(mask, Tensor) and mask.dim() == 4 else None
            near = (query[:, queries], key[:, heads], value[:, heads])
            sliding = None if model_mask is not None else self.sliding_window
            z = z.clone()
            z[:, :, queries] = self._owner.view.attended(short, near, places, always, model_mask, sliding)
        return z


class StreamingLayer(CacheLayerMixin):
    """Keys and values of one layer, side by side in one tensor: `far` heads store every token, `near` heads the `sink`
    first ones and a ring. What a step of one token costs is the number of small kernels, so each tensor is sorted by
    kind of head once."""

    is_sliding = False

    def __init__(self, owner: Streaming, layer: int, heads: Sequence[Tensor]) -> None:
        super().__init__()
        self._owner, self._layer = owner, layer
        far, near, far_queries, near_queries = heads
        self._far_heads, self._far_queries = len(far), len(far_queries)
        queries = torch.cat([far_queries, near_queries])
        self._mixed = bool(len(far) and len(near))
        self._orders = [torch.cat([far, near]), queries, queries.argsort()]  # far ones first, and back
        self._length = 0

    # ---- what transformers asks of a layer ----------------------------------------------------------------

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Empty memory for the first keys and values."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self._orders = [order.to(self.device) for order in self._orders]
        rows, heads = key_states.shape[:2]
        self._sizes = [key_states.shape[-1], value_states.shape[-1]]
        short, size = self._owner.view.sink + self._owner.view.window, sum(self._sizes)
        self._far = key_states.new_zeros(rows, self._far_heads, 0, size)
        self._near = key_states.new_zeros(rows, heads - self._far_heads, short, size)
        self._start = torch.zeros(rows, dtype=torch.long, device=self.device)
        self._latest_start = 0
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Announce the call of the attention function that follows, which stores the keys and values it is given."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._owner._waiting[self._layer] = self
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self._length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self._length:
            self._select(lambda part: part.index_select(0, beam_idx.to(part.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select(lambda part: part.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._select(lambda part: part[indices])

    def _select(self, rows: Callable[[Tensor], Tensor]) -> None:
        self._far, self._near, self._start = rows(self._far), rows(self._near), rows(self._start)

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values."""
        return self._far.nbytes + self._near.nbytes if self.is_initialized else 0

    # ---- attention ----------------------------------------------------------------------------------------

    def attend(self, plain: Callable[..., Tensor], short: Attend, slots: Slots, mask: Any) -> Tensor:
        """z `[B, T, Q, D]` of new tokens, whose keys and values are stored."""
        query, key, value = slots
        if self._length == 0:
            self._start = first_places(mask, len(query), query.device)
            self._latest_start = int(self._start.max())
        new = torch.cat([key, value], -1)
        if self._mixed:
            heads, queries, back = self._orders
            new, query = new.index_select(1, heads), query.index_select(1, queries)
        begin, self._length = self._length, self._length + key.shape[2]
        far, far_queries, parts = self._far_heads, self._far_queries, []
        if far:
            keys, values = self._append(new[:, :far], begin).split(self._sizes, -1)
            parts.append(plain(query[:, :far_queries], keys, values))
        if far < key.shape[1]:
            one = key.shape[2] == 1 and begin >= self._latest_start + self._owner.view.sink
            attended = self._step if one else self._read
            parts.append(attended(short, query[:, far_queries:], new[:, far:], begin))
        return torch.cat(parts, 2).index_select(2, back) if self._mixed else parts[0]

    def _append(self, new: Tensor, begin: int) -> Tensor:
        """Everything of the heads that keep everything, in memory that grows by `GROWTH` tokens."""
        if self._far.shape[2] < self._length:
            room = -(-self._length // GROWTH) * GROWTH
            larger = new.new_empty(*new.shape[:2], room, new.shape[-1])
            larger[:, :, :begin] = self._far[:, :, :begin]
            self._far = larger
        self._far[:, :, begin : self._length] = new
        return self._far[:, :, : self._length]

    def _places(self, length: int) -> Tensor:
        """The place `[B, sink + window]` of the token in each slot of the near heads after `length` tokens.

        The first tokens of a row have their own slots; every later column c is in slot c mod window of the ring."""
        sink, window, last = self._owner.view.sink, self._owner.view.window, length - 1
        first, ring = (torch.arange(slots, device=self.device) for slots in (sink, window))
        first = torch.where(first < length - self._start[:, None], first, _EMPTY)
        later = last - (last - ring) % window - self._start[:, None]
        return torch.cat([first, torch.where(later < sink, _EMPTY, later)], 1)

    def _step(self, short: Attend, query: Tensor, new: Tensor, begin: int) -> Tensor:
        """One token: it takes the slot of the one that falls out of the window, and sees every slot."""
        sink, window = self._owner.view.sink, self._owner.view.window
        self._near[:, :, sink + begin % window] = new[:, :, 0]
        full = begin + 1 - self._latest_start >= sink + window
        seen = None if full else (self._places(begin + 1) >= 0)[:, None, None]
        return short(query, *self._near.split(self._sizes, -1), seen)

    def _read(self, short: Attend, query: Tensor, new: Tensor, begin: int) -> Tensor:
        """Several tokens, which each see what is stored, the first tokens, and their window."""
        sink, window, count = self._owner.view.sink, self._owner.view.window, new.shape[2]
        places = torch.arange(begin, begin + count, device=new.device) - self._start[:, None]  # B, T
        stored, at, seen = self._latest_start + sink, places, new
        if begin:
            stored, at = self._near.shape[2], torch.cat([self._places(begin), places], 1)
            seen = torch.cat([self._near, new], 2)
        z = self._owner.view.attended(short, (query, *seen.split(self._sizes, -1)), at, stored)
        kept = torch.arange(max(0, count - window), count, device=new.device)
        self._near[:, :, sink + (kept + begin) % window] = new[:, :, kept]
        rows, tokens = torch.nonzero((places >= 0) & (places < sink), as_tuple=True)
        self._near[rows, :, places[rows, tokens]] = new[rows, :, tokens]
        return z
