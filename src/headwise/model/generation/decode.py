"""A left-padded batch that grows by one token per step: mask, positions and the key/value cache.

Whether a model may be padded on the left and may go on from a cache is not assumed. Both are compared with
plain runs on a few tokens, once per model; where one fails, batches hold prompts of equal length only, or
every step reads the whole text again. Where all rows begin alike (the solved examples before each question), that
beginning is read once and its cache handed to every row; padding then stands after it.

B rows that are still writing, T tokens so far.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headwise.model.forward.unembed import logits_at, narrowed
from headwise.model.sites.devices import entry_device
from headwise.model.sites.probe import probe_input, weight_dtype


@dataclass(frozen=True)
class Abilities:
    """What was shown to be exact for a model."""

    padding: bool
    """Prompts of different lengths may share a batch."""
    cache: bool
    """A step may read one token and the cache instead of the whole text."""
    prefix: bool = False
    """What all rows begin with may be read once for all of them."""


class Batch:
    """Rows that write at the same pace. Read `logits`, `append` one token to each row, `keep` those not done."""

    def __init__(
        self, hf: nn.Module, prompts: Sequence[Sequence[int]], pad: int, cached: bool, shared: int = 0
    ) -> None:
        """`shared`: how many first tokens of all prompts are the same and are to be read once."""
        device = entry_device(hf)
        self.width = max(len(prompt) for prompt in prompts)
        gaps = [self.width - len(prompt) for prompt in prompts]
        self.hf = hf
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
        self._cache: Any = None
        self._shared = shared
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
        places = torch.arange(self.ids.shape[1], device=self.ids.device)
        return places[-self.unread :] >= self.width - 1

    def logits(self) -> Tensor:
        """Next-token logits `[B, vocabulary]` after each row; half precision is widened."""
        if self._shared and not self._read:
            self._run(self.ids[:1, : self._shared], self.mask[:1, : self._shared])
            self._cache.batch_repeat_interleave(len(self))
        logits: Tensor = self._run(self.ids, self.mask).logits[:, -1]
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def _run(self, ids: Tensor, mask: Tensor) -> Any:
        """Read what the cache does not hold yet; logits of the last token alone."""
        unread = ids.shape[1] - self._read
        inputs: dict[str, Any] = {"input_ids": ids[:, -unread:], "attention_mask": mask}
        if self._takes_positions:
            inputs["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)[:, -unread:]
        if self._cache is not None:
            inputs["past_key_values"] = self._cache
        last = torch.full((len(ids), 1), unread - 1, device=ids.device)
        with narrowed(self.hf, last):
            output = self.hf(**inputs, use_cache=self.cached)
        if self.cached:
            self._cache, self._read = output.past_key_values, ids.shape[1]
        return output

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


_SHOWN: weakref.WeakKeyDictionary[nn.Module, Abilities] = weakref.WeakKeyDictionary()


def abilities(hf: nn.Module, pad: int) -> Abilities:
    """What this model's batches may do, compared once with plain runs."""
    if hf not in _SHOWN:
        tried = [Abilities(padding, cache) for cache in (True, False) for padding in (True, False)]
        able = next((able for able in tried if _holds(hf, pad, able)), Abilities(False, False))
        sharing = replace(able, prefix=True)
        if able.padding and able.cache and not _windowed(hf) and _holds(hf, pad, sharing):
            able = sharing
        _SHOWN[hf] = able
    return _SHOWN[hf]


def _windowed(hf: nn.Module) -> bool:
    """Whether a layer counts how far back it may look: padding after a shared beginning would count as distance."""
    config = hf.config.get_text_config()  # type: ignore[operator, union-attr]
    names = ("sliding_window", "window_size", "attention_chunk_size", "attention_window_size", "local_window")
    return any(isinstance(getattr(config, name, None), int) for name in names)


def _holds(hf: nn.Module, pad: int, able: Abilities) -> bool:
    """Three rows, two steps, one row leaves in between: the others must not notice anything."""
    tokens = probe_input(hf)[0].tolist()
    shared = 2 if able.prefix else 0
    if shared:
        rows = [tokens, [*tokens[:2], tokens[4]], [*tokens[:3], *tokens[:2]]]
    else:
        rows = [tokens, tokens[2:] if able.padding else tokens[::-1], tokens[:3] if able.padding else tokens]
    grown = [[*row, tokens[1]] for row in rows]

    def alone(row: list[int]) -> Tensor:
        ids = torch.tensor([row], device=entry_device(hf))
        return logits_at(hf, ids, torch.full_like(ids[:, :1], len(row) - 1))[0, 0]

    with torch.no_grad():
        first = torch.stack([alone(row) for row in rows])
        second = torch.stack([alone(row) for row in grown[1:]])
        try:
            batch = Batch(hf, rows, pad, able.cache, shared)
            first_batched = batch.logits()
            batch.append(torch.tensor([tokens[1]] * 3, device=batch.ids.device))
            batch.keep(torch.tensor([1, 2]))
            second_batched = batch.logits()
        except Exception:  # a family without this ability raises whatever it likes; it is run without
            return False
    limit = _rounding(hf) * max(1.0, float(first.abs().max()))
    pairs = ((first_batched, first), (second_batched, second))
    return all(bool(((ours - plain).abs() <= limit).all()) for ours, plain in pairs)


def _rounding(hf: nn.Module) -> float:
    """How far logits of the same text may lie apart, as a share of the largest.

    Trained models amplify rounding on a few odd tokens: the bundled one by 300 steps of float32. A lost mask or a
    wrong position moves logits by their own size.
    """
    dtype = weight_dtype(hf)
    half = dtype in (torch.float16, torch.bfloat16)
    return 64 * torch.finfo(dtype).eps if half else 1024 * torch.finfo(torch.float32).eps
