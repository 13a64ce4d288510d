"""What a metric is, and the metrics that are known by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from headwise.model.tokens.encode import Needs, Row, Scored
from headwise.registry import Registry


@dataclass(frozen=True)
class Metric:
    """A number per example, oriented so that more is better."""

    name: str
    about: str
    needs: Needs
    per_row: Callable[[Scored], Tensor]
    differentiable: bool = True
    first_order: bool = True
    """Whether first-order methods may use its gradient at all gates 1; that of `kl` is 0 there."""
    compares: bool = False
    """Whether it needs the full model's logits beside the gated ones."""

    def combine(self, rows: Sequence[Row], values: np.ndarray, examples: int) -> np.ndarray:
        """Values per row `[V, rows]` to values per example `[V, E]`.

        Where an example has several rows they compete: 1 if the first, the target, beats all others.
        """
        if len(rows) == examples:
            return values
        combined = np.empty((len(values), examples))
        of_example: list[list[int]] = [[] for _ in range(examples)]
        for number, row in enumerate(rows):
            of_example[row.example].append(number)
        for example, (target, *foils) in enumerate(of_example):
            won = values[:, target] > values[:, foils].max(axis=1) if foils else values[:, target]
            combined[:, example] = won
        return combined


METRICS: Registry[Metric] = Registry("metric", "headwise.metrics.*")


def register(
    name: str, *, needs: Needs, about: str, **flags: bool
) -> Callable[[Callable[[Scored], Tensor]], Callable[[Scored], Tensor]]:
    """Make a function from scored rows to one number per row known under `name`.

    flags: `differentiable`, `first_order` and `compares`, as in `Metric`.
    """
    first_order = flags.pop("first_order", True) and flags.get("differentiable", True)

    def add(per_row: Callable[[Scored], Tensor]) -> Callable[[Scored], Tensor]:
        METRICS.add(name, Metric(name, about, needs, per_row, first_order=first_order, **flags))
        return per_row

    return add


def metrics() -> dict[str, Metric]:
    """Every registered metric, by name."""
    return METRICS.all()


def metric(name: str) -> Metric:
    """The metric of this name."""
    return METRICS.get(name)
