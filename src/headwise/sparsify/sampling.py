"""Text sampled from the model itself, which keeps what it knows without further data.

The model continues pieces of the given texts and openings of many kinds (encyclopaedia, story, dialogue, sums, code);
a model with a chat template also writes questions and answers them.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Callable
from importlib import resources

import torch
from torch import Tensor

from headwise.model.forward.decode import Batch
from headwise.model.model import Model

_WORDS = json.loads(resources.files("headwise.sparsify").joinpath("openings.json").read_text("utf-8"))
"""First words of texts and of questions of many kinds; the model continues them."""
_STARTS = (1, 2, 4, 8, 16)
"""Numbers of given tokens. Rows of one batch have the same number, so no mask is needed."""


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
    hf, at_once = (_in_bfloat16(model.hf), 4096) if model.device.type == "cuda" else (model.hf, 16)
    done: list[Tensor] = []
    for size, group in itertools.groupby(starts, key=len):
        rows = list(group)
        for first in range(0, len(rows), at_once):
            part = rows[first : first + at_once]
            done.append(_continued(hf, part, length, seed * 100_003 + size * 101 + first))
            advance(len(part))
    return torch.cat(done)


def _in_bfloat16(hf: torch.nn.Module) -> torch.nn.Module:
    """A copy with weights in bfloat16; tables of rotary positions stay in float32, as transformers keeps them."""
    converted = copy.deepcopy(hf)
    for parameter in converted.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return converted


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
    return model.text.encode(draw.choice(_WORDS["openings"]))


def _from_chat(model: Model, texts: Tensor, draw: random.Random) -> list[int]:
    """A chat up to the user's first words: the model writes the rest of the question, and the answer."""
    chat = model.text.chat([{"role": "user", "content": "QUESTION"}], add_generation_prompt=False)
    before, marker, _ = chat.partition("QUESTION")
    # Only the beginning of the turn: a system message is the same in every sample.
    before = before[max(before.rfind("<"), 0) :] if marker else ""
    start = before + draw.choice(_WORDS["questions"])
    return model.text.encode_rendered(start)


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
