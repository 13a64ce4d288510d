"""Text sampled from the model itself: what it knows, in its own words, at no cost in data.

A broad start gives broad text: pieces of the given texts go on as the model would go on, openings of many kinds
(encyclopaedia, story, dialogue, sums, code) become texts of that kind, and a model with a chat template also
writes questions of its own and answers them.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.model.forward.decode import Batch
from headwise.model.model import Model
from headwise.sparsify.openings import OPENINGS, QUESTIONS

_STARTS = (1, 2, 4, 8, 16)
"""Tokens that are given. Rows of one batch have as many, so that no mask is needed and heads share their keys."""


def sample(
    model: Model,
    texts: Tensor,
    count: int,
    length: int,
    seed: int,
    advance: Callable[[int], None] = lambda count: None,
) -> Tensor:
    """`count` sequences `[N, T]` at temperature 1; the first few tokens of each were given."""
    draw = random.Random(seed)
    starts = sorted((_start(model, texts, draw) for _ in range(count)), key=len)
    on_chip = model.device.type == "cuda"
    at_once = 4096 if on_chip else 16
    hf = _halved(model.hf) if on_chip else model.hf
    done: list[Tensor] = []
    for size, group in itertools.groupby(starts, key=len):
        rows = list(group)
        for first in range(0, len(rows), at_once):
            part = rows[first : first + at_once]
            done.append(_continued(hf, part, length, seed * 100_003 + size * 101 + first))
            advance(len(part))
    return torch.cat(done)


def _halved(hf: torch.nn.Module) -> torch.nn.Module:
    """A copy in bfloat16; only weights: tables of rotary positions stay in float32, as transformers keeps them."""
    half = copy.deepcopy(hf)
    for parameter in half.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return half


def _start(model: Model, texts: Tensor, draw: random.Random) -> list[int]:
    chat = bool(getattr(model.text.tokenizer, "chat_template", None))
    kinds = [_from_texts] * (3 if len(texts) else 0) + [_from_opening] * 3 + [_from_chat] * (4 if chat else 0)
    start = draw.choice(kinds)(model, texts, draw) or model.text.start()
    return start[: max(size for size in _STARTS if size <= len(start))]


def _from_texts(model: Model, texts: Tensor, draw: random.Random) -> list[int]:
    row = texts[draw.randrange(len(texts))].tolist()[len(model.text.prefix) :]
    first = draw.randrange(max(1, len(row) - _STARTS[-1]))
    return [*model.text.prefix, *row[first : first + draw.choice(_STARTS)]]


def _from_opening(model: Model, texts: Tensor, draw: random.Random) -> list[int]:
    return model.text.encode(draw.choice(OPENINGS))


def _from_chat(model: Model, texts: Tensor, draw: random.Random) -> list[int]:
    """Up to the user's first words: the model writes the rest of the question, and the answer."""
    tokenizer: Any = model.text.tokenizer
    mark = "QUESTION"
    whole = model.text.chat([{"role": "user", "content": mark}], add_generation_prompt=False)
    before = whole[: whole.index(mark)] if mark in whole else ""
    # Only the turn's own beginning: a system message is the same in every sample.
    before = before[before.rfind("<") :] if "<" in before else before
    return list(tokenizer(before + draw.choice(QUESTIONS), add_special_tokens=False)["input_ids"])


@torch.no_grad()
def _continued(hf: torch.nn.Module, starts: list[list[int]], length: int, seed: int) -> Tensor:
    batch = Batch(hf, starts)
    generator = torch.Generator(batch.ids.device).manual_seed(seed)
    for _ in range(length - batch.width):
        # The largest of logit + Gumbel noise is a draw from the softmax, without sorting or summing it.
        logits = batch.logits()
        noise = torch.empty_like(logits).exponential_(generator=generator)
        batch.append((logits - noise.log_()).argmax(-1))
    return batch.ids.to(torch.int32).cpu()
