"""Components other than heads: the MLP of each layer and the embeddings, and where each stands in gates and scores.

Heads alone have arrays `[L, H]`. With other components arrays are `[L, H + 2]`: columns 0 to H - 1 are the heads,
column -2 is the input (the embeddings; in row 0 only), column -1 the MLP of each layer. So `gates[component]` is the
right cell for every component: `Head(12, -1)` is the MLP of layer 12, `Head(0, -2)` the input.

L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from headwise.errors import HeadwiseError
from headwise.heads.head import Head, Order
from headwise.names import INPUT, MLP, component_kind
from headwise.settings import Several, not_empty, one_of

COMPONENTS = ("heads", "mlps", "input")
"""The kinds of component that can be asked for."""
HEADS = ("heads",)
"""Heads alone: what every gate and score is about unless more is asked for."""
_EXTRA = 2
"""Columns that other components than heads take."""

ComponentKinds = Annotated[
    Several[Annotated[str, one_of("component", lambda: COMPONENTS)]], not_empty("kind of component")
]
"""A setting: `heads`, `mlps` and `input`, at least one of them."""


def has_others(components: Iterable[str]) -> bool:
    """Whether there are components other than heads, so that arrays have two more columns."""
    return any(kind != "heads" for kind in components)


def existing(exists: np.ndarray, components: Iterable[str] = HEADS) -> Order:
    """The components that are True in `exists`, layer by layer.

    >>> [str(one) for one in existing(np.array([[True, True, True], [False, False, True]]), ("heads", "mlps", "input"))]
    ['L0H0', 'input', 'MLP0', 'MLP1']
    """
    heads = exists.shape[1] - (_EXTRA if has_others(components) else 0)
    columns = [*range(heads), INPUT, MLP]
    return [Head(int(layer), columns[int(column)]) for layer, column in np.argwhere(exists)]


def kinds_of(heads: Iterable[Head]) -> tuple[str, ...]:
    """The kinds of component among these, in the order of `COMPONENTS`.

    >>> kinds_of([Head(0, -2), Head(1, 3)])
    ('heads', 'input')
    """
    found = {component_kind(head.head) for head in heads}
    names = {"head": "heads", "mlp": "mlps", "input": "input"}
    return tuple(kind for kind in COMPONENTS if kind in {names[one] for one in found})


@dataclass(frozen=True)
class Layout:
    """Which cells of a model's gates and scores are components that can be gated."""

    exists: np.ndarray
    """`[L, H]`, or `[L, H + 2]` with components other than heads."""
    components: tuple[str, ...] = HEADS

    @classmethod
    def of(cls, heads: np.ndarray, components: Iterable[str] = HEADS) -> Layout:
        """The layout of a model whose heads are `heads[L, H]`; cells of kinds that are not asked for do not exist."""
        kinds = tuple(kind for kind in COMPONENTS if kind in set(components))
        if not has_others(kinds):
            return cls(heads)
        exists = np.zeros((heads.shape[0], heads.shape[1] + _EXTRA), dtype=bool)
        exists[:, :-_EXTRA] = heads if "heads" in kinds else False
        exists[0, INPUT] = "input" in kinds
        exists[:, MLP] = "mlps" in kinds
        return cls(exists, kinds)

    @property
    def shape(self) -> tuple[int, int]:
        return self.exists.shape

    @property
    def modules(self) -> Order:
        """The components other than heads, layer by layer."""
        return [one for one in self.listed() if one.head < 0]

    def listed(self) -> Order:
        """Every component, layer by layer."""
        return existing(self.exists, self.components)

    def check(self, chosen: Iterable[Head], model: str) -> None:
        """Raise a `HeadwiseError` for what is not a component of this layout."""
        known = set(self.listed())
        for one in chosen:
            if one not in known:
                layers, heads = self.shape
                heads -= _EXTRA if has_others(self.components) else 0
                asked = (
                    "" if one.head >= 0 else f"; the components asked for are {', '.join(self.components)}"
                )
                raise HeadwiseError(
                    f"{model} has no {'component' if one.head < 0 else 'head'} {Head(*one)}; it has {layers} layers of "
                    f"up to {heads} heads, both counted from 0{asked}"
                )
