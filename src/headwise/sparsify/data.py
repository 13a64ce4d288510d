"""Training text: files as token sequences of one length, text sampled from the model itself, and which sequences make
up which update.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from headwise.errors import HeadwiseError, flag
from headwise.model.forward.decode import Batch
from headwise.model.model import Model
from headwise.model.tokens.text import Text, tokenized

_CALCULATOR = re.compile(r"<<.*?>>")  # GSM8K's notes to a calculator are not part of its text
_FIELDS = (("text",), ("question", "answer"), ("prompt", "target"), ("input", "output"))
_HELD_BACK = 24
"""One sequence in this many is never trained on; the checks during training use it."""
_MOST_HELD_BACK = 48


def read_text(path: Path) -> str:
    """A plain text file, or the texts of a JSON-lines file one below the other."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HeadwiseError(f"the text {path} cannot be read: {error}") from error
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        return content
    return "\n\n".join(
        _row_text(line, path, number) for number, line in enumerate(content.splitlines(), 1) if line.strip()
    )


def _row_text(line: str, path: Path, number: int) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise HeadwiseError(f"{path}, line {number}: not JSON ({error})") from error
    for fields in _FIELDS:
        if isinstance(row, dict) and all(isinstance(row.get(field), str) for field in fields):
            return _CALCULATOR.sub("", "\n".join(row[field].strip() for field in fields))
    expected = " or ".join("+".join(fields) for fields in _FIELDS)
    raise HeadwiseError(f"{path}, line {number}: no text in it; expected the fields {expected}")


def sequences(text: Text, paths: Sequence[Path], length: int, most: int | None = None) -> Tensor:
    """The files' tokens, cut into rows `[N, length]`; what is left over at the end of a file is dropped."""
    rows = [torch.empty(0, length, dtype=torch.int32)]
    new_tokens = length - len(text.prefix)
    for path in paths:
        ids = tokenized(text.tokenizer, read_text(path), verbose=False)["input_ids"]
        if len(ids) < new_tokens:
            raise HeadwiseError(
                f"{path} has {len(ids)} tokens; at least one sequence of {new_tokens} is needed"
            )
        body = torch.tensor(ids[: len(ids) // new_tokens * new_tokens], dtype=torch.int32)
        body = body.view(-1, new_tokens)[:most]
        prefix = torch.tensor(text.prefix, dtype=torch.int32).expand(len(body), -1)
        rows.append(torch.cat([prefix, body], dim=1))
    return torch.cat(rows)


class Pool:
    """Text sequences and sampled ones `[N, T]`, drawn without replacement until each is used up.

    The sequences of an update are a function of the seed and the update's number alone.
    """

    def __init__(self, texts: Tensor, sampled: Tensor, batch: int, text_share: float, seed: int) -> None:
        sources = [part for part in (texts, sampled) if len(part)]
        if not sources:
            raise HeadwiseError(
                f"there is nothing to train on; give {flag('text')}, or {flag('sample')}, or both"
            )
        held_back, self._parts = [], []
        for part in sources:
            held = torch.arange(len(part)) % max(_HELD_BACK, -(-len(part) // _MOST_HELD_BACK)) == 0
            held_back.append(part[held])
            self._parts.append(part if held.all() else part[~held])
        self.held_back = torch.cat(held_back)
        self.held_back_given = _first(len(held_back[0]) if len(texts) else 0, len(self.held_back))
        from_text = min(batch - 1, max(1, round(batch * text_share))) if len(sources) == 2 else batch
        self._counts = [from_text, batch - from_text][: len(sources)]
        self.given = _first(from_text if len(texts) else 0, batch)
        """Which sequences of every batch are from the given texts, 1 or 0 `[B]`."""
        self._seed = seed

    def batch(self, step: int) -> Tensor:
        """The sequences of one update `[B, T]`."""
        return torch.cat([self._draw(part, step) for part in range(len(self._parts))])

    def _draw(self, part: int, step: int) -> Tensor:
        sequences, count = self._parts[part], self._counts[part]
        rows = []
        for number in range(step * count, (step + 1) * count):
            epoch, position = divmod(number, len(sequences))
            order = _shuffled(len(sequences), self._seed * 1_000_003 + epoch * 2 + part)
            rows.append(int(order[position]))
        return sequences[rows]


@lru_cache(maxsize=4)  # both parts, in this epoch and the next
def _shuffled(size: int, seed: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def _first(count: int, size: int) -> Tensor:
    return (torch.arange(size) < count).float()


# ---- text sampled from the model itself, which keeps what it knows without further data ------------------
# The model continues pieces of the given texts and openings of many kinds (encyclopaedia, story, dialogue, sums,
# code); a model with a chat template also writes questions and answers them.


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
    kinds = (
        [_from_texts] * (3 * (len(texts) > 0))
        + [_from_opening] * 3
        + [_from_chat] * (4 * model.text.has_chat)
    )
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
