"""First-order attribution: what a small step of the gate would change."""

from __future__ import annotations

import numpy as np

from headwise.scores.registry import Setup, register


@register(
    "attribution",
    first_order=True,
    about="first order: slope of the metric by the head's gate, at full gates",
)
def attribution(setup: Setup) -> np.ndarray:
    """∂m/∂g at g = 1, per example, in the metric's unit; positive where the head helps.

    A first-order estimate of `ablation` with the same reference; with `patch` it is attribution patching
    (Nanda 2023; AtP*, Kramár et al. 2024, arXiv 2403.00745). Cost: one backward pass. Known failure: blind
    where the metric is saturated in the gate (a softmax that stays at 1 has no slope), and near chance on the
    joint effect of several heads (MIB benchmark, Mueller et al. 2025, arXiv 2504.13151).
    """
    engine = setup.engine()
    _, slopes = engine.gradients()
    setup.details |= {"batch_tokens": engine.batch_tokens, "rows": engine.rows_spent}
    return slopes
