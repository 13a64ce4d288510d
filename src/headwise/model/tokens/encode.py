"""Examples to rows of token ids, and the positions and tokens whose logits are scored.

A row is one input of the model. Most metrics need one row per example; comparing whole continuations needs
one for the target and one for each foil. The last token of a continuation is predicted, not read, so it is
not part of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.model.tokens.text import Text, common_prefix

if TYPE_CHECKING:
    from headwise.tasks.examples import Example

Needs = Literal["target", "pairs", "sets", "candidates"]
"""What a metric reads: every target token; target and foil at their first difference, foil by foil; all right
and all wrong tokens at the first difference of all; or whole continuations against one another."""


@dataclass
class Row:
    """One input, and the logits that are scored."""

    example: int
    ids: list[int]
    start: int
    """`ids[:start]` is the prompt, the rest the continuation."""
    positions: list[int]
    """Where logits are read."""
    tokens: list[int]
    """The right next token at each of `positions`."""
    rights: list[tuple[int, int]] = field(default_factory=list)
    """(slot in `positions`, token) of the right answers, and of the wrong ones."""
    wrongs: list[tuple[int, int]] = field(default_factory=list)
    whole: bool = True
    """Whether the example has this row only; else its continuation is compared with those of other rows."""
    dropped: int = 0
    """Number of tokens that were cut from the beginning of a prompt that was too long."""


@dataclass
class Scored:
    """Logits of a batch of rows at the positions that were asked for. B rows, P positions, R answers."""

    logits: Tensor  # B, P, vocabulary
    tokens: Tensor  # B, P
    mask: Tensor  # B, P: real positions
    rights: Tensor  # B, R, 2: slot and token; slot -1 where there is none
    wrongs: Tensor  # B, R, 2
    whole: Tensor  # B
    full: Tensor | None = None
    """The same rows' logits with every gate at 1, for metrics that compare."""

    def picked(self, answers: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits `[B, R]` of the given (slot, token) answers, and a mask of those that exist."""
        logits = self.logits if logits is None else logits
        exists = answers[..., 0] >= 0
        slot = answers[..., 0].clamp_min(0)
        row = torch.arange(len(logits), device=logits.device)[:, None]
        return logits[row, slot, answers[..., 1]], exists


def encode_rows(text: Text, examples: Sequence[Example], needs: Needs) -> list[Row]:
    """The rows that a metric with these needs has to see, in the order of the examples."""
    continuations = [(e.target, *e.also, *e.foils) for e in examples]
    flat = text.trimmed([e.prompt for e in examples])
    flat += [p + c for p, several in zip(flat, continuations, strict=True) for c in several]
    encoded = iter(text.encode_whole(flat))
    prompts = [next(encoded) for _ in examples]
    wholes = [
        [_after(text, prompts[index], next(encoded), example, c) for c in continuations[index]]
        for index, example in enumerate(examples)
    ]
    # The last token is predicted and never read. All answers of an example follow the same prompt.
    over = text.excess((max(len(ids) - 1 for ids, _ in texts) for texts in wholes), "example")
    rows: list[Row] = []
    for index, (example, texts, excess) in enumerate(zip(examples, wholes, over, strict=True)):
        if excess:
            texts = [_cut(text, example, ids, start, excess) for ids, start in texts]
        rights, wrongs = texts[: 1 + len(example.also)], texts[1 + len(example.also) :]
        new = _rows_of(index, example, rights, wrongs, needs)
        for row in new:
            row.dropped = excess
        rows += new
    return rows


_Continued = tuple[list[int], int]
"""Prompt and continuation as one list of tokens, and where the continuation begins."""


def _after(
    text: Text, prompt: list[int], joined: list[int], example: Example, continuation: str
) -> _Continued:
    """Prompt and continuation are tokenised together, as the model would read them."""
    shared = common_prefix(prompt, joined)
    if shared >= len(joined):
        raise HeadwiseError(
            f"the continuation {continuation!r} of the prompt {_short(example.prompt)!r} tokenises to nothing; "
            "a target or foil needs at least one token of its own"
        )
    if shared == 0:
        start = text.start()
        return start + joined, len(start)
    return joined, shared


def _cut(text: Text, example: Example, ids: list[int], start: int, excess: int) -> _Continued:
    if start - excess <= len(text.prefix):
        raise HeadwiseError(
            f"an answer to {_short(example.prompt)!r} has {len(ids) - start} tokens, which leave no room for a prompt: "
            f"the context length of the model is {text.longest}"
        )
    return text.without(ids, excess), start - excess


def _rows_of(
    index: int, example: Example, rights: list[_Continued], wrongs: list[_Continued], needs: Needs
) -> list[Row]:
    if needs in ("pairs", "sets") and not wrongs:
        raise HeadwiseError(
            f"example {index + 1} ({_short(example.prompt)!r}) has no foils, but this metric compares the target "
            "with foils; give foils, or use a metric such as logprob"
        )
    if needs == "sets":
        return [_sets_row(index, example, rights, wrongs)]
    target, start = rights[0]
    answers = [rights[0], *wrongs] if needs == "candidates" else rights[:1]
    # Candidates of one token each are compared at one position.
    single = all(len(ids) == start + 1 and ids[:start] == target[:start] for ids, _ in answers)
    if needs == "pairs" or (len(answers) > 1 and single):
        return [_pairs_row(index, example, rights[0], wrongs)]
    alone = len(answers) == 1
    return [Row(index, a[:-1], at, [*range(at - 1, len(a) - 1)], a[at:], whole=alone) for a, at in answers]


def _pairs_row(index: int, example: Example, right: _Continued, wrongs: list[_Continued]) -> Row:
    target, start = right
    differences = [_first_difference(example, target, foil) for foil, _ in wrongs]
    last, slots = max(differences), sorted(set(differences))
    row = Row(index, target[:last], min(start, last), [p - 1 for p in slots], [target[p] for p in slots])
    row.rights = [(slots.index(p), target[p]) for p in differences]
    row.wrongs = [(slots.index(p), foil[p]) for p, (foil, _) in zip(differences, wrongs, strict=True)]
    return row


def _sets_row(index: int, example: Example, rights: list[_Continued], wrongs: list[_Continued]) -> Row:
    target, start = rights[0]
    first = min(_first_difference(example, target, other) for other, _ in [*rights[1:], *wrongs])
    right = {ids[first] for ids, _ in rights}
    wrong = {ids[first] for ids, _ in wrongs}
    if not right - wrong or not wrong - right:
        raise HeadwiseError(
            f"example {index + 1} ({_short(example.prompt)!r}): right and wrong answers begin with the same tokens "
            "under this tokenizer, so their probabilities cannot be compared"
        )
    row = Row(index, target[:first], min(start, first), [first - 1], [target[first]])
    row.rights = [(0, token) for token in sorted(right - wrong)]
    row.wrongs = [(0, token) for token in sorted(wrong - right)]
    return row


def _first_difference(example: Example, target: list[int], other: list[int]) -> int:
    first = common_prefix(target, other)
    if first < min(len(target), len(other)):
        return first
    raise HeadwiseError(
        f"after {_short(example.prompt)!r} one answer begins with another one (target {example.target!r}, "
        f"foils {', '.join(map(repr, example.foils))}); answers must differ in a token"
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else "…" + text[-57:]


def pad_right(lists: Sequence[Sequence[int]]) -> Tensor:
    """One tensor of token numbers; each list is continued with its own last token.

    Scoring needs no mask for it: later tokens cannot reach earlier ones. The padding token is avoided because
    some families number positions by it.
    """
    longest = max(len(items) for items in lists)
    return torch.tensor([[*items, *[items[-1]] * (longest - len(items))] for items in lists])


def batch_of(rows: Sequence[Row]) -> dict[str, Tensor]:
    """A batch of rows as tensors, without the logits: ids, positions, and the fields of `Scored`."""

    def answers(lists: list[list[tuple[int, int]]]) -> Tensor:
        width = max((len(items) for items in lists), default=0)
        filled = [[*items, *[(-1, 0)] * (width - len(items))] for items in lists]
        return torch.tensor(filled, dtype=torch.long).reshape(len(lists), width, 2)

    widest = max(len(row.positions) for row in rows)
    return {
        "ids": pad_right([row.ids for row in rows]),
        "positions": pad_right([row.positions for row in rows]),
        "tokens": pad_right([row.tokens for row in rows]),
        "mask": torch.tensor([[i < len(row.positions) for i in range(widest)] for row in rows]),
        "rights": answers([row.rights for row in rows]),
        "wrongs": answers([row.wrongs for row in rows]),
        "whole": torch.tensor([row.whole for row in rows]),
    }
