"""Gradients of the metric by the head gates: at all gates 1 (attribution, sensitivity), and integrated from 0 to 1."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import PositiveFloat

from headwise.errors import HeadwiseError, hint
from headwise.heads import ones
from headwise.model.measure.by_position import position_gradients
from headwise.model.model import Model
from headwise.model.outputs.stream import bypassed, check_residual
from headwise.scores.registry import BACKWARD_ROWS, Setup, register
from headwise.settings import Count
from headwise.tasks.examples import Task


def each_position(setup: Setup) -> np.ndarray:
    """∂m/∂g of the gate at one position only, at g = 1, per example `[E, heads, T]`; one backward pass gives all."""
    return position_gradients(setup.engine())[:, setup.exists]


@register(
    "attribution",
    first_order=True,
    each=each_position,
    about="gradient attribution (first-order estimate of the ablation effect)",
    components=True,
)
def attribution(setup: Setup, graddrop: bool = False) -> np.ndarray:
    """∂m/∂g at g = 1, per example, in the metric's unit; positive where the head helps.

    A first-order estimate of `ablation` with the same reference; with `patch` it is attribution patching
    (Nanda 2023; AtP*, Kramár et al. 2024, arXiv 2403.00745). Cost: one backward pass. Known failure: blind
    where the metric is saturated in the gate (a softmax that stays at 1 has no gradient), and near chance on the
    joint effect of several heads (MIB benchmark, Mueller et al. 2025, arXiv 2504.13151).

    `graddrop` (AtP*) is against cancellation, where a head's direct effect and its effect through a later
    layer are opposite and almost equal: one backward pass per layer, each leaving out what flows through that
    layer's attention and MLP, and the mean of the absolute gradients times L / (L − 1), because the pass without
    a head's own layer says nothing about it. It has no sign, and costs L backward passes.
    """
    return _graddrop(setup) if graddrop else setup.engine().gradients()[1]


@register(
    "sensitivity",
    signed=False,
    first_order=True,
    about="mean absolute gradient of the metric with respect to the head gate (Michel et al.)",
)
def sensitivity(setup: Setup) -> np.ndarray:
    """|∂m/∂g| at g = 1, per example, in the metric's unit; never negative, so it does not distinguish help from harm.

    Michel et al. 2019 (arXiv 1905.10650) take the training loss; with the metric `logprob` (the negative loss)
    and the reference `zero` this is their number, without their normalisation by layer, and with any other
    metric the same question about that metric. Unlike the absolute value of `attribution` it does not let
    examples cancel. Cost: one backward pass. Known failure: noise does not average out, so a head that does
    nothing on average but something on each example scores high; and, as with every gradient, saturation.
    """
    return np.abs(setup.engine().gradients()[1])


def _graddrop(setup: Setup) -> np.ndarray:
    blocks = setup.model.hooks.blocks
    if len(blocks) < 2:
        raise HeadwiseError(f"graddrop leaves out one layer at a time, and {setup.model.name} has only one")
    if setup.layout.modules:
        raise HeadwiseError(
            "graddrop is a correction for heads: leave it out, or leave mlps and input out of components"
        )
    check_residual(setup.model, "graddrop")
    engine = setup.engine(passes=len(blocks))
    total = np.zeros((len(setup.task), *setup.layout.shape))
    for block in blocks:
        with bypassed(block):
            total += np.abs(engine.gradients()[1])
    setup.signed = False
    return total / (len(blocks) - 1)  # mean over the L passes, times L / (L - 1)


log = logging.getLogger("headwise")

FIRST_STEPS = 5


def _rows(model: Model, task: Task, reference: str, options: Mapping[str, Any]) -> float:
    """A backward pass per step; rounds of doubled steps are at most twice the last one."""
    most = options["steps"] or (FIRST_STEPS if reference == "patch" else 2 * options["most_steps"])
    return float(BACKWARD_ROWS * most * len(task))


@register(
    "integrated",
    about="integrated gradients over head gates, from 0 to 1; sums to metric(all heads) − metric(no heads)",
    rows=_rows,
    components=True,
)
def integrated(
    setup: Setup, steps: Count | None = None, tolerance: PositiveFloat = 0.05, most_steps: Count = 320
) -> np.ndarray:
    """∫ ∂m/∂g dg with all gates moving together from 0 to 1, per example, in the metric's unit; positive helps.

    The path is over the gates, not over input embeddings (Sundararajan et al. 2017, arXiv 1703.01365, for the
    method; Hanna et al. 2024, arXiv 2403.17806, for paths between activations). The scores of all heads share
    out m(full) − m(none): the relative completeness gap says how well the midpoint rule has done, and is kept
    as `gap` with the number of `steps`. Cost: one backward pass per step: 5 for `patch`; otherwise doubled
    until the gap is at most `tolerance`, at most `most_steps`. Known failure: with `zero` the path leads
    through states that the model never meets, where the gradient swings wildly, so many steps are needed and
    heads are credited for repairing them; a gap near 0 shows that the sum is right, not each part of it.
    """
    fixed = steps or (FIRST_STEPS if setup.reference == "patch" else None)
    rounds = [fixed] if fixed else [min(FIRST_STEPS, most_steps)]
    while not fixed and 2 * rounds[-1] <= most_steps:
        rounds.append(2 * rounds[-1])
    engine = setup.engine(passes=sum(rounds) + 2)
    ends = engine.measure(np.stack([np.zeros(setup.layout.shape), ones(setup.layout.shape)])).values
    effect = float((ends[1] - ends[0]).mean())  # m(full) − m(none)
    for taken in rounds:
        examples = engine.mean_gradients((np.arange(taken) + 0.5) / taken)
        total = float(np.where(setup.layout.exists, examples, 0).sum(axis=(1, 2)).mean())
        gap = abs(total - effect) / abs(effect) if effect else float("inf")
        if gap <= tolerance:
            break
    setup.details |= {
        "steps": taken,
        "gap": gap if effect else None,  # a share of nothing has no size
        "full_minus_none": effect,
    }
    if gap > tolerance:
        note = (
            f"integrated: after {taken} steps the scores sum to {total:+.3g} where the metric of all heads minus "
            f"that of none is {effect:+.3g} (gap {gap:.0%}, asked for at most {tolerance:.0%})"
        )
        if setup.reference == "zero" and setup.model.capabilities.norm_after_heads:
            note += (
                f"; a norm after the heads undoes a common factor on them: use {hint('reference', 'mean')}"
            )
        setup.details["said"] = note
        log.warning(note)
    return examples
