"""Scores of heads at token positions, with the per-example values behind them. Nothing here knows what a model is.

N heads, E examples, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.errors import HeadwiseError, quoted
from headwise.heads.components import kinds_of
from headwise.heads.head import Head, Order, head_list, ranking
from headwise.names import component_kind, method_name
from headwise.tables.codec import Saved, stored

if TYPE_CHECKING:
    import pandas as pd


@stored
@dataclass(frozen=True, repr=False)
class PositionScores(Saved):
    """One number per head and token position: positive where the head helps at this position.

    The effect of a head at a position is the metric with all heads minus the metric with the head replaced by its
    reference at this position only. Positions are counted from the first token of the prompt.
    """

    scored: Order
    """The heads, layer by layer."""
    examples: np.ndarray  # E, N, T
    """In the metric's unit; NaN where the prompt of an example has no such position."""
    tokens: Sequence[str]
    """`[T]`: the token that all examples with this position have there; empty where they have different ones."""
    model: str
    task: str
    method: str
    metric: str = ""
    details: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Further information from the method: reference, seed, forward rows."""
    groups: Sequence[str | None] | None = None
    """The group of every example, where some share one: intervals and tests then count groups, not examples."""
    numbers: Sequence[int] | None = None
    """Of the examples in their task; by default counted from 0."""

    @property
    def reference(self) -> str:
        """What replaced an ablated head."""
        return str(self.details.get("reference") or "")

    @property
    def shape(self) -> tuple[int, int]:
        """Heads and positions."""
        return self.examples.shape[1], self.examples.shape[2]

    @cached_property
    def n(self) -> np.ndarray:
        """`[T]`: how many examples have each position."""
        return np.asarray((~np.isnan(self.examples[:, 0])).sum(axis=0))

    @property
    def values(self) -> np.ndarray:
        """`[N, T]`: the mean over the examples that have the position."""
        return self._statistics["score"]

    @property
    def stderr(self) -> np.ndarray:
        """`[N, T]`: the standard error of the mean."""
        return self._statistics["stderr"]

    def heads(self) -> Order:
        """The heads that are scored, layer by layer."""
        return list(self.scored)

    def __getitem__(self, which: Any) -> Any:
        """The scores of one head `[T]`: `scores["L23H3"]`, or of a head at one position: `scores["L23H3", 14]`."""
        if isinstance(which, tuple) and not isinstance(which, Head):
            head, position = which
            T = self.shape[1]
            if not isinstance(position, int | np.integer) or not -T <= position < T:
                raise HeadwiseError(
                    f"these scores have no position {quoted(position)}; they have positions 0 to {T - 1}"
                )
            return float(self[head][position])
        (chosen,) = head_list([which])
        if chosen not in self.scored:
            raise HeadwiseError(
                f"{chosen} was not scored; these are scores of {len(self.scored)} heads, such as {self.scored[0]}"
            )
        return self.values[self.scored.index(chosen)]

    def top(self, k: int, by: str = "absolute") -> list[tuple[Head, int]]:
        """The first k pairs of head and position. `by`: `absolute`, `signed` (helps most first) or `hinders`."""
        heads, positions = np.unravel_index(ranking(self.values.ravel(), by)[:k], self.shape)
        return [(self.scored[h], int(t)) for h, t in zip(heads, positions, strict=True)]

    # ---- tables and files --------------------------------------------------------------------------------

    @cached_property
    def _statistics(self) -> dict[str, np.ndarray]:
        """score, stderr, lo, hi and p, each `[N, T]`; positions that the same examples have are computed together."""
        from headwise import stats
        from headwise.stats.resampling import group_codes, standard_error

        found = {name: np.full(self.shape, np.nan) for name in ("score", "stderr", "lo", "hi", "p")}
        there = ~np.isnan(self.examples[:, 0])  # E, T
        for which in np.unique(there, axis=1).T:
            at, numbers = (there == which[:, None]).all(axis=0), np.flatnonzero(which)
            values = self.examples[numbers][:, :, at]
            groups = None if self.groups is None else [self.groups[e] for e in numbers.tolist()]
            found["score"][:, at] = values.mean(axis=0)
            found["stderr"][:, at] = standard_error(values, group_codes(groups, len(values)))
            lo, hi = stats.effect_interval(values, groups=groups, metric=self.metric)
            found["lo"][:, at], found["hi"][:, at] = lo, hi
            found["p"][:, at] = stats.sign_flip_staged(
                values, groups=groups, seed=int(self.details.get("seed", 0))
            )
        return found

    @cached_property
    def _q(self) -> np.ndarray:
        """q-values over all heads and positions. Where no example changes at all there is nothing to test: before the
        first difference to a counterfactual prompt every value is 0."""
        from headwise import stats

        tested = (np.nan_to_num(self.examples) != 0).any(axis=0)
        q = stats.benjamini_hochberg(np.where(tested, self._statistics["p"], np.nan))
        return np.where(tested, q, 1.0)

    def table(self) -> pd.DataFrame:
        """One row per head and position, with interval, p-value and q-value. q corrects for all of them together.

        `token` is the token there, empty where examples have different ones; `n` is the number of examples that have
        the position.
        """
        import pandas as pd

        N, T = self.shape
        layers, heads = np.array(self.scored).T
        of_head: dict[str, Any] = {"layer": layers, "head": heads}
        if kinds_of(self.scored) != kinds_of([Head(0, 0)]):
            of_head["component"] = [component_kind(head) for head in heads]
        columns: dict[str, Any] = {"model": self.model, "task": self.task, "method": self.method}
        columns |= {name: np.repeat(column, T) for name, column in of_head.items()}
        columns |= {"position": np.tile(np.arange(T), N), "token": np.tile(np.array(self.tokens, object), N)}
        columns |= {name: array.ravel() for name, array in self._statistics.items() if name != "p"}
        columns |= {"n": np.tile(self.n, N), "p": self._statistics["p"].ravel(), "q": self._q.ravel()}
        return pd.DataFrame({**columns, "metric": self.metric, "reference": self.reference})

    def example_table(self) -> pd.DataFrame:
        """The values behind the scores: one row per example, head and position that the example has."""
        import pandas as pd

        layers, heads = np.array(self.scored).T
        example, head, position = np.nonzero(~np.isnan(self.examples))
        numbers = np.arange(len(self.examples)) if self.numbers is None else np.asarray(self.numbers)
        return pd.DataFrame(
            {
                "example": numbers[example],
                "layer": layers[head],
                "head": heads[head],
                "position": position,
                "value": self.examples[example, head, position],
            }
        )

    def _checked(self) -> PositionScores:
        """These scores, if their arrays belong together."""
        if self.examples.ndim != 3 or self.shape != (len(self.scored), len(self.tokens)):
            raise ValueError(
                f"{len(self.scored)} heads, {len(self.tokens)} tokens and values of shape {self.examples.shape}"
            )
        return self

    # ---- display -----------------------------------------------------------------------------------------

    def plot(self, heads: int = 24, **options: Any) -> Any:
        """Draw the map of the `heads` with the largest absolute scores and all positions; returns the matplotlib
        figure."""
        from headwise.charts.heatmap import position_chart
        from headwise.charts.static import figure

        return figure(position_chart(self.table(), most=heads, **options))

    def __repr__(self) -> str:
        N, T = self.shape
        name = method_name(self.method, self.reference)
        named = [f"{t} ({token!r})" if token else str(t) for t, token in enumerate(self.tokens)]
        first = ", ".join(f"{h} at {named[t]} {self[h, t]:+.3g}" for h, t in self.top(3))
        return (
            f"PositionScores({name} on {self.task}, {self.model}: {N} heads × {T} positions, "
            f"n = {len(self.examples)}; largest: {first})"
        )

    def _repr_png_(self) -> bytes:
        """In a notebook, the map."""
        from headwise.charts.style import png

        return png(self.plot())
