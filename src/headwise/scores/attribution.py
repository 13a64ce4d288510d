"""First-order methods: gradient of the metric with respect to each head's gate, signed (attribution) or absolute."""

from __future__ import annotations

import numpy as np

from headwise.errors import HeadwiseError
from headwise.model.measure.by_position import position_gradients
from headwise.model.outputs.stream import bypassed, check_residual
from headwise.scores.registry import Setup, register


def each_position(setup: Setup) -> np.ndarray:
    """∂m/∂g of the gate at one position only, at g = 1, per example `[E, heads, T]`; one backward pass gives all."""
    engine = setup.engine()
    gradients = position_gradients(engine)[:, setup.exists]
    setup.details |= {"batch_tokens": engine.batch_tokens, "rows": engine.rows_spent}
    return gradients


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
    return _graddrop(setup) if graddrop else _gradients(setup)


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
    return np.abs(_gradients(setup))


def _gradients(setup: Setup) -> np.ndarray:
    engine = setup.engine()
    gradients = engine.gradients()[1]
    setup.details |= {"batch_tokens": engine.batch_tokens, "rows": engine.rows_spent}
    return gradients


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
    setup.details |= {"batch_tokens": engine.batch_tokens, "rows": engine.rows_spent}
    return total / (len(blocks) - 1)  # mean over the L passes, times L / (L - 1)
