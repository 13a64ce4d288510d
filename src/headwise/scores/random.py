"""Seeded noise: the control that every real score has to beat."""

from __future__ import annotations

import numpy as np

from headwise.scores.registry import Setup, register


@register(
    "random", ablates=False, about="random numbers with a fixed seed (control)", signed=False, components=True
)
def random(setup: Setup) -> np.ndarray:
    """Standard normal numbers, independent of the model. Cost: none."""
    if setup.advance:
        setup.advance(len(setup.task))
    return np.random.default_rng(setup.seed).standard_normal((len(setup.task), *setup.layout.shape))
