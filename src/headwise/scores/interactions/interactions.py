"""`hw.interactions`: which heads back each other up, and which need each other.

U units, P pairs, E examples, L layers, H heads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headwise.errors import HeadwiseError
from headwise.heads import Head, Order, Scores, head_list
from headwise.metrics import metric as metric_named
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.progress import Progress, reporting
from headwise.scores.ablation import CALL_COST, AblationOptions
from headwise.scores.adaptive.adaptive import to_precision
from headwise.scores.adaptive.sample import Sample, design_effect
from headwise.scores.interactions.pairs import (
    Unit,
    all_pairs,
    estimated_interactions,
    pair_effects,
    unit_gates,
)
from headwise.scores.interactions.result import Interactions
from headwise.scores.measure import MeasureOptions
from headwise.scores.registry import BACKWARD_ROWS, note_too_few
from headwise.tasks.opening import TaskLike, as_task

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
    **how: Unpack[MeasureOptions],
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
    how: `reference`, `positions`, `seed`, `reference_task`, `batch_tokens`, as for `hw.measure`.

    >>> hw.interactions(model, task, ["L3H2", "L5H0", "L7H1"]).table()         # doctest: +SKIP
    """
    task = as_task(task, model, {})
    how["reference"] = how.get("reference") or "mean"
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
    quiet = Engine(model, task, chosen, **how)
    units, pairs = _units(model, _heads(quiet, heads, given), given)
    if precision is None:
        note_too_few(task, len(pairs), "pair")
    cheap = None
    if wanted and chosen.first_order:
        cheap = estimated_interactions(quiet, units, pairs, both=given is None)
    with reporting(f"interactions on {task.name}", len(pairs) * len(quiet.rows), progress) as advance:
        engine = Engine(model, task, chosen, advance=advance, **how)
        made = Interactions(
            units, pairs, np.empty(0), np.empty(0), model.name, task.name, chosen.name, quiet.reference, cheap,
            groups=task.shared_groups(), given=given is not None, seed=int(how.get("seed", 0)),
        )  # fmt: skip
        if precision is not None:
            single = quiet.measure(unit_gates(units, model.shape)).effects.T
            return _adaptive(engine, replace(made, single=single), precision)
        found = pair_effects(engine, units, pairs)
        return replace(made, interaction=found.interaction, single=found.single(pairs, len(units)))


def _adaptive(engine: Engine, made: Interactions, precision: float) -> Interactions:
    """Each interaction to ± precision, from as few examples as that takes."""
    N, P = len(engine.task), len(made.pairs)
    sample = Sample(
        lambda numbers, examples: pair_effects(engine, made.units, made.pairs[numbers], examples).interaction,
        made.estimate,
        (N, P),
        crowding=design_effect(made.groups),
        seed=made.seed,
        call_cost=CALL_COST["cpu" if engine.model.device.type == "cpu" else "accelerator"],
    )
    found = to_precision(sample, precision)
    removed = np.unique(made.pairs if not made.given else made.pairs[:, 0])
    backward = 0 if made.estimate is None else BACKWARD_ROWS * N * (1 + len(removed))
    spent = found.pairs + backward
    details = {
        "rule": f"every interaction to ± {precision:g} with 95 % confidence",
        "rows": spent,
        "rows_exhaustive": N * P,
        "ratio": N * P / spent,
    }
    tests = {name: getattr(found, name) for name in ("values", "stderr", "lo", "hi", "p", "n")}
    return replace(made, interaction=found.examples, tests=tests, details=details)


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
