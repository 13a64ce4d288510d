"""Scores of edges: exact ones, and first-order estimates of them all from one backward pass, plain or integrated."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from pydantic import PositiveFloat

from headwise.errors import unknown
from headwise.model.edges.contributions import contributions
from headwise.model.edges.exact import ExactEdges
from headwise.model.edges.gradient import edge_gradients
from headwise.model.forward.schedule import in_halves
from headwise.model.measure.engine import Engine
from headwise.progress import scaled_progress
from headwise.scores.edges.score import EdgeSetup, register
from headwise.scores.gradients import FIRST_STEPS
from headwise.settings import Count

MLPS = ("hold", "move")
"""What MLPs between sender and receiver do: keep their plain outputs, or read the changed stream."""
COPIES = 16
"""Copies of a block of rows that share a pass, at least where memory allows."""


@register(
    "exact", about="path patching of one direct edge: metric with the edge minus metric with it replaced"
)
def exact(setup: EdgeSetup, mlps: str = "hold") -> np.ndarray:
    """m(full) − m(edge replaced), per example `[E, N]`, in the metric's unit; positive where the edge helps.

    Only the receiver's slot sees the stream with the sender's contribution replaced by its reference; components
    between the two keep their plain outputs, everything after the receiver is recomputed (Goldowsky-Dill et al. 2023,
    arXiv 2304.05969). With mlps="move" the MLPs between the two are computed again, as in the IOI paper (Wang et al.
    2022, arXiv 2211.00593). Cost: one forward row from the receiver's block on for
    each edge and example. Known failure: as with `ablation` of heads, an edge that another one stands in for scores
    near 0.
    """
    if mlps not in MLPS:
        raise unknown("way of MLPs (mlps=…)", str(mlps), MLPS)
    engine = setup.engine()
    senders = list(dict.fromkeys(edge.sender for edge in setup.edges))
    values = np.full((2, len(setup.edges), len(engine.rows)), np.nan)

    def fill(numbers: Sequence[int]) -> None:
        block, spans = setup.block(engine, numbers)
        plain = contributions(setup.model, setup.parts, block, senders)
        measured = ExactEdges(engine, setup.parts, block, plain, spans, mlps == "move")
        values[:, :, list(numbers)] = measured.values(setup.edges)

    with torch.inference_mode(), setup.model.running():
        for numbers in engine.table.partition(COPIES, engine.batch_tokens):
            in_halves(numbers, fill, engine.table.too_large)
    replaced, full = (engine.metric.combine(engine.rows, part, len(setup.task)) for part in values)
    return (full - replaced).T


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
    whole = Engine(setup.model, setup.task, setup.metric, **setup.engine_options)
    ends = whole.measure(np.stack([np.zeros(whole.layout.shape), np.ones(whole.layout.shape)])).values
    effect = float((ends[1] - ends[0]).mean())  # m(full) − m(every component at its reference)
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
        setup.details["said"] = note
        log.warning(note)
    return values


def _at_levels(setup: EdgeSetup, levels: list[float]) -> tuple[np.ndarray, float]:
    """Values `[E, N]` averaged over gate levels, and the mean gradient of the metric by the common gate."""
    engine = setup.engine()
    engine.advance = lambda count: None
    advance = scaled_progress(setup.advance, 1 / len(levels)) or engine.advance
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
    return values, sum(by_level) / len(setup.task)
