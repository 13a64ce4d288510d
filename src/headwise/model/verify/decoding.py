"""Whether a model may be padded on the left, go on from a KV cache, and read a shared prefix or past once.

None of this is assumed. Each is compared with plain runs on a few tokens; where one fails, batches hold prompts of
equal length only, or every step reads the whole text again.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headwise.model.forward.blocks import SharedRows
from headwise.model.forward.decode import Batch
from headwise.model.forward.past import Past
from headwise.model.forward.run import Pass, run
from headwise.model.sites.devices import entry_device
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.probe import differ_by_rounding, probe_input, weight_dtype


@dataclass(frozen=True)
class Decoding:
    """What was shown to be exact for a model."""

    pad: int
    """Token id of the padding."""
    padding: bool = False
    """Prompts of different lengths may share a batch."""
    cache: bool = False
    """A step may read one token and the KV cache instead of the whole text."""
    prefix: bool = False
    """What all rows begin with may be read once for all of them."""


def decoding(hf: nn.Module) -> Decoding:
    """What this model's batches may do, compared with plain runs."""
    pad = _pad_token(hf)
    tried = [Decoding(pad, padding, cache) for cache in (True, False) for padding in (True, False)]
    able = next((able for able in tried if _holds(hf, able)), Decoding(pad))
    sharing = replace(able, prefix=True)
    if able.padding and able.cache and not _counts_distance(hf) and _holds(hf, sharing):
        return sharing
    return able


def _pad_token(hf: nn.Module) -> int:
    given: Any = getattr(hf.config, "pad_token_id", None)
    words: Any = hf.get_input_embeddings()  # type: ignore[operator]
    return given if isinstance(given, int) and 0 <= given < words.weight.shape[0] else 0


def _counts_distance(hf: nn.Module) -> bool:
    """Whether padding after a shared beginning would count as distance: in windows, and in MPT's linear biases, which
    go by places in the batch. In half precision rounding hides what the latter change."""
    config = hf.config.get_text_config()  # type: ignore[operator, union-attr]
    names = ("sliding_window", "window_size", "attention_chunk_size", "attention_window_size", "local_window")
    windows = any(isinstance(getattr(config, name, None), int) for name in names)
    return windows or bool(getattr(getattr(config, "attn_config", None), "alibi", False))


def _holds(hf: nn.Module, able: Decoding) -> bool:
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
        return run(hf, Pass(ids=ids, scored=torch.full_like(ids[:, :1], len(row) - 1))).logits[0, 0]

    with torch.no_grad():
        first = torch.stack([alone(row) for row in rows])
        second = torch.stack([alone(row) for row in grown[1:]])
        try:
            batch = Batch(hf, rows, pad=able.pad, cached=able.cache, shared=shared)
            first_batched = batch.logits()
            batch.append(torch.tensor([tokens[1]] * 3, device=batch.ids.device))
            batch.keep(torch.tensor([1, 2]))
            second_batched = batch.logits()
        except Exception:  # a family without this ability raises whatever it likes; it is run without
            return False
    limit = _rounding(hf) * max(1.0, float(first.abs().max()))
    pairs = ((first_batched, first), (second_batched, second))
    return all(differ_by_rounding(ours, plain, limit) for ours, plain in pairs)


def past_works(hooks: HeadHooks, share_rows: bool) -> bool:
    """Whether rows that go on from their past, with and without shared rows, have the logits of the whole rows."""
    if "position_ids" not in inspect.signature(hooks.model.forward).parameters:
        return False
    ids = probe_input(hooks.model)
    once = torch.arange(len(ids), device=ids.device)
    shared = {block: SharedRows(once, once.repeat(2)) for block in range(len(hooks.blocks) // 2)}
    try:
        with torch.no_grad():
            whole = run(hooks.model, Pass(ids=ids), hooks).logits[:, 2:]
            past = Past.read(hooks, ids[:, :2])
            inputs = past.inputs(2, shared if share_rows else {}, ids.shape[1] - 2)
            asked = Pass(ids=ids[:, 2:].repeat(2, 1), inputs=inputs, shared=shared if share_rows else {})
            logits = run(hooks.model, asked, hooks).logits
    except Exception:  # a family without this ability raises whatever it likes; its rows are run in full
        return False
    limit = _rounding(hooks.model) * max(1.0, float(whole.abs().max()))
    return differ_by_rounding(logits, whole.repeat(2, 1, 1), limit)


def _rounding(hf: nn.Module) -> float:
    """How far logits of the same text may lie apart, as a share of the largest.

    Trained models amplify rounding on a few odd tokens: the bundled one by 300 steps of float32. A lost mask or a
    wrong position moves logits by their own size.
    """
    dtype = weight_dtype(hf)
    half = dtype in (torch.float16, torch.bfloat16)
    return 64 * torch.finfo(dtype).eps if half else 1024 * torch.finfo(torch.float32).eps
