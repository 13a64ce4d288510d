"""`Bench`, which measures sets of heads, and what is reported without a verdict: checks 7 and 9."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headwise import stats
from headwise.certificates import checks
from headwise.certificates.checks import ABLATIONS, SPECIFIC, Followed, row, untested
from headwise.errors import HeadwiseError
from headwise.heads import Head, Order, keep_gates, mask_gates
from headwise.heads.components import KV_HEADS, kinds_of
from headwise.metrics import metric as metric_named
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.tasks.examples import Task
from headwise.tasks.opening import as_task

SPECIFIC_DRAWS = 20
"""Random sets beside which check 7 is shown."""
OTHER_REFERENCES = ("mean", "resample", "patch")
"""Ablation types of check 9."""


def components_of(chosen: Sequence[Head]) -> tuple[str, ...]:
    kinds = kinds_of(chosen)
    return kinds if kinds == KV_HEADS or "heads" in kinds else ("heads", *kinds)


class Bench:
    """Measures sets of heads of one circuit on any task, under any ablation type."""

    def __init__(self, model: Model, chosen: Order, metric: str | None, reference: str, seed: int) -> None:
        self.model, self.chosen, self.metric = model, chosen, metric
        self.reference, self.seed = reference, seed
        self.layout = model.layout(components_of(chosen))
        self.every = self.layout.listed()
        self.options: dict[str, Any] = {"seed": seed, "components": self.layout.components}
        """Of the engine."""
        self.advance: Callable[[int], None] = lambda count: None
        self.rows_spent = 0

    def engine(self, task: Task, metric: Any = None, reference: str | None = None) -> Engine:
        options = self.options | {"reference": reference or self.reference, "advance": self.advance}
        return Engine(self.model, task, metric or metric_named(self.metric or task.metric), **options)

    def kept(self, heads: Sequence[Head]) -> np.ndarray:
        """Gates that keep only these."""
        return keep_gates(heads, self.layout)

    def without(self, heads: Sequence[Head]) -> np.ndarray:
        """Gates of the whole model without these."""
        return mask_gates(heads, self.layout)

    def values(self, engine: Engine, gates: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The metric with all heads `[E]`, and under each of these gates `[V, E]`."""
        return self.answered(engine, gates)[:2]

    def answered(
        self, engine: Engine, gates: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The same, and where the last of these gates give the whole model's answer `[E]`, if the engine reads it."""
        measured = engine.measure(np.stack(gates))
        self.rows_spent += engine.rows_spent
        full, answers = measured.full[0], measured.second
        same = None if answers is None else (answers.values[-1] == answers.full[-1]).astype(float)
        return full, full - measured.effects, same  # each beside the whole model in its own batch

    def followed(self, task: Task, reference: str | None = None) -> Followed:
        """The circuit on another task or under another ablation type."""
        full, (none, kept) = self.values(
            self.engine(task, reference=reference), [self.kept([]), self.kept(self.chosen)]
        )
        return Followed(full, none, kept, None, {}, task.shared_groups())


def specific(
    bench: Bench, negatives: Any, others: Sequence[Any], drawn: Sequence[Order]
) -> list[dict[str, Any]]:
    """Check 7: what ablating the set costs elsewhere, in the unit of the metric there, beside random sets."""
    listed = [("negatives", negatives)] * (negatives is not None) + [("", other) for other in others]
    if not listed:
        return [untested(SPECIFIC, "cost elsewhere", "no negatives and no other tasks were given")]
    lines = []
    for kind, source in listed:
        other = as_task(source, bench.model, {})
        gates = [bench.without(bench.chosen), *(bench.without(heads) for heads in drawn)]
        full, (without, *random_) = bench.values(bench.engine(other), gates)
        cost, groups = full - without, other.shared_groups()
        ends = [float(end) for end in stats.mean_interval(cost, groups=groups)]
        note = (
            f"random sets of the same layers: {np.mean([full - one for one in random_]):.3g}"
            if random_
            else ""
        )
        name = other.metric if bench.metric is None else bench.metric
        measure = f"{name} lost on {kind or other.name} without the set"
        lines.append(row(SPECIFIC, measure, cost.mean(), ends, n=len(other), note=note))
    return lines


def ablations(bench: Bench, task: Task) -> list[dict[str, Any]]:
    """Check 9: the explained effect under the other ablation types."""
    lines = []
    for reference in OTHER_REFERENCES:
        if reference == bench.reference:
            continue
        measure = f"explained effect with {reference}"
        try:
            found = bench.followed(task, reference)
        except HeadwiseError as error:
            lines.append(untested(ABLATIONS, measure, str(error).splitlines()[0][:200], len(task)))
            continue
        value, lo, hi = checks.share(found.kept - found.none, found.effects, found.groups)
        lines.append(row(ABLATIONS, measure, value, (lo, hi), n=found.n))
    return lines
