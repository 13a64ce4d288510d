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
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicSlidingWindowLayer

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.sites.attention_function import own_attention

if TYPE_CHECKING:
    from headwise.model.model import Model

GROWTH = 256
"""Tokens by which the memory of a head that keeps everything grows."""
CHUNK = 512
"""Query tokens of a prompt whose short view is computed at once: the mask then never has a row per token of the prompt
and a column per token of the prompt."""
_EMPTY = -(2**30)
"""The place of a slot that holds nothing."""


class Streaming:
    """Which key/value heads of a model keep the whole context; makes caches and computes attention with them."""

    def __init__(self, model: Model, heads: Sequence[Head], sink: int, window: int) -> None:
        """heads: query heads, of which the key/value head keeps everything, or key/value heads (`L12KV1`)."""
        heads = model.query_heads(heads)
        if sink < 0 or window < 1:
            raise HeadwiseError(f"sink is {sink} and window {window}; expected sink ≥ 0 and window ≥ 1")
        self.sink, self.window, self._hooks = sink, window, model.hooks
        if self._hooks.mechanism != "attention function":
            raise HeadwiseError(
                f"{model.name} is accessed by a {self._hooks.mechanism}: it calls no attention function, so a head "
                "cannot have a cache of its own"
            )
        self._far: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        for site in self._hooks.sites:
            group = site.heads // site.kv_heads
            kept = {head.head // group for head in heads if head.layer == site.layer}
            of = range(site.kv_heads)
            parts = [
                torch.tensor([head for head in of if (head in kept) is far]).long() for far in (True, False)
            ]
            queries = [(part[:, None] * group + torch.arange(group)).flatten() for part in parts]
            self._far[site.layer] = (parts[0], parts[1], queries[0], queries[1])
        self._config: Any = model.hf.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]
        self._waiting: dict[int, StreamingLayer] = {}

    def cache(self) -> Cache:
        """An empty cache, for `past_key_values` of one batch. Layers with a sliding window of their own keep it."""
        kinds = getattr(self._config, "layer_types", None) or []
        layers: list[CacheLayerMixin] = []
        for layer in range(len(self._hooks.blocks)):
            kind = kinds[layer] if layer < len(kinds) else "full_attention"
            if kind == "sliding_attention":
                layers.append(DynamicSlidingWindowLayer(self._config.sliding_window))
            elif kind == "full_attention" and layer in self._far:
                layers.append(StreamingLayer(self, layer, *self._far[layer]))
            else:
                raise HeadwiseError(f"layer {layer} ({kind}) has no keys and values of its own to store")
        return Cache(layers=layers)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """While this holds, the model attends as its cache stores."""
        with self._hooks.attached(attention=self._attention):
            yield

    def _attention(
        self, layer: int, implementation: str, function: Callable[..., Any]
    ) -> Callable[..., tuple[Tensor, None]]:
        def attend(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, **options: Any
        ) -> Any:
            if options.get("sliding_window") is not None:
                return function(module, query, key, value, mask, **options)
            stored = self._waiting.pop(layer, None)
            if stored is None:
                raise HeadwiseError("streaming heads need a cache: pass past_key_values=… and use_cache=True")
            if options.get("s_aux") is not None:
                raise HeadwiseError(
                    "attention sinks that are weights (gpt-oss) cannot be split by kind of head"
                )
            return stored.attend(implementation, function, module, query, key, value, mask, options), None

        return attend


