"""What a head attends to: the previous token, an equal one, what followed an equal one, or the answer.

Q queries, K keys. The first key is never counted: most heads rest there when they have nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from headwise.errors import HeadwiseError, unknown
from headwise.model.attention_weights import attention_weights
from headwise.model.encode import Row, encode_rows, pad_right
from headwise.scores.registry import Setup, register

WEIGHTS_AT_ONCE = 2**27
"""Most attention weights held at once, in numbers: 512 MB in float32."""


@register(
    "pattern",
    signed=False,
    about="attention on the previous token, an equal one, what followed one, or the answer in the prompt (kind=)",
)
def pattern(setup: Setup, kind: str = "previous") -> np.ndarray:
    """The share of its attention that a head spends where its `kind` would, per example, from 0 to 1; unsigned.

    `previous`: on the token before. `duplicate`: on earlier tokens equal to the query's. `induction`: on the
    tokens that followed those (Elhage et al. 2021; Olsson et al. 2022, arXiv 2209.11895). Each is the mean over
    the prompt's queries for which there is such a key. `retrieval`: where the target is predicted, on copies of
    that token inside the prompt, mean over the target's tokens (Wu et al. 2024, arXiv 2404.15574). Metric and
    reference play no part. Cost: one forward pass with eager attention, memory grows with the square of the
    length. Known failure: it shows where a head looks, not what it moves from there or whether that matters;
    a head may attend and write nothing.
    """
    if kind not in KINDS:
        raise unknown("kind of pattern", kind, KINDS)
    rows = encode_rows(setup.model.text, setup.task.examples, "target")
    wanted = [KINDS[kind](row) for row in rows]
    empty = [row.example + 1 for row, mask in zip(rows, wanted, strict=True) if not mask.any()]
    if empty:
        raise HeadwiseError(
            f"{len(empty)} of {len(rows)} examples of task {setup.task.name!r} (the first: example {empty[0]}) have no "
            f"token for the pattern {kind!r}: {_MISSING[kind]}; leave them out, or use kind=previous"
        )
    examples = np.full((len(rows), *setup.model.shape), np.nan)
    for numbers in _batches(rows, setup):
        weights = attention_weights(setup.model, pad_right([rows[n].ids for n in numbers]))
        for layer, attention in weights.items():
            for place, n in enumerate(numbers):
                mask = torch.from_numpy(wanted[n]).to(attention.device)
                length = len(mask)
                spent = (attention[place, :, :length, :length].double() * mask).sum(2)  # H, Q
                share = spent[:, mask.any(1)].mean(1)
                examples[rows[n].example, layer, : len(share)] = share.cpu().numpy()
        if setup.advance:
            setup.advance(len(numbers))
    setup.unit = f"attention, {kind}"
    return examples


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


def _batches(rows: Sequence[Row], setup: Setup) -> Iterator[list[int]]:
    """Row numbers, the shortest first, so many at once that their weights fit."""
    order = sorted(range(len(rows)), key=lambda n: len(rows[n].ids))
    per_pair = len(setup.model.heads())
    tokens = setup.batch_tokens or setup.model.batch_tokens
    while order:
        size = 1
        while size < len(order):
            length = len(rows[order[size]].ids)
            if (size + 1) * length**2 * per_pair > WEIGHTS_AT_ONCE or (size + 1) * length > tokens:
                break
            size += 1
        yield order[:size]
        order = order[size:]
