"""Components other than heads (the MLP of each layer, the embeddings, key/value heads), and where each stands in gates
and scores.

Heads alone have arrays `[L, H]`. With other components arrays are `[L, H + 2]`: columns 0 to H - 1 are the heads,
column -2 is the input (the embeddings; in row 0 only), column -1 the MLP of each layer. So `gates[component]` is the
right cell for every component: `Head(12, -1)` is the MLP of layer 12, `Head(0, -2)` the input.

Key/value heads stand alone, in arrays `[L, KV]`: a gate of theirs is the gate of every query head of the group, so the
same head would have two gates if heads had some as well. `gates[component.cell]` is the right cell for them too.

L layers, H heads, KV key/value heads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from headwise.errors import HeadwiseError
from headwise.heads.head import Head, Order
from headwise.names import INPUT, KV, MLP, component_kind
from headwise.settings import Several, not_empty, one_of, passes

COMPONENTS = ("heads", "mlps", "input")
"""The kinds of component that can be asked for together."""
HEADS = ("heads",)
"""Heads alone: what every gate and score is about unless more is asked for."""
KV_HEADS = ("kv_heads",)
"""Key/value heads, which are asked for alone."""
KINDS = COMPONENTS + KV_HEADS
_EXTRA = 2
"""Columns that other components than heads take."""


def check_together(components: Iterable[str]) -> None:
    """Refuse key/value heads beside other components."""
    if others := [kind for kind in components if kind != "kv_heads"] if "kv_heads" in components else []:
        raise HeadwiseError(
            f"components has kv_heads together with {', '.join(others)}; the gate of a key/value head is that of all "
            "query heads of its group, so ask for kv_heads alone"
        )


ComponentKinds = Annotated[
    Several[Annotated[str, one_of("component", lambda: KINDS)]],
    not_empty("kind of component"),
    passes(check_together),
]
"""A setting: `heads`, `mlps` and `input`, at least one of them, or `kv_heads` alone."""


def has_others(components: Iterable[str]) -> bool:
    """Whether there are MLPs or the input, so that arrays have two more columns."""
    return any(kind in ("mlps", "input") for kind in components)


def existing(exists: np.ndarray, components: Iterable[str] = HEADS) -> Order:
    """The components that are True in `exists`, layer by layer.

    >>> [str(one) for one in existing(np.array([[True, True, True], [False, False, True]]), ("heads", "mlps", "input"))]
    ['L0H0', 'input', 'MLP0', 'MLP1']
    """
    heads = exists.shape[1] - (_EXTRA if has_others(components) else 0)
    columns = [*range(heads), INPUT, MLP]
    if "kv_heads" in components:
        columns = [KV - k for k in range(heads)]
    return [Head(int(layer), columns[int(column)]) for layer, column in np.argwhere(exists)]


def kinds_of(heads: Iterable[Head]) -> tuple[str, ...]:
    """The kinds of component among these, in the order of `KINDS`.

    >>> kinds_of([Head(0, -2), Head(1, 3)])
    ('heads', 'input')
    """
    found = {component_kind(head.head) for head in heads}
    names = {"head": "heads", "mlp": "mlps", "input": "input", "kv_head": "kv_heads"}
    return tuple(kind for kind in KINDS if kind in {names[one] for one in found})


@dataclass(frozen=True)
class Layout:
    """Which cells of a model's gates and scores are components that can be gated."""

    exists: np.ndarray
    """`[L, H]`, `[L, H + 2]` with MLPs or the input, `[L, KV]` of key/value heads."""
    components: tuple[str, ...] = HEADS
    groups: np.ndarray | None = None
    """`[L, H]`: the key/value head of each query head, where key/value heads have the gates."""

    @classmethod
    def of(
        cls, heads: np.ndarray, components: Iterable[str] = HEADS, groups: np.ndarray | None = None
    ) -> Layout:
        """The layout of a model whose heads are `heads[L, H]`; cells of kinds that are not asked for do not exist.

        groups: see `Layout.groups`; needed for key/value heads.
        """
        kinds = tuple(kind for kind in KINDS if kind in set(components))
        check_together(kinds)
        if kinds == KV_HEADS:
            assert groups is not None
            kv = np.arange(groups[heads].max() + 1)
            return cls((heads[:, :, None] & (groups[:, :, None] == kv)).any(axis=1), kinds, groups)
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
        """The MLPs and the input, layer by layer."""
        return [one for one in self.listed() if component_kind(one.head) in ("mlp", "input")]

    def listed(self) -> Order:
        """Every component, layer by layer."""
        return existing(self.exists, self.components)

    def check(self, chosen: Iterable[Head], model: str) -> None:
        """Raise a `HeadwiseError` for what is not a component of this layout."""
        components = set(self.listed())
        for one in chosen:
            if one not in components:
                layers, heads = self.shape
                heads -= _EXTRA if has_others(self.components) else 0
                what, of, restriction = "head", "", ""
                if one.head < 0 or self.groups is not None:
                    what, of = "component", " heads" if self.groups is None else " key/value heads"
                    restriction = f"; the components asked for are {', '.join(self.components)}"
                raise HeadwiseError(
                    f"{model} has no {what} {Head(*one)}; it has {len(components)} {what}s in {layers} layers of up to "
                    f"{heads}{of}, both counted from 0{restriction}"
                )
