"""What a head attends to: the previous token, an equal one, what followed an equal one, or the answer.

Q queries, K keys. The first key is never counted: most heads rest there when they have nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.model.attention.blocks import attention_blocks, watchable
from headwise.model.forward.schedule import batches
from headwise.model.tokens.encode import Row, encode_rows, pad_right
from headwise.scores.registry import Setup, register
from headwise.settings import one_of

Kind = Annotated[str, one_of("kind of pattern", lambda: KINDS)]


@register(
    "pattern",
    signed=False,
    about="attention on the previous token, an equal one, what followed one, or the answer in the prompt (kind=)",
)
def pattern(setup: Setup, kind: Kind = "previous") -> np.ndarray:
    """The share of its attention that a head spends where its `kind` would, per example, from 0 to 1; unsigned.

    `previous`: on the token before. `duplicate`: on earlier tokens equal to the query's. `induction`: on the
    tokens that followed those (Elhage et al. 2021; Olsson et al. 2022, arXiv 2209.11895). Each is the mean over
    the prompt's queries for which there is such a key. `retrieval`: where the target is predicted, on copies of
    that token inside the prompt, mean over the target's tokens (Wu et al. 2024, arXiv 2404.15574). Metric and
    reference play no part. Cost: one forward pass, and the weights of one block of queries at a time.
    Known failure: it shows where a head looks, not what it moves from there or whether that matters; a head may
    attend and write nothing.
    """
    rows = encode_rows(setup.model.text, setup.task.examples, "target")
    wanted = [KINDS[kind](row) for row in rows]
    empty = [row.example + 1 for row, mask in zip(rows, wanted, strict=True) if not mask.any()]
    if empty:
        raise HeadwiseError(
            f"{len(empty)} of {len(rows)} examples of task {setup.task.name!r} (the first: example {empty[0]}) have no "
            f"token for the pattern {kind!r}: {_MISSING[kind]}; leave them out, or use kind=previous"
        )
    model = setup.model
    heads, watched = model.heads(), watchable(model.hooks)
    at_once = (
        (setup.batch_tokens or model.batch_tokens) if watched else 1
    )  # reported maps are large: one by one
    examples = np.full((len(rows), *model.shape), np.nan)
    for numbers in batches([len(row.ids) for row in rows], at_once):
        spent = _Spent([wanted[n] for n in numbers], len(heads))
        attention_blocks(model, watched, pad_right([rows[n].ids for n in numbers]), heads, spent.take)
        for n, shares in zip(numbers, spent.shares(), strict=True):
            examples[rows[n].example][model.exists] = shares  # heads come layer by layer, as the array does
        if setup.advance:
            setup.advance(len(numbers))
    setup.unit = f"attention, {kind}"
    return examples


class _Spent:
    """The attention that each head of a batch spends on the wanted pairs, added up block by block."""

    def __init__(self, masks: list[np.ndarray], heads: int) -> None:
        self.masks = masks
        self.sums = np.zeros((len(masks), heads))

    def take(self, places: list[int], start: int, weights: torch.Tensor) -> None:
        for number, (mask, of_row) in enumerate(zip(self.masks, weights, strict=True)):
            part = torch.from_numpy(mask[start : start + of_row.shape[1], : of_row.shape[2]]).to(
                of_row.device
            )
            queries, keys = part.shape
            spent = (of_row[:, :queries, :keys].double() * part).sum((1, 2))
            self.sums[number, places] += spent.cpu().numpy()

    def shares(self) -> np.ndarray:
        """`[rows, heads]`: mean over the queries that have a wanted key."""
        return self.sums / np.array([mask.any(1).sum() for mask in self.masks])[:, None]


def _previous(row: Row) -> np.ndarray:
    return _without_first(np.eye(row.start, k=-1, dtype=bool))


def _duplicate(row: Row) -> np.ndarray:
    return _without_first(_equal_earlier(row))


def _induction(row: Row) -> np.ndarray:
    followed = np.zeros((row.start, row.start), dtype=bool)
    followed[:, 1:] = _equal_earlier(row)[:, :-1]
    return _without_first(np.tril(followed, k=-1))  # what followed the token just before is the query itself


def _retrieval(row: Row) -> np.ndarray:
    """Queries are where the target's tokens are predicted; keys are those tokens in its copies in the prompt."""
    length = len(row.ids)
    found = np.zeros((length, length), dtype=bool)
    target = row.tokens
    for begin in range(row.start - len(target) + 1):
        if row.ids[begin : begin + len(target)] == target:
            found[row.positions, np.arange(begin, begin + len(target))] = True
    return _without_first(found)


KINDS: dict[str, Callable[[Row], np.ndarray]] = {
    "previous": _previous,
    "duplicate": _duplicate,
    "induction": _induction,
    "retrieval": _retrieval,
}
"""From a row to which (query, key) pairs count `[Q, K]`."""

_MISSING = {
    "previous": "a prompt needs three tokens",
    "duplicate": "no token of the prompt comes twice",
    "induction": "no token of the prompt comes twice with another one between",
    "retrieval": "the target is not in the prompt",
}


def _equal_earlier(row: Row) -> np.ndarray:
    ids = np.array(row.ids[: row.start])
    return np.tril(ids[:, None] == ids[None, :], k=-1)


def _without_first(mask: np.ndarray) -> np.ndarray:
    mask[:, :1] = False
    return mask
