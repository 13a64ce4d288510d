"""What the engine asks of a metric; `headwise.metrics` has the metrics themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from headwise.model.tokens.encode import Needs, Row, Scored


class Metric(Protocol):
    """A number per example, oriented so that more is better."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> Needs:
        """Which rows of an example it reads."""

    @property
    def differentiable(self) -> bool: ...

    @property
    def first_order(self) -> bool:
        """Whether its gradient at all gates 1 says anything; that of `kl` is 0 there."""

    @property
    def compares(self) -> bool:
        """Whether it needs the full model's logits beside the gated ones."""

    @property
    def per_row(self) -> Callable[[Scored], Tensor]:
        """From scored rows to one number per row."""

    def combine(self, rows: Sequence[Row], values: np.ndarray, examples: int) -> np.ndarray:
        """Values per row `[V, rows]` to values per example `[V, E]`."""