class StreamingLayer(CacheLayerMixin):
    """Keys and values of one layer: `far` heads store every token, `near` heads `sink` first ones and a ring."""

    is_sliding = False

    def __init__(
        self,
        owner: Streaming,
        layer: int,
        far: Tensor,
        near: Tensor,
        far_queries: Tensor,
        near_queries: Tensor,
    ) -> None:
        super().__init__()
        self._owner, self._layer = owner, layer
        self._heads, self._queries = [far, near], [far_queries, near_queries]
        self._length = 0

    # ---- what transformers asks of a layer ----------------------------------------------------------------

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Empty memory for the first keys and values."""
        sink, window = self._owner.sink, self._owner.window
        self.dtype, self.device = key_states.dtype, key_states.device
        self._heads = [part.to(self.device) for part in self._heads]
        self._queries = [part.to(self.device) for part in self._queries]
        rows = len(key_states)

        def empty(like: Tensor, heads: Tensor, tokens: int) -> Tensor:
            return like.new_zeros(rows, len(heads), tokens, like.shape[-1])

        far, near = self._heads
        both = (key_states, value_states)
        self._far = [empty(like, far, 0) for like in both]
        self._near = [empty(like, near, sink + window) for like in both]
        self._places = torch.full((rows, sink + window), _EMPTY, device=self.device)
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
        self._far, self._near = [rows(part) for part in self._far], [rows(part) for part in self._near]
        self._places, self._start = rows(self._places), rows(self._start)

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values."""
        return sum(part.nbytes for part in (*self._far, *self._near)) if self.is_initialized else 0

    # ---- attention ----------------------------------------------------------------------------------------

    def attend(
        self,
        implementation: str,
        function: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        options: dict[str, Any],
    ) -> Tensor:
        """z `[B, T, Q, D]` of new tokens, whose keys and values are stored."""
        if self._length == 0 and isinstance(mask, Tensor):
            allowed = mask if mask.dtype == torch.bool else mask >= 0
            self._start = allowed[:, 0, -1].int().argmax(-1).expand(len(query)).clone()
            self._latest_start = int(self._start.max())
        z = query.new_empty(len(query), query.shape[2], query.shape[1], value.shape[-1])
        begin, self._length = self._length, self._length + key.shape[2]
        (far, near), (far_queries, near_queries) = self._heads, self._queries
        if len(far):
            keys, values = self._append(key[:, far], value[:, far], begin)
            z[:, :, far_queries] = function(module, query[:, far_queries], keys, values, mask, **options)[0]
        if len(near):
            if "flash" in implementation or "flex" in implementation:  # they take no mask of ours
                implementation, function = "sdpa", own_attention("sdpa", module)

            def short(part: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
                if seen is not None and implementation == "eager":
                    seen = torch.where(seen, 0.0, torch.finfo(part.dtype).min).to(part.dtype)
                attended: Tensor = function(module, part, keys, values, seen, **options)[0]
                return attended

            step = (
                self._step
                if key.shape[2] == 1 and begin >= self._latest_start + self._owner.sink
                else self._read
            )
            z[:, :, near_queries] = step(short, query[:, near_queries], key[:, near], value[:, near], begin)
        return z

    def _append(self, key: Tensor, value: Tensor, begin: int) -> tuple[Tensor, Tensor]:
        """All keys and values of the heads that keep everything, in memory that grows by `GROWTH` tokens."""
        for index, new in enumerate((key, value)):
            if self._far[index].shape[2] < self._length:
                room = -(-self._length // GROWTH) * GROWTH
                larger = new.new_empty(*new.shape[:2], room, new.shape[-1])
                larger[:, :, :begin] = self._far[index][:, :, :begin]
                self._far[index] = larger
            self._far[index][:, :, begin : self._length] = new
        keys, values = (part[:, :, : self._length] for part in self._far)
        return keys, values

    def _step(
        self, short: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, begin: int
    ) -> Tensor:
        """One token: it takes the slot of the one that falls out of the window, and sees every slot."""
        sink, window = self._owner.sink, self._owner.window
        slot = sink + begin % window
        self._near[0][:, :, slot], self._near[1][:, :, slot] = key[:, :, 0], value[:, :, 0]
        self._places[:, slot] = begin - self._start
        full = begin + 1 - self._latest_start >= sink + window
        return short(query, *self._near, None if full else (self._places >= 0)[:, None, None])

    def _read(
        self, short: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, begin: int
    ) -> Tensor:
        """Several tokens, in chunks of queries that each see what is stored, the first tokens, and their window."""
        sink, window, count = self._owner.sink, self._owner.window, key.shape[2]
        columns = torch.arange(begin, begin + count, device=key.device)
        places = columns - self._start[:, None]  # B, T
        stored = self._places if begin else self._places[:, :0]
        first = min(count, self._latest_start + sink) if begin == 0 else 0
        chunks = []
        for low in range(0, count, CHUNK):
            high = min(count, low + CHUNK)
            early, late = slice(0, min(first, high)), slice(max(first, low - window + 1), high)
            old = [part if begin else part[:, :, :0] for part in self._near]
            keys, values = (
                torch.cat([before, new[:, :, early], new[:, :, late]], 2)
                for before, new in zip(old, (key, value), strict=True)
            )
            at = torch.cat([stored, places[:, early], places[:, late]], 1)[:, None]  # B, 1, S
            own = places[:, low:high, None]  # B, t, 1
            seen = (at >= 0) & (at <= own) & ((at < sink) | (own - at < window))
            seen |= own < 0  # padding sees anything, so that nothing is undefined; nobody reads it
            chunks.append(short(query[:, :, low:high], keys, values, seen[:, None]))
        self._store(key, value, places, begin)
        return torch.cat(chunks, 1)

    def _store(self, key: Tensor, value: Tensor, places: Tensor, begin: int) -> None:
        """Keep the first tokens of each row, and of the others the last ones in the ring."""
        sink, window, count = self._owner.sink, self._owner.window, key.shape[2]
        kept = torch.arange(max(0, count - window), count, device=key.device)
        slots = sink + (kept + begin) % window
        later = places[:, kept]
        self._places[:, slots] = torch.where(later < sink, _EMPTY, later)
        for memory, new in zip(self._near, (key, value), strict=True):
            memory[:, :, slots] = new[:, :, kept]
        rows, tokens = torch.nonzero((places >= 0) & (places < sink), as_tuple=True)
        self._places[rows, places[rows, tokens]] = places[rows, tokens]
        for memory, new in zip(self._near, (key, value), strict=True):
            memory[rows, :, places[rows, tokens]] = new[rows, :, tokens]
