"""Exact ablation: take one head away and measure what is lost."""

from __future__ import annotations

import numpy as np

from headwise.heads import single_gates
from headwise.scores.registry import Setup, register


@register(
    "ablation",
    about="exact: metric with the head minus metric without it",
    steps=lambda model, task: len(model.heads()) * len(task),
)
def ablation(setup: Setup) -> np.ndarray:
    """m(full) − m(head's gate at 0), per example, in the metric's unit; positive where the head helps.

    Cost: one forward row per head and example, entered at the head's own layer. Known failure: a head whose
    work another head takes over when it is gone (a backup head) scores near 0 although both matter; the effect
    of removing several heads is not the sum of their scores. With `zero` it also counts what the head adds
    whatever the input, with `mean` and `patch` only what depends on it (Wang et al. 2022, arXiv 2211.00593).
    """
    engine = setup.engine()
    heads = setup.model.heads()
    effects = engine.measure(single_gates(heads, setup.model.shape)).effects  # V, E
    examples = np.full((len(setup.task), *setup.model.shape), np.nan)
    for (layer, head), effect in zip(heads, effects, strict=True):
        examples[:, layer, head] = effect
    setup.details |= {"batch_tokens": engine.batch_tokens, "rows": engine.rows_spent}
    return examples
