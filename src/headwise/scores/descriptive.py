"""Scores that need no metric: what a head attends to, how large its output is, and seeded noise (a control).

Attention: on the previous token, an equal one, what followed one, the answer, or the first token. Only the pattern
`first` counts the first key: most heads attend to it when they have nothing to do. Q queries, K keys, M masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.model.attention.weights import attention_blocks, watchable
from headwise.model.forward.schedule import batches
from headwise.model.model import Model
from headwise.model.outputs.answers import head_outputs
from headwise.model.tokens.encode import Row, encode_rows, pad_right
from headwise.scores.registry import Setup, register
from headwise.settings import one_of

Kind = Annotated[str, one_of("kind of pattern", lambda: KINDS)]


@register(
    "pattern",
    ablates=False,
    signed=False,
    about="attention pattern (kind=): previous token, duplicate token, induction, retrieval of the answer, first token",
)
def pattern(setup: Setup, kind: Kind = "previous") -> np.ndarray:
    """The share of its attention that a head spends where its `kind` would, per example, from 0 to 1; unsigned.

    `previous`: on the token before. `duplicate`: on earlier tokens equal to the query's. `induction`: on the
    tokens that followed those (Elhage et al. 2021; Olsson et al. 2022, arXiv 2209.11895). Each is the mean over
    the prompt's queries for which there is such a key. `retrieval`: where the target is predicted, on copies of
    that token inside the prompt, mean over the target's tokens (Wu et al. 2024, arXiv 2404.15574). `first`: on the
    first token. Metric and reference play no part. Cost: one forward pass, and the weights of one block of queries at
    a time.
    Known failure: it shows where a head looks, not what it moves from there or whether that matters; a head may
    attend and write nothing.
    """
    model = setup.model
    rows = encode_rows(model.text, setup.task.examples, "target")
    masks = [counted_pairs(kind, row)[None] for row in rows]
    empty = [row.example + 1 for row, mask in zip(rows, masks, strict=True) if not mask.any()]
    if empty:
        raise HeadwiseError(
            f"{len(empty)} of {len(rows)} examples of task {setup.task.name!r} (the first: example {empty[0]}) have no "
            f"token for the pattern {kind!r}: {_MISSING[kind]}; leave them out, or use kind=previous"
        )
    shares = attention_shares(model, rows, masks, setup.batch_tokens, setup.advance)
    examples = np.full((len(rows), *model.shape), np.nan)
    examples[[row.example for row in rows]] = setup.per_head(shares[:, 0].T)
    setup.unit = f"attention, {kind}"
    return examples


def attention_shares(
    model: Model,
    rows: Sequence[Row],
    masks: Sequence[np.ndarray],
    batch_tokens: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> np.ndarray:
    """The share of its attention that every head spends on the pairs of each mask `[rows, M, heads]`."""
    shares, watched = Shares(model, masks), watchable(model.hooks)
    # Attention maps that the model itself reports are large: one example at a time.
    at_once = (batch_tokens or model.batch_tokens) if watched else 1
    for numbers in batches([len(row.ids) for row in rows], at_once):
        ids = pad_right([rows[n].ids for n in numbers])
        attention_blocks(model, watched, ids, shares.heads, partial(shares.add, numbers))
        if advance:
            advance(len(numbers))
    return shares.mean()


class Shares:
    """The shares of attention that heads spend on the pairs of each mask, added up from one pass after another."""

    def __init__(self, model: Model, masks: Sequence[np.ndarray]) -> None:
        """masks: for each row `[M, Q, K]`."""
        self.heads, self._masks = model.heads(), masks
        self._sums = np.zeros((len(masks), len(masks[0]), len(self.heads)))

    def add(self, rows: Sequence[int], heads: list[int], start: int, weights: Tensor) -> None:
        """The attention on the counted pairs of one block of queries, of these rows and heads."""
        for n, of_row in zip(rows, weights, strict=True):
            for m, mask in enumerate(self._masks[n]):
                part = mask[start : start + of_row.shape[1], : of_row.shape[2]]
                queries, keys = part.shape
                counted = of_row[:, :queries, :keys].double() * torch.from_numpy(part).to(of_row.device)
                self._sums[n, m, heads] += counted.sum((1, 2)).cpu().numpy()

    def mean(self) -> np.ndarray:
        """`[rows, M, heads]`, over queries with such a key; NaN where a row has none."""
        queries = np.array([mask.any(2).sum(1) for mask in self._masks])[:, :, None]  # rows, M, 1
        return np.divide(self._sums, queries, out=np.full_like(self._sums, np.nan), where=queries > 0)


def counted_pairs(kind: str, row: Row) -> np.ndarray:
    """The (query, key) pairs `[Q, K]` of a row that are a pattern of this kind."""
    pairs = KINDS[kind](row)
    if kind != "first":
        pairs[:, :1] = False
    return pairs


def _previous(row: Row) -> np.ndarray:
    return np.eye(row.start, k=-1, dtype=bool)


def _duplicate(row: Row) -> np.ndarray:
    ids = np.array(row.ids[: row.start])
    return np.tril(ids[:, None] == ids[None, :], k=-1)


def _induction(row: Row) -> np.ndarray:
    followed = np.zeros((row.start, row.start), dtype=bool)
    followed[:, 1:] = _duplicate(row)[:, :-1]
    return np.tril(followed, k=-1)  # what followed the token just before is the query itself


def _retrieval(row: Row) -> np.ndarray:
    """Queries are where the target's tokens are predicted; keys are those tokens in its copies in the prompt."""
    pairs = np.zeros((len(row.ids), len(row.ids)), dtype=bool)
    target = row.tokens
    for begin in range(row.start - len(target) + 1):
        if row.ids[begin : begin + len(target)] == target:
            pairs[row.positions, np.arange(begin, begin + len(target))] = True
    return pairs


