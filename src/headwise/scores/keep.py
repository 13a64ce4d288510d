"""Keeping one head alone: its effect with all other heads ablated."""

from __future__ import annotations

import numpy as np

from headwise.heads import lone_gates
from headwise.scores.registry import SHARED_ROW, Setup, register


@register(
    "keep",
    about="exact: metric with only this head minus metric with no heads",
    steps=lambda model, task: len(model.heads()) * len(task),
    rows=lambda model, task, *_: SHARED_ROW * len(model.heads()) * len(task),
    components=True,
)
def keep(setup: Setup) -> np.ndarray:
    """m(none + this head) − m(none), per example, in the metric's unit; positive where the head helps.

    Sufficiency where `ablation` asks for necessity: all other heads are replaced by the reference. Cost: one
    forward row per head and example; equal blocks are shared (prefix sharing). Known failure: a head that needs another
    one (the second of an induction pair) scores near 0, and with `zero` the model without any head is so far
    from its usual state that late heads read nonsense; `mean` and `patch` are milder (Chan et al. 2022, causal
    scrubbing, and Wang et al. 2022, arXiv 2211.00593, on what a circuit is tested against).
    """
    engine, layout = setup.engine(), setup.layout
    measured = engine.measure(lone_gates(setup.heads, layout), baseline=np.zeros(layout.shape))
    setup.details |= {"batch_tokens": engine.batch_tokens, "rows": engine.rows_spent}
    return setup.per_head(measured.values - measured.full)
