"""Integrated gradients over the head gates: gradients along the path of all gates from 0 to 1."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import PositiveFloat

from headwise.errors import hint
from headwise.heads import ones
from headwise.model.model import Model
from headwise.scores.registry import BACKWARD_ROWS, Setup, register
from headwise.settings import Count
from headwise.tasks.examples import Task

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
        "batch_tokens": engine.batch_tokens,
        "rows": engine.rows_spent,
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
        setup.details["note"] = note
        log.warning(note)
    return examples
