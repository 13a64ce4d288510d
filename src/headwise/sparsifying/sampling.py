"""Text sampled from the model itself: what it knows, in its own words, at no cost in data.

A broad start gives broad text: pieces of the given texts go on as the model would go on, openings of many kinds
(encyclopaedia, story, dialogue, sums, code) become texts of that kind, and a model with a chat template also
writes questions of its own and answers them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.model.decode import Batch
from headwise.model.load import Model
from headwise.sparsifying.openings import OPENINGS, QUESTIONS

_LONGEST_START = 32


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
    starts = [_start(model, texts, draw) for _ in range(count)]
    at_once = 4096 if model.device.type == "cuda" else 16
    done: list[Tensor] = []
    for number, first in enumerate(range(0, count, at_once)):
        done.append(_continued(model, starts[first : first + at_once], length, seed * 100_003 + number))
        advance(len(done[-1]))
    return torch.cat(done)


def _start(model: Model, texts: Tensor, draw: random.Random) -> list[int]:
    text = model.text
    chat = bool(getattr(text.tokenizer, "chat_template", None))
    kinds = [_from_texts] * (3 if len(texts) else 0) + [_from_opening] * 3 + [_from_chat] * (4 if chat else 0)
    start = draw.choice(kinds)(model, texts, draw)
    return start[:_LONGEST_START] or text.start()


def _from_texts(model: Model, texts: Tensor, draw: random.Random) -> list[int]:
    row = texts[draw.randrange(len(texts))].tolist()[len(model.text.prefix) :]
    first = draw.randrange(max(1, len(row) - 24))
    return [*model.text.prefix, *row[first : first + draw.randint(4, 24)]]


def _from_opening(model: Model, texts: Tensor, draw: random.Random) -> list[int]:
    return model.text.encode(draw.choice(OPENINGS))


def _from_chat(model: Model, texts: Tensor, draw: random.Random) -> list[int]:
    """Up to the user's first words: the model writes the rest of the question, and the answer."""
    tokenizer: Any = model.text.tokenizer
    mark = "QUESTION"
    whole = tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False)
    before = whole[: whole.index(mark)] if mark in whole else ""
    if draw.random() < 0.5:
        before = before[before.rfind("<") :] if "<" in before else before  # without a system message
    ids = list(tokenizer(before + draw.choice(QUESTIONS), add_special_tokens=False)["input_ids"])
    return ids[-_LONGEST_START:]


@torch.no_grad()
def _continued(model: Model, starts: list[list[int]], length: int, seed: int) -> Tensor:
    pad = model.text.start()[0]
    batch = Batch(model.hf, starts, pad, cached=True)
    generator = torch.Generator(model.device).manual_seed(seed)
    shortest = min(len(start) for start in starts)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
        for _ in range(length - shortest):
            chances = batch.logits().softmax(-1)
            batch.append(torch.multinomial(chances, 1, generator=generator)[:, 0])
    gaps = batch.width - torch.tensor([len(start) for start in starts], device=batch.ids.device)
    places = gaps[:, None] + torch.arange(
        length, device=batch.ids.device
    )  # N, T: from the first real token on
    return batch.ids.gather(1, places).to(torch.int32).cpu()