def _first(row: Row) -> np.ndarray:
    pairs = np.zeros((row.start, row.start), dtype=bool)
    pairs[1:, :1] = True
    return pairs


KINDS: dict[str, Callable[[Row], np.ndarray]] = {
    "previous": _previous,
    "duplicate": _duplicate,
    "induction": _induction,
    "retrieval": _retrieval,
    "first": _first,
}
"""From a row to which (query, key) pairs count `[Q, K]`."""

_MISSING = {
    "previous": "a prompt needs three tokens",
    "duplicate": "no token of the prompt comes twice",
    "induction": "no token of the prompt comes twice with another one between",
    "retrieval": "the target is not in the prompt",
    "first": "a prompt needs two tokens",
}


@register(
    "norm",
    ablates=False,
    signed=False,
    about="mean norm of the head's output, relative to the mean of its layer: small in a dormant head",
)
def norm(setup: Setup) -> np.ndarray:
    """The head's mean output norm over the tokens of an example, divided by the mean over the heads of its layer.

    1 is the mean of the layer, and a head that writes nothing has 0; unsigned. A head far below 1 is called dormant
    (Sandoval-Segura et al. 2025, arXiv 2504.03889). The output is that before the output projection; the first token
    does not count, where there are others. Metric and reference play no part. Cost: one forward pass. Known failure: it
    shows how much a head writes, not whether anything reads it; and if the output hardly changes from prompt to prompt,
    a large one matters no more than a small one.
    """
    rows = [row.ids for row in encode_rows(setup.model.text, setup.task.examples, "target")]

    def mean_norm(numbers: Sequence[int]) -> Callable[[Tensor], Tensor]:
        lengths = torch.tensor([len(rows[n]) for n in numbers])[:, None]
        at = torch.arange(int(lengths.max()))
        counted = (at < lengths) & ((at > 0) | (lengths == 1))  # B, T
        weights = counted / counted.sum(1, keepdim=True)
        return lambda z: (z.double().norm(dim=-1, keepdim=True) * weights.to(z.device)[:, :, None, None]).sum(
            1
        )

    budget = setup.batch_tokens or setup.model.batch_tokens
    sizes = head_outputs(setup.model, rows, mean_norm, budget, np.float64, setup.advance)[..., 0]  # E, L, H
    sizes[:, ~setup.exists] = np.nan
    setup.unit = "output norm, × the layer's mean"
    return sizes / np.nanmean(sizes, axis=2, keepdims=True)


@register(
    "random", ablates=False, about="random numbers with a fixed seed (control)", signed=False, components=True
)
def random(setup: Setup) -> np.ndarray:
    """Standard normal numbers, independent of the model. Cost: none."""
    if setup.advance:
        setup.advance(len(setup.task))
    return np.random.default_rng(setup.seed).standard_normal((len(setup.task), *setup.layout.shape))
