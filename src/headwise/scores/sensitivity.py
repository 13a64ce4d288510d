"""Sensitivity: how strongly the metric reacts to a head's gate, in whichever direction."""

from __future__ import annotations

import numpy as np

from headwise.scores.registry import Setup, register


@register(
    "sensitivity",
    signed=False,
    first_order=True,
    about="first order: absolute slope of the metric by the head's gate, averaged over examples",
)
def sensitivity(setup: Setup) -> np.ndarray:
    """|∂m/∂g| at g = 1, per example, in the metric's unit; never negative, so it does not tell help from harm.

    Michel et al. 2019 (arXiv 1905.10650) take the training loss; with the metric `logprob` (the negative loss)
    and the reference `zero` this is their number, without their normalisation by layer, and with any other
    metric the same question about that metric. Unlike the absolute value of `attribution` it does not let
    examples cancel. Cost: one backward pass. Known failure: noise does not average out, so a head that does
    nothing on average but something on each example scores high; and, as with every slope, saturation.
    """
    engine = setup.engine()
    _, slopes = engine.gradients()
    setup.details |= {"batch_tokens": engine.batch_tokens, "rows": engine.rows_spent}
    return np.abs(slopes)
