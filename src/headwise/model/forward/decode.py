"""Passes that go on from a KV cache: a left-padded batch that grows by one token per step, and rows that begin alike.

Where all rows of a batch share a prefix (the solved examples before each question), it is read once and every row gets
its KV cache; padding then stands after it. `verify/shortcuts.py` verifies which of this is exact for a model.

B rows that are still writing (of a `Past`: B = V·S, V variants, S rows of a block), T tokens so far, t of the past.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.model.forward.run import Output, Pass, SharedRows, run
from headwise.model.sites.attention_function import HeadHook
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.probe import entry_device


class Batch:
    """Rows that write at the same pace. Read `logits`, `append` one token to each row, `keep` those not done."""

    def __init__(
        self,
        hf: nn.Module,
        prompts: Sequence[Sequence[int]],
        *,
        pad: int = 0,
        cached: bool = True,
        shared: int = 0,
        piece: int | None = None,
        hooks: HeadHooks | None = None,
        cache: Any = None,
    ) -> None:
        """pad: token id of the padding. cached: keep keys and values. shared: how many first tokens of all prompts are
        the same and are read once. piece: read long prompts in pieces of this many tokens, so that activations of one
        piece are held at a time (needs `cached`, and heads that are edited alike at every position). hooks: needed to
        edit heads. cache: an empty one of another kind than the model's own."""
        device = entry_device(hf)
        self.width = max(len(prompt) for prompt in prompts)
        gaps = [self.width - len(prompt) for prompt in prompts]
        self.hf, self.hooks = hf, hooks
        self.ids = torch.tensor(
            [
                [*prompt[:shared], *[pad] * gap, *prompt[shared:]]
                for gap, prompt in zip(gaps, prompts, strict=True)
            ],
            device=device,
        )
        self.mask = torch.ones_like(self.ids)
        for row, gap in enumerate(gaps):
            self.mask[row, shared : shared + gap] = 0
        self.cached = cached
        self._cache: Any = cache
        self._shared = shared
        self._piece = piece if cached else None
        self._read = 0  # how many tokens of each row the cache holds
        self._takes_positions = "position_ids" in inspect.signature(hf.forward).parameters

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def unread(self) -> int:
        """How many tokens of each row the next step reads."""
        return self.ids.shape[1] - (self._read or self._shared)

    def answering(self) -> Tensor | None:
        """`[unread]`: True from the last prompt token on; None where that is all the next step reads."""
        if self.unread == 1:
            return None
        positions = torch.arange(self.ids.shape[1], device=self.ids.device)
        return positions[-self.unread :] >= self.width - 1

    def logits(self, heads: HeadHook | None = None, **more: Any) -> Tensor:
        """Next-token logits `[B, vocabulary]` after each row, at least in float32; `heads` edits the heads' outputs.

        more: further fields of the `Pass`. Where blocks are skipped (`resume_from`), `fill` gives their keys and
        values.
        """
        if self._shared and not self._read:
            self._run(self.ids[:1, : self._shared], self.mask[:1, : self._shared], heads)
            self._cache.batch_repeat_interleave(len(self))
        while self._piece is not None and self.unread > self._piece:
            end = self.ids.shape[1] - self.unread + self._piece
            self._run(self.ids[:, :end], self.mask[:, :end], heads)
        return self._run(self.ids, self.mask, heads, more).logits[:, -1]

    def _run(
        self, ids: Tensor, mask: Tensor, heads: HeadHook | None, more: Mapping[str, Any] | None = None
    ) -> Output:
        """Read what the cache does not hold yet; logits of the last token alone."""
        unread = ids.shape[1] - self._read
        inputs: dict[str, Any] = {"attention_mask": mask, "use_cache": self.cached}
        if self._takes_positions:
            inputs["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)[:, -unread:]
        if self._cache is not None:
            inputs["past_key_values"] = self._cache
        last = torch.full((len(ids), 1), unread - 1, device=ids.device)
        request = Pass(ids=ids[:, -unread:], scored=last, inputs=inputs, heads=heads, **(more or {}))
        output = run(self.hf, request, self.hooks)
        if self.cached:
            self._cache, self._read = output.raw.past_key_values, ids.shape[1]
        return output

    def cached_layers(self) -> list[tuple[Tensor, Tensor]] | None:
        """Keys and values of every layer; None where the cache holds anything but all keys and values."""
        return _layers(self._cache)

    def fill(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Give the first layers of the cache the keys and values that a pass with skipped blocks did not compute."""
        for index, (keys, values) in enumerate(layers):
            self._cache.update(keys, values, index)

    def append(self, tokens: Tensor) -> None:
        """One more token `[B]` for each row."""
        self.ids = torch.cat([self.ids, tokens[:, None].to(self.ids)], dim=1)
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self), 1)], dim=1)

    def keep(self, rows: Tensor) -> None:
        """Only these rows go on."""
        rows = rows.to(self.ids.device)
        self.ids, self.mask = self.ids[rows], self.mask[rows]
        if self._cache is not None:
            # Meant for beams, but it is the one selection that every kind of cache layer has.
            self._cache.reorder_cache(rows)


def _layers(cache: Any) -> list[tuple[Tensor, Tensor]] | None:
    layers = getattr(cache, "layers", None)
    if not layers or any(type(layer).__name__ != "DynamicLayer" for layer in layers):
        return None
    return [(layer.keys, layer.values) for layer in layers]


# ---- rows that begin alike -------------------------------------------------------------------------------
# What their first tokens have computed is read from a KV cache, and only the rest is run. A head that is gated at one
# position changes nothing at earlier tokens, because attention is causal. Many gates at a position then need the
# tokens before it once.


@dataclass(frozen=True)
class Past:
    """Keys and values of the first t tokens of S rows, in every layer."""

    cache: type[Any]
    layers: list[tuple[Tensor, Tensor]]  # S, key/value heads, t, D

    @classmethod
    def read(cls, hooks: HeadHooks, ids: Tensor) -> Past:
        """Run the first tokens `ids[S, t]` of the rows, all gates at 1."""
        first = torch.zeros_like(ids[:, :1])
        output = run(hooks.model, Pass(ids=ids, scored=first, inputs={"use_cache": True}), hooks)
        cache = output.raw.past_key_values
        layers = _layers(cache)
        if layers is None or len(layers) != len(hooks.blocks):
            raise ValueError("the cache holds something else than the keys and values of every block")
        return cls(type(cache), layers)

    def inputs(self, times: int, shared: Mapping[int, SharedRows], tokens: int) -> dict[str, Any]:
        """Arguments of the model for the next `tokens` of the rows, all of them repeated; `shared`: see `Pass`."""
        keys = self.layers[0][0]
        rows, t = torch.arange(len(keys), device=keys.device), keys.shape[2]
        cache = self.cache()
        for block, (keys, values) in enumerate(self.layers):
            chosen = shared[block].compute % len(rows) if block in shared else rows.repeat(times)
            cache.update(*(part.index_select(0, chosen.to(part.device)) for part in (keys, values)), block)
        places = torch.arange(t, t + tokens, device=keys.device)[None]
        return {"past_key_values": cache, "use_cache": True, "position_ids": places}
