"""A head, or another component of a model: how it is written and read, lists of them, and how they are ranked.

A key/value head, an MLP and the embeddings take the place of a head where they are asked for (`components.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headwise.errors import HeadwiseError, quoted
from headwise.names import column_of, component_name, component_numbers
from headwise.tables.codec import stored

if TYPE_CHECKING:
    import pandas as pd


@stored
class Head(NamedTuple):
    """One attention head, both numbers from 0; written `L12H3`.

    With `head` -1 it is the MLP of the layer, written `MLP12`; `Head(0, -2)` are the embeddings, written `input`; with
    `head` -1000 - k it is the layer's key/value head k, written `L12KV1`.

    >>> Head.parse("L12H3")
    Head(layer=12, head=3)
    >>> str(Head(12, 3)), str(Head(12, -1)), str(Head(0, -2)), str(Head(12, -1001))
    ('L12H3', 'MLP12', 'input', 'L12KV1')
    """

    layer: int
    head: int

    def __str__(self) -> str:
        return component_name(self.layer, self.head)

    @property
    def cell(self) -> tuple[int, int]:
        """Row and column in gates and scores that have such components."""
        return self.layer, column_of(self.head)

    @classmethod
    def parse(cls, text: str) -> Head:
        numbers = component_numbers(text.strip()) if isinstance(text, str) else None
        if numbers is None:
            raise _not_a_head(text)
        return cls(*numbers)


Order = list[Head]
"""Heads ranked by a score, most important first."""


def head_list(heads: Any) -> Order:
    """Heads from "L12H3" or (12, 3), in their order; one head needs no list.

    >>> head_list(["L1H2", (0, 3)]), head_list("L1H2")
    ([Head(layer=1, head=2), Head(layer=0, head=3)], [Head(layer=1, head=2)])
    """
    if isinstance(heads, str | Head):
        heads = [heads]
    if not isinstance(heads, Iterable):
        raise HeadwiseError(f"heads are given as a list such as ['L12H3'], not as {quoted(heads)}")
    return [Head.parse(head) if isinstance(head, str) else _pair(head) for head in heads]


def at_least_one(heads: Order) -> Order:
    """The heads, each once; a `HeadwiseError` where there are none."""
    if not heads:
        raise HeadwiseError("no heads are given; name at least one, such as ['L12H3']")
    return list(dict.fromkeys(heads))


RANKED_BY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "signed": np.positive,
    "absolute": np.abs,
    "hinders": np.negative,
}
"""The kinds of order, each with what is largest for the most important head."""


def ranked(heads: Sequence[Head], scores: Sequence[float] | np.ndarray, by: str = "signed") -> Order:
    """`heads` by their scores, most important first; equal ones keep their order, and NaN comes last.

    `by`: `signed` (helps most first), `absolute`, `hinders`.

    >>> [str(head) for head in ranked([Head(0, 0), Head(0, 1), Head(1, 0)], [1.0, -3.0, 2.0], "absolute")]
    ['L0H1', 'L1H0', 'L0H0']
    """
    return [heads[i] for i in ranking(scores, by)]


def ranking(scores: Sequence[float] | np.ndarray, by: str) -> np.ndarray:
    """The numbers of the scores, those of the most important first."""
    if by not in RANKED_BY:
        raise HeadwiseError(f"an order is by 'signed', 'absolute' or 'hinders', not by {by!r}")
    return np.argsort(-RANKED_BY[by](np.asarray(scores, dtype=float)), kind="stable")


def heads_of(table: pd.DataFrame) -> list[Head]:
    """The heads of a table's rows."""
    return [Head(int(layer), int(head)) for layer, head in zip(table["layer"], table["head"], strict=True)]


def head_columns(heads: Sequence[Head]) -> dict[str, Any]:
    """The columns `layer` and `head` of a table with a row for each of these heads."""
    return {"layer": [head.layer for head in heads], "head": [head.head for head in heads]}


def _pair(value: Any) -> Head:
    try:
        layer, head = value
        if int(layer) == layer and int(head) == head:
            return Head(int(layer), int(head))
    except (TypeError, ValueError, OverflowError):
        pass
    raise _not_a_head(value)


def _not_a_head(value: Any) -> HeadwiseError:
    return HeadwiseError(f"{quoted(value)} is not a head; heads are written like 'L12H3' (layer 12, head 3)")
