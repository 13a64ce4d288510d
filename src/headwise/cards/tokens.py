"""Tokens that a head promotes and suppresses: by what it writes at the answer, and by its OV weights alone.

A logit here is what the head itself adds to a token's logit, relative to the mean over the vocabulary: adding the same
number to every logit changes no probability. Everything that later layers do with the head's output is left out.

E examples, V tokens of the vocabulary, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.forward.schedule import batches
from headwise.model.model import Model
from headwise.model.outputs.readout import FrozenNorm, Readout
from headwise.model.outputs.stream import value_outputs
from headwise.model.sites.attention_function import Watcher
from headwise.model.tokens.encode import encode_rows, pad_right
from headwise.tasks.examples import Task

LISTED = 10
"""Tokens in a list of promoted or suppressed ones."""
SOURCES = 128
"""Most tokens of the prompts whose own logit is read from the OV weights."""
_AT_ONCE = 2**25
"""Most logits in memory at once, in numbers."""


@dataclass(frozen=True)
class Prompt:
    """What the model reads before the first token in which the right and the wrong answers differ."""

    ids: list[int]
    target: int
    foils: tuple[int, ...]


def answer_prompts(model: Model, task: Task) -> list[Prompt]:
    """Each example up to the position that predicts its answer."""
    try:
        rows = encode_rows(model.text, task.examples, "pairs")
    except HeadwiseError:  # no foils, or answers that begin with one another
        rows = encode_rows(model.text, task.examples, "target")
    prompts = []
    for row in rows:
        slot, target = row.rights[0] if row.rights else (0, row.tokens[0])
        foils = dict.fromkeys(token for at, token in row.wrongs if at == slot)
        prompts.append(Prompt(row.ids[: row.positions[slot] + 1], target, tuple(foils)))
    return prompts


class TokenReader:
    """What heads of one model write towards every token; refuses models whose path to the logits is not linear."""

    def __init__(
        self, model: Model, prompts: Sequence[Prompt], watch: Callable[[list[int]], Watcher] | None = None
    ) -> None:
        """Run the prompts once; the output of every head at the answer is kept.

        watch: gives, for the prompts of these numbers, what sees the attention calls of their pass.
        """
        self.model, self.prompts = model, prompts
        self.readout = model.once("readout", lambda: Readout(model))
        self.vocabulary = min(model.vocabulary, len(model.text.tokenizer))
        """Tokens that the tokenizer has: some unembeddings are padded with rows that were never trained."""
        self._runs: list[tuple[list[int], dict[int, Tensor], dict[nn.Module, FrozenNorm]]] = []
        budget = min(
            model.batch_tokens, max(1, _AT_ONCE // model.vocabulary) * min(len(p.ids) for p in prompts)
        )
        for numbers in batches([len(prompt.ids) for prompt in prompts], budget):
            ids = pad_right([prompts[n].ids for n in numbers]).to(model.device)
            last = torch.tensor([[len(prompts[n].ids) - 1] for n in numbers], device=model.device)
            reading = self.readout.read(ids, last, watch and watch(numbers))
            self._runs.append((numbers, reading.z, reading.norms))

    def output_table(self, head: Head, chosen: Collection[int] | None = None) -> pd.DataFrame:
        """What the head writes at the answer of every example: the target and the foils; of the `chosen` examples (by
        default all) also ten tokens up and down."""
        rows: list[dict[str, Any]] = []
        for numbers, z, norms in self._runs:
            logits = self._logits(head, z[head.layer][:, :, head.head], norms)
            for number, of_example in zip(numbers, logits, strict=True):
                prompt = self.prompts[number]
                answers = [("target", prompt.target), *(("foil", token) for token in prompt.foils)]
                of_tokens = self._listed(
                    of_example, answers, LISTED if chosen is None or number in chosen else 0
                )
                rows += [{"path": "output", "example": number, "source": "", **row} for row in of_tokens]
        return pd.DataFrame(rows).sort_values("example", kind="stable").reset_index(drop=True)

    def weights_table(self, head: Head, listed: Sequence[int]) -> pd.DataFrame:
        """What the OV weights make of tokens of the prompts: each one's own logit; for those `listed`, ten up and down.

        The norms on the way have the mean of their scales over the prompts.
        """
        seen = [token for prompt in self.prompts for token in prompt.ids]
        sources = list(dict.fromkeys([*listed, *seen]))[:SOURCES]
        norms = {norm: _averaged([of_run[norm] for *_, of_run in self._runs]) for norm in self._runs[0][2]}
        rows: list[dict[str, Any]] = []
        at_once = max(1, _AT_ONCE // self.model.vocabulary)
        for first in range(0, len(sources), at_once):
            part = sources[first : first + at_once]
            z = value_outputs(self.model, head.layer, part)[:, None, head.head]
            for source, logits in zip(part, self._logits(head, z, norms), strict=True):
                columns = {"path": "weights", "example": -1, "source": self._text(source)}
                of_tokens = self._listed(logits, [("own", source)], LISTED if source in listed else 0)
                rows += [{**columns, **row} for row in of_tokens]
        return pd.DataFrame(rows)

    def _logits(self, head: Head, z: Tensor, norms: Mapping[nn.Module, FrozenNorm]) -> Tensor:
        """`[B, V]` of the outputs `z[B, 1, D]`, relative to their mean over the vocabulary."""
        logits = self.readout.written(head, z, norms)[:, 0, : self.vocabulary].cpu()
        return logits - logits.mean(-1, keepdim=True)

    def _listed(
        self, logits: Tensor, named: Sequence[tuple[str, int]], most: int
    ) -> Iterator[dict[str, Any]]:
        """Rows of the `most` promoted and most suppressed tokens, and of the `named` ones (kind, token)."""
        count = len(logits)
        up, down = logits.topk(min(most, count)), (-logits).topk(min(most, count))
        ranked = [("promoted", place + 1, int(token)) for place, token in enumerate(up.indices)]
        ranked += [("suppressed", count - place, int(token)) for place, token in enumerate(down.indices)]
        ranked += [
            (kind, 1 + int((logits > logits[token]).sum()), token) for kind, token in named if token < count
        ]
        for kind, rank, token in ranked:
            logit = float(logits[token])
            yield {"kind": kind, "rank": rank, "of": count, "token": self._text(token), "logit": logit}

    def _text(self, token: int) -> str:
        return self.model.text.readable_token(token)


def _averaged(norms: Sequence[FrozenNorm]) -> FrozenNorm:
    """One norm with the mean scale of several."""
    first, *_ = norms
    scale = torch.cat([norm.scale.flatten() for norm in norms]).mean()
    return FrozenNorm(scale.reshape(1, 1, 1), first.weight, first.bias, first.centred)
