"""Gradient edges: first-order estimates of every exact edge from one backward pass, plain or integrated."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from pydantic import PositiveFloat

from headwise.model.edges.gradient import edge_gradients
from headwise.model.forward.schedule import in_halves
from headwise.model.measure.engine import Engine
from headwise.scores.edges.registry import EdgeSetup, register
from headwise.scores.integrated import FIRST_STEPS
from headwise.scores.registry import scaled_progress
from headwise.settings import Count

log = logging.getLogger("headwise")


@register(
    "attribution",
    first_order=True,
    about="edge attribution patching: first-order estimate of the exact edge",
)
def attribution(setup: EdgeSetup) -> np.ndarray:
    """−Σ_t Δ(t) · ∂m/∂x(t) at the full model, per example `[E, N]`; positive where the edge helps.

    EAP (Syed et al. 2023, arXiv 2310.10348), with queries, keys and values told apart. Cost: one backward pass, and a
    pull-back of each receiver's gradient to the stream. Known failure: as with every gradient, saturation: an edge into
    a softmax that stays at 1 scores 0.
    """
    return _at_levels(setup, [1.0])[0]


@register(
    "integrated",
    gradient=True,
    gates=True,
    version=2,
    about="integrated gradients over the gates of heads, MLPs and embeddings together; edges out of a sender sum to "
    "its node score",
)
def integrated(
    setup: EdgeSetup, steps: Count | None = None, tolerance: PositiveFloat = 0.05, most_steps: Count = 80
) -> np.ndarray:
    """The attribution of each edge averaged over gate levels from 0 to 1, per example `[E, N]`.

    Heads, MLPs and embeddings stand at the same gate level α; Δ (per unit of the sender's gate) and ∂m/∂x are both from
    the run at α. The edges out of a sender then sum to its integrated node score, and all edges of a model to
    m(full) − m(nothing); the edges into a receiver sum to nothing in particular. Related: EAP-IG (Hanna et al. 2024,
    arXiv 2403.17806), which interpolates input embeddings instead. Cost: one backward pass per step: 5 for `patch`;
    otherwise doubled until the completeness gap is at most `tolerance`, at most `most_steps`.
    """
    fixed = steps or (FIRST_STEPS if setup.reference == "patch" else None)
    taken = fixed or min(FIRST_STEPS, most_steps)
    effect = _effect(setup)
    while True:
        values, total = _at_levels(setup, ((np.arange(taken) + 0.5) / taken).tolist())
        gap = abs(total - effect) / abs(effect) if effect else float("inf")
        if fixed or gap <= tolerance or 2 * taken > most_steps:
            break
        taken *= 2
    setup.details |= {"steps": taken, "gap": gap if effect else None, "full_minus_none": effect}
    if gap > tolerance:
        note = (
            f"integrated edges: after {taken} steps all edges sum to {total:+.3g} where the metric of the model minus "
            f"that without any component is {effect:+.3g} (gap {gap:.0%}, asked for at most {tolerance:.0%})"
        )
        setup.details["note"] = note
        log.warning(note)
    return values


def _effect(setup: EdgeSetup) -> float:
    """m(full) − m(every component at its reference), the mean over the examples."""
    engine = Engine(setup.model, setup.task, setup.metric, **setup.engine_options)
    ends = engine.measure(np.stack([np.zeros(engine.layout.shape), np.ones(engine.layout.shape)])).values
    return float((ends[1] - ends[0]).mean())


def _at_levels(setup: EdgeSetup, levels: list[float]) -> tuple[np.ndarray, float]:
    """Values `[E, N]` averaged over gate levels, and the mean gradient of the metric by the common gate."""
    engine = Engine(setup.model, setup.task, setup.metric, **setup.engine_options)
    advance = scaled_progress(setup.advance, 1 / len(levels)) or (lambda count: None)
    values = np.zeros((len(setup.task), len(setup.edges)))
    by_level: list[float] = []

    def fill(numbers: Sequence[int]) -> None:
        block, spans = setup.block(engine, numbers)
        examples = [engine.rows[n].example for n in numbers]
        total, slope = np.zeros((len(setup.edges), block.size)), 0.0
        for level in levels:
            scores, found = edge_gradients(engine, setup.parts, block, setup.edges, spans, level)
            total, slope = total + scores, slope + found.by_level
            advance(len(numbers))
        values[examples] = total.T / len(levels)
        by_level.append(slope / len(levels))

    copies = 2 + max(part.heads + 2 * part.kv_heads for part in setup.parts.blocks) // 2
    with setup.model.frozen():
        for numbers in engine.table.partition(copies, engine.batch_tokens):
            in_halves(numbers, fill, engine.table.too_large)
    setup.details |= {"batch_tokens": engine.batch_tokens, "rows": engine.rows_spent}
    return values, sum(by_level) / len(setup.task)
