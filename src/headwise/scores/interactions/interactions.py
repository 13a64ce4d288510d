"""`hw.interactions`: which heads back each other up, and which need each other.

E examples, P pairs, U units, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from headwise import stats
from headwise.display import html_table
from headwise.errors import HeadwiseError
from headwise.heads import Head, Order, Scores, head_list
from headwise.metrics import metric as metric_named
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.names import ablation_name
from headwise.progress import Progress, reporting
from headwise.scores.ablation import CALL_COST, AblationOptions
from headwise.scores.adaptive.adaptive import to_precision
from headwise.scores.adaptive.sample import Sample, design_effect
from headwise.scores.interactions.pairs import (
    EstimateAgreement,
    Unit,
    agreement_with_estimate,
    all_pairs,
    estimated_interactions,
    pair_effects,
    unit_gates,
)
from headwise.scores.measure import MeasureOptions
from headwise.scores.registry import BACKWARD_ROWS, note_too_few
from headwise.tables.codec import stored
from headwise.tables.frames import by_size
from headwise.tasks.opening import TaskLike, as_task

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
        return ["+".join(map(str, unit)) for unit in self.units]

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


FIRST = 40
"""Heads of an order whose pairs are measured by default."""


def interactions(
    model: Model,
    task: TaskLike,
    heads: Scores | Literal["all"] | Any = None,
    *,
    given: Any = None,
    precision: float | None = None,
    estimate: bool | None = None,
    metric: str | None = None,
    progress: Progress = True,
    **options: Unpack[MeasureOptions],
) -> Interactions:
    """Exact joint effects of pairs of heads, their interactions, intervals and q-values.

    I(a, b) = E({a, b}) − E({a}) − E({b}), where E is the metric with all heads minus the metric without the set.
    Positive: the two heads back each other up (each can do the other's work); negative: they need each other.

    heads: such as ["L3H2", "L5H0"], or "all", or scores of `hw.score`, of which the 40 heads with the largest absolute
        value are taken; by default 40 heads by gradient attribution. With `given`, all heads by default.
    given: heads that are removed together. Then one row of the matrix is measured, this set with each other head: the
        table has each head's effect alone (`effect_b`) and where the set is removed (`conditional`). A head whose
        conditional effect is larger than its effect alone is a backup of the set.
    precision: run each pair on only as many examples as give its interaction to ± this at 95 % confidence (as for
        `hw.score`, with the first-order estimate as control variate); pairs that do nothing are dropped after 8.
    estimate: also compute the first-order estimate (attribution where one head is removed minus plain attribution), one
        backward pass per head. By default only where it is cheap: with `given` and with `precision`.
    options: `reference`, `positions`, `seed`, `reference_task`, `batch_tokens`, as for `hw.measure`.

    >>> hw.interactions(model, task, ["L3H2", "L5H0", "L7H1"]).table()         # doctest: +SKIP
    """
    task = as_task(task, model, {})
    options["reference"] = options.get("reference") or "mean"
    chosen = metric_named(metric or task.metric)
    AblationOptions(precision=precision)
    if precision is not None and not chosen.differentiable:
        raise HeadwiseError(
            f"the metric {chosen.name!r} takes few values: a pair may have no effect on the first examples and a large "
            "one on others; with precision use a metric such as logit_diff or logprob"
        )
    wanted = estimate if estimate is not None else given is not None or precision is not None
    if estimate and not chosen.first_order:
        raise HeadwiseError(
            f"the first-order estimate needs a gradient at all gates 1, which is 0 or undefined for the metric "
            f"{chosen.name!r}; use logit_diff or logprob, or leave estimate out"
        )
    quiet = Engine(model, task, chosen, **options)
    units, pairs = _units(model, _heads(quiet, heads, given), given)
    if precision is None:
        note_too_few(task, len(pairs), "pair")
    cheap = None
    if wanted and chosen.first_order:
        cheap = estimated_interactions(quiet, units, pairs, both=given is None)
    with reporting(f"interactions on {task.name}", len(pairs) * len(quiet.rows), progress) as advance:
        engine = Engine(model, task, chosen, advance=advance, **options)
        result = Interactions(
            units, pairs, np.empty(0), np.empty(0), model.name, task.name, chosen.name, quiet.reference, cheap,
            groups=task.shared_groups(), given=given is not None, seed=int(options.get("seed", 0)),
        )  # fmt: skip
        if precision is not None:
            single = quiet.measure(unit_gates(units, model.shape)).effects.T
            return _adaptive(engine, replace(result, single=single), precision)
        found = pair_effects(engine, units, pairs)
        return replace(result, interaction=found.interaction, single=found.single(pairs, len(units)))


def _adaptive(engine: Engine, result: Interactions, precision: float) -> Interactions:
    """Each interaction to ± precision, from as few examples as that takes."""
    N, P = len(engine.task), len(result.pairs)
    sample = Sample(
        lambda numbers, examples: (
            pair_effects(engine, result.units, result.pairs[numbers], examples).interaction
        ),
        result.estimate,
        (N, P),
        crowding=design_effect(result.groups),
        seed=result.seed,
        call_cost=CALL_COST["cpu" if engine.model.device.type == "cpu" else "accelerator"],
    )
    found = to_precision(sample, precision)
    removed = np.unique(result.pairs if not result.given else result.pairs[:, 0])
    backward = 0 if result.estimate is None else BACKWARD_ROWS * N * (1 + len(removed))
    spent = found.pairs + backward
    details = {
        "rule": f"every interaction to ± {precision:g} with 95 % confidence",
        "rows": spent,
        "rows_exhaustive": N * P,
        "ratio": N * P / spent,
    }
    tests = {name: getattr(found, name) for name in _ESTIMATES}
    return replace(result, interaction=found.examples, tests=tests, details=details)


def _heads(engine: Engine, heads: Any, given: Any) -> Order:
    """The heads that are asked for, in the order of layers."""
    model = engine.model
    if (isinstance(heads, str) and heads == "all") or (heads is None and given is not None):
        return model.heads()
    if heads is None:
        return first_heads(engine)
    chosen = heads.top(FIRST, "absolute") if isinstance(heads, Scores) else head_list(heads)
    model.check_heads(chosen)
    twice = [head for index, head in enumerate(chosen) if head in chosen[:index]]
    if twice:
        raise HeadwiseError(f"heads names {twice[0]} twice; give every head once")
    return sorted(chosen)


def first_heads(engine: Engine) -> Order:
    """The 40 heads with the largest mean attribution by size, in the order of layers."""
    if not engine.metric.first_order:
        raise HeadwiseError(
            f"the metric {engine.metric.name!r} has no gradient to choose heads by; name heads, or give scores of "
            'hw.score, or heads="all"'
        )
    values = np.abs(engine.gradients()[1].mean(axis=0))
    heads = engine.model.heads()
    order = sorted(heads, key=lambda head: -values[head.layer, head.head])
    return sorted(order[:FIRST])


def _units(model: Model, heads: Order, given: Any) -> tuple[list[Unit], np.ndarray]:
    """The units, and the pairs of their numbers: all pairs of heads, or the removed set with each other head."""
    if given is None:
        if len(heads) < 2:
            raise HeadwiseError(
                f"interactions are of pairs of heads, and {len(heads)} is given; name at least two"
            )
        return [(head,) for head in heads], all_pairs(len(heads))
    removed: list[Head] = list(dict.fromkeys(head_list(given)))
    model.check_heads(removed)
    if not removed:
        raise HeadwiseError("given is empty; name the heads that are removed, such as given=['L23H3']")
    others = [head for head in heads if head not in removed]
    if not others:
        raise HeadwiseError(
            "no head is left beside the removed ones; name other heads, or leave heads out for all"
        )
    pairs = np.array([[0, number] for number in range(1, len(others) + 1)])
    return [tuple(sorted(removed)), *((head,) for head in others)], pairs
