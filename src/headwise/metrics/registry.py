"""What a metric is, and the metrics that are known by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

import numpy as np
from torch import Tensor

from headwise.errors import HeadwiseError, quoted, unknown
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
    name: str,
    *,
    needs: Needs,
    about: str,
    differentiable: bool = True,
    first_order: bool = True,
    compares: bool = False,
) -> Callable[[Callable[[Scored], Tensor]], Callable[[Scored], Tensor]]:
    """Make a function from scored rows to one number per row known under `name`; the other arguments are the fields of
    `Metric`. A metric that is not differentiable is not `first_order` either."""
    if needs not in get_args(Needs):
        raise unknown(f"value of needs for the metric {name!r}:", str(needs), get_args(Needs))

    def add(per_row: Callable[[Scored], Tensor]) -> Callable[[Scored], Tensor]:
        checked = partial(_one_per_row, name, per_row)
        usable = first_order and differentiable
        METRICS.add(name, Metric(name, about, needs, checked, differentiable, usable, compares))
        return per_row

    return add


def _one_per_row(name: str, per_row: Callable[[Scored], Tensor], scored: Scored) -> Tensor:
    """What the metric gives for these rows, if it is one number per row."""
    values = per_row(scored)
    rows = len(scored.logits)
    if not isinstance(values, Tensor) or values.shape != (rows,):
        given = f"a tensor of shape {list(values.shape)}" if isinstance(values, Tensor) else quoted(values)
        raise HeadwiseError(
            f"the metric {name!r} returned {given} for {rows} rows; expected one number per row: a tensor of shape "
            f"[{rows}]"
        )
    return values


def metrics() -> dict[str, Metric]:
    """Every registered metric, by name."""
    return METRICS.all()


def metric(name: str) -> Metric:
    """The metric of this name."""
    return METRICS.get(name)
