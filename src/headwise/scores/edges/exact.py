"""Exact edges: replace what one receiver sees of one sender, and measure the change of the metric."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from headwise.errors import unknown
from headwise.model.edges.contributions import contributions
from headwise.model.edges.exact import ExactEdges
from headwise.model.forward.schedule import in_halves
from headwise.scores.edges.registry import EdgeSetup, register

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
    setup.details |= {"batch_tokens": engine.batch_tokens, "rows": engine.rows_spent}
    replaced, full = (engine.metric.combine(engine.rows, part, len(setup.task)) for part in values)
    return (full - replaced).T
