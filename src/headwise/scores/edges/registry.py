"""What an edge method is, and the methods known by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor

from headwise.heads import Head
from headwise.heads.components import kinds_of
from headwise.heads.edge import Edge
from headwise.model.edges.parts import Parts
from headwise.model.measure.engine import Engine
from headwise.model.measure.positions import position_masks
from headwise.model.measure.rows import Block
from headwise.registry import Registry
from headwise.scores.registry import Setup, settings_of
from headwise.settings import Settings


@dataclass
class EdgeSetup(Setup):
    """Everything an edge method may need: what to score, and how."""

    edges: list[Edge] = field(default_factory=list)
    """What to score; values come in this order."""
    parts: Parts = field(default_factory=lambda: Parts(()))
    """The blocks of the model, taken apart."""

    @cached_property
    def spans(self) -> tuple[str, ...]:
        """The spans that edges are restricted to; empty where none is."""
        return tuple(dict.fromkeys(edge.span for edge in self.edges if edge.span))

    def block(self, engine: Engine, numbers: Sequence[int]) -> tuple[Block, dict[str, Tensor]]:
        """The rows of these numbers, and the positions of each span in them."""
        block = engine.table.block(numbers)
        return block, position_masks(self.model.text, self.task, block.rows, block.length, self.spans)


@dataclass(frozen=True)
class EdgeMethod:
    """A registered way to score edges."""

    name: str
    about: str
    run: Callable[..., np.ndarray]
    """From a setup (and the method's own options) to values per example and edge `[E, N]`."""
    first_order: bool
    """Whether it reads the gradient at all gates 1, and so refuses metrics whose gradient there is 0."""
    gradient: bool
    """Whether it needs a metric with a gradient."""
    gates: bool
    """Whether it gates heads, MLPs and embeddings together, whichever edges are asked for."""
    version: int
    """Raised when its values change, so that a run computes them again."""

    @cached_property
    def settings(self) -> type[Settings]:
        """The method's own options: their types, bounds and defaults."""
        return settings_of(self.name, self.run)


def sender_kinds(edges: Iterable[Edge]) -> tuple[str, ...]:
    """The kinds of component whose references are needed: heads, and those of the senders."""
    return kinds_of([Head(0, 0), *(edge.sender for edge in edges)])


EDGE_METHODS: Registry[EdgeMethod] = Registry(
    "edge method", "headwise.scores.edges.exact", "headwise.scores.edges.gradient"
)


def register(
    name: str,
    *,
    about: str,
    first_order: bool = False,
    gradient: bool = False,
    gates: bool = False,
    version: int = 1,
) -> Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]:
    """Make an edge method known under `name`; the other arguments are the fields of `EdgeMethod`."""

    def add(run: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        found = EdgeMethod(name, about, run, first_order, gradient or first_order, gates, version)
        EDGE_METHODS.add(name, found)
        return run

    return add


edge_methods = EDGE_METHODS.all
