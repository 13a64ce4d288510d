"""What `hw.interactions` returns: effects and interactions of pairs, with their values on every example.

E examples, P pairs, U units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.display import html_table
from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.names import ablation_name
from headwise.scores.interactions.pairs import EstimateAgreement, Unit, agreement_with_estimate, unit_name
from headwise.tables.codec import stored
from headwise.tables.frames import by_size

_ESTIMATES = ("values", "stderr", "lo", "hi", "p", "n")


@stored
@dataclass(frozen=True, repr=False)
class Interactions:
    """Joint effects of pairs of units; a unit is a head, or heads that are removed together.

    The interaction of a pair is E({a, b}) − E({a}) − E({b}), where E is the metric with all heads minus the metric
    without the set. Where the joint effect is positive, positive: the two back each other up; negative: they need each
    other. Heads interact a little through the final norm alone, so read sizes, not only q.
    """

    units: list[Unit]
    pairs: np.ndarray
    """`[P, 2]`: numbers of units."""
    single: np.ndarray
    """`[E, U]`: the effect of removing each unit alone."""
    interaction: np.ndarray
    """`[E, P]`; NaN where an example was not run."""
    model: str
    task: str
    metric: str
    reference: str
    estimate: np.ndarray | None = None
    """`[E, P]`: the first-order estimate, where it was asked for."""
    tests: Mapping[str, np.ndarray] = field(default_factory=dict)
    """`values`, `stderr`, `lo`, `hi`, `p` and `n` `[P]`: of a call that did not run every example, or what
    `tested` gave, where it should not be computed again."""
    groups: Sequence[str | None] | None = None
    """The group of every example, where some share one: intervals and tests then count groups."""
    given: bool = False
    """Whether the first unit is a removed set, and every pair is this set with one head."""
    seed: int = 0
    details: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Forward rows and the rule, where not every example was run."""

    @property
    def n(self) -> int:
        """The number of examples."""
        return len(self.single)

    @property
    def names(self) -> list[str]:
        """The units by name: `L23H3`, or `L20H1+L23H3`."""
        return [unit_name(unit) for unit in self.units]

    @property
    def heads(self) -> list[Head]:
        """The units that are one head."""
        return [unit[0] for unit in self.units if len(unit) == 1]

    @cached_property
    def _tested(self) -> dict[str, np.ndarray]:
        """Mean, standard error, interval, p and n of each interaction."""
        if self.tests:
            return {name: np.asarray(self.tests[name]) for name in _ESTIMATES}
        return tested(self.interaction, self.groups, self.seed)

    def measured_tables(self) -> dict[str, pd.DataFrame]:
        """What must not be infinite."""
        return {"interactions": pd.DataFrame({"interaction": self._tested["values"]})}

    def table(self) -> pd.DataFrame:
        """One row per pair, the largest interaction first.

        `effect_a`, `effect_b`: removing one alone; `joint`: removing both; `conditional`: the effect of b where a is
        removed already (`effect_b` + `interaction`); `interaction` with `stderr`, `lo`, `hi`, `n`, `p` (sign-flip test
        over examples) and `q` (Benjamini–Hochberg over all pairs); `estimate`: first order, where asked for.
        """
        found, names = self._tested, np.array(self.names, dtype=object)
        a, b = self.pairs.T
        single = self.single.mean(axis=0)
        columns: dict[str, Any] = {"model": self.model, "task": self.task, "a": names[a], "b": names[b]}
        columns |= {"effect_a": single[a], "effect_b": single[b]}
        columns |= {"joint": single[a] + single[b] + found["values"]}
        columns |= {"conditional": single[b] + found["values"], "interaction": found["values"]}
        columns |= {name: found[name] for name in ("stderr", "lo", "hi", "n", "p")}
        columns |= {"q": stats.benjamini_hochberg(found["p"])}
        if self.estimate is not None:
            columns["estimate"] = self.estimate.mean(axis=0)
        table = pd.DataFrame(columns).assign(metric=self.metric, reference=self.reference)
        return by_size(table, "interaction").reset_index(drop=True)

    def matrix(self, of: str = "interaction") -> pd.DataFrame:
        """A column of the table as a symmetric matrix of units; NaN on the diagonal and where no pair was measured."""
        table = self.table()
        if of not in table or not pd.api.types.is_numeric_dtype(table[of]):
            raise HeadwiseError(
                f"the table has no column of numbers {of!r}; it has {', '.join(map(str, table))}"
            )
        square = pd.DataFrame(np.nan, index=self.names, columns=self.names)
        for row in table[["a", "b", of]].itertuples(index=False):
            square.loc[row.a, row.b] = square.loc[row.b, row.a] = row[2]
        return square

    def agreement(self) -> EstimateAgreement:
        """How far the first-order estimate agrees with the exact interactions."""
        if self.estimate is None:
            raise HeadwiseError("no estimate was computed; give estimate=True to hw.interactions")
        return agreement_with_estimate(self._tested["values"], self.estimate.mean(axis=0))

    def plot(self, order: str = "layer") -> Any:
        """Draw the interaction matrix, or the effects given the removed set; returns the matplotlib figure.

        order: of the heads in the matrix, by `layer` or by `cluster`.
        """
        from headwise.charts.interactions import interaction_chart
        from headwise.charts.static import figure

        return figure(interaction_chart(self.table(), order=order))

    def _lines(self, most: int = 3) -> list[tuple[str, str, str]]:
        return [
            (f"{row.a}, {row.b}", f"{row.interaction:+.3g} [{row.lo:+.3g}, {row.hi:+.3g}]", f"{row.q:.2g}")
            for row in self.table().head(most).itertuples()
        ]

    def __repr__(self) -> str:
        first = "; ".join(f"{pair} {value}" for pair, value, _ in self._lines())
        return (
            f"Interactions({self.metric} on {self.task}, {self.model}, {ablation_name(self.reference)}, n = {self.n}, "
            f"{len(self.pairs)} pairs of {len(self.units)}; largest: {first})"
        )

    def _repr_html_(self) -> str:
        title = f"Interactions on {self.task}, {self.model}, {ablation_name(self.reference)}, n = {self.n}"
        return html_table(title, ["pair", f"interaction ({self.metric})", "q"], self._lines(10))


def tested(values: np.ndarray, groups: Any, seed: int) -> dict[str, np.ndarray]:
    """Mean, standard error, interval, sign-flip p and n of each column of `values[E, P]`."""
    from headwise.stats.resampling import group_codes, standard_error

    lo, hi = stats.effect_interval(values, groups=groups)
    stderr = standard_error(values, group_codes(groups, len(values)))
    p = stats.sign_flip_staged(values, groups=groups, seed=seed)
    n = np.full(values.shape[1], len(values))
    return {"values": values.mean(axis=0), "stderr": stderr, "lo": lo, "hi": hi, "p": p, "n": n}
