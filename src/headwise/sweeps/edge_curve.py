"""How few edges explain a behaviour: explained effect against the number of edges kept.

A kept edge carries its sender's live output, a dropped one the reference. EE(k) is m(first k edges kept) − m(none kept)
over m(full) − m(none kept), a ratio of means over examples. Edges that were not scored are always kept, so "none" means
none of the scored ones.

K points of a curve, E examples, N edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from headwise.errors import HeadwiseError
from headwise.heads import Edge, Edges
from headwise.heads.head import ranking
from headwise.metrics import metric as metric_named
from headwise.model.edges.circuit import Circuits
from headwise.model.edges.parts import take_apart
from headwise.model.forward.schedule import in_halves
from headwise.model.measure.engine import Engine
from headwise.model.measure.positions import position_masks
from headwise.model.measure.references import check_stored
from headwise.model.model import Model
from headwise.names import ablation_name
from headwise.progress import Progress, reporting
from headwise.scores.edges.score import sender_kinds
from headwise.sweeps.curve import THRESHOLD, Curve
from headwise.sweeps.explained import EXPLAINED, knee_points
from headwise.tables.codec import stored
from headwise.tasks.examples import Task

_CHANGES = {"cpu": 2**28, "accelerator": 2**31}
"""Most numbers held of what senders change in the stream: 1 GB and 8 GB in float32."""


@stored
@dataclass(frozen=True, kw_only=True)
class EdgeCurve(Curve):
    """The metric as only the first k edges of an order are kept."""

    tokens: np.ndarray  # K
    """Mean number of (edge, token) pairs that are kept per example."""

    examples_name = "curve_examples"

    @property
    def gains(self) -> np.ndarray:
        """m(first k edges) − m(none of the edges), per example `[K, E]`: the first k is 0, the last all edges."""
        return np.asarray(self.values - self.values[0])

    @property
    def effects(self) -> np.ndarray:
        """m(full) − m(none of the edges), per example `[E]`."""
        return np.asarray(self.values[-1] - self.values[0])

    def table(self) -> pd.DataFrame:
        """One row per point: edges kept, (edge, token) pairs kept, explained effect with its interval."""
        names = {"model": self.model, "task": self.task, "series": self.series, "action": "keep"}
        points = {"k": self.k, "tokens": self.tokens, "metric": EXPLAINED}
        shares = self.explained().drop(columns="k")
        return pd.DataFrame(
            {**names, **points, **shares, "n": self.n, "reference": self.details.get("reference", "")}
        )

    def example_table(self) -> pd.DataFrame:
        """The metric of every example at every k."""
        return pd.DataFrame({"model": self.model, "task": self.task, **self._example_points()})

    def summary(self, threshold: float = THRESHOLD) -> dict[str, Any]:
        """One row: edges needed, and the effect of all edges, with intervals."""
        row: dict[str, Any] = {name: getattr(self, name) for name in ("model", "task", "series", "metric")}
        needed = ("k", "k_lo", "k_hi", "stays", "stays_lo", "stays_hi")
        row |= dict(zip(needed, self.k_at(threshold), strict=True)) | {"of": int(self.k[-1])}
        row |= dict(zip(("effect", "effect_lo", "effect_hi"), self.effect, strict=True))
        return row | {"threshold": threshold, "n": self.n, "defined": self.defined}

    def plot(self) -> Any:
        """Draw the curve; returns the matplotlib figure."""
        from headwise.charts.static import figure
        from headwise.charts.wiring import edge_curve_chart

        heading = ablation_name(self.details.get("reference", "")).capitalize()
        return figure(replace(edge_curve_chart(self.table()), heading=heading))


def edge_curve(
    model: Model,
    task: Task,
    edges: Edges,
    *,
    by: str = "absolute",
    k: Sequence[int] | None = None,
    points: int = 15,
    threshold: float = THRESHOLD,
    progress: Progress = True,
    **options: Any,
) -> EdgeCurve:
    """Keep only the first k edges of an order, for several k, and measure the metric.

    edges: scores, best of other examples than those of `task`. by: `absolute`, `signed` or `hinders`. k: by default at
    most `points` numbers, spread evenly on a log axis and then around the threshold. options: `metric`, `reference`
    (both by default those of the scores), `seed` (of a resample reference and of intervals), `reference_task`,
    `batch_tokens`. Families with a norm between their heads and the stream are refused.
    """
    ranked = [edges.edges[n] for n in ranking(edges.values, by)]
    measured = metric_named(options.pop("metric", None) or edges.metric or task.metric)
    used = options.pop("reference", None) or edges.details.get("reference", "mean")
    check_stored(used, "the edges")
    seed = int(options.get("seed", 0))
    engine = Engine(model, task, measured, reference=used, components=sender_kinds(ranked), **options)
    chosen = sorted({0, *(k or log_points(len(ranked), points - points // 3)), len(ranked)})
    if chosen[-1] > len(ranked) or chosen[0] < 0:
        raise HeadwiseError(f"k runs from 0 to {len(ranked)}, the number of edges; {chosen[-1]} is outside")
    with reporting(f"edge curve on {task.name}", len(task) * max(points, len(chosen)), progress) as advance:
        values, pairs = _measured(engine, ranked, chosen, advance)
        if k is None:
            gains = np.stack([values[n] - values[0] for n in chosen])
            effect = gains[-1].mean()
            more = (
                knee_points(np.array(chosen), gains.mean(1) / effect, threshold, points // 3)
                if effect
                else []
            )
            further = _measured(engine, ranked, more, advance)
            values, pairs = {**values, **further[0]}, {**pairs, **further[1]}
    at = np.array(sorted(values))
    return EdgeCurve.of(
        engine,
        k=at,
        values=np.stack([values[n] for n in at]),
        tokens=np.array([pairs[n] for n in at]),
        series=f"{edges.method} {by}",
        seed=seed,
        details={"reference": used, "rows": engine.rows_spent},
    )


def log_points(total: int, points: int) -> list[int]:
    """At most `points` numbers of edges from 0 to all, evenly spread on a log axis.

    >>> log_points(1000, 5)
    [0, 1, 10, 100, 1000]
    """
    return sorted(
        {0, *np.unique(np.round(np.geomspace(1, max(total, 1), max(points - 1, 2)))).astype(int).tolist()}
    )


def _measured(
    engine: Engine, ranked: list[Edge], at: Sequence[int], advance: Any
) -> tuple[dict[int, np.ndarray], dict[int, float]]:
    """The metric `[E]`, and the (edge, token) pairs kept per example, with the first k edges kept for each k."""
    if not len(at):
        return {}, {}
    keep = np.arange(len(ranked))[None, :] < np.asarray(at)[:, None]
    values = np.full((len(at), len(engine.rows)), np.nan)
    pairs = np.zeros((len(at), len(engine.rows)))
    parts = take_apart(engine.model)
    spans = tuple(dict.fromkeys(edge.span for edge in ranked if edge.span))
    budget = _CHANGES["cpu" if engine.model.device.type == "cpu" else "accelerator"]
    width = engine.model.hf.get_input_embeddings().weight.shape[-1]  # type: ignore[operator]
    senders = len({edge.sender for edge in ranked})

    def fill(numbers: Sequence[int]) -> None:
        block = engine.table.block(numbers)
        masks = position_masks(engine.model.text, engine.task, block.rows, block.length, spans)
        circuits = Circuits(engine, parts, block, ranked, masks)
        tokens = block.size * block.length
        at_once = max(
            1, min(engine.batch_tokens // (circuits.groups * tokens), budget // (senders * tokens * width))
        )
        for first in range(0, len(at), at_once):
            some = slice(first, first + at_once)
            values[some, list(numbers)] = circuits.values(keep[some])
            advance(len(keep[some]) * len(numbers))
        lengths = np.array([len(row.ids) for row in block.rows])
        of_edge = np.stack([masks[e.span].sum(1).numpy() if e.span else lengths for e in ranked])  # N, S
        pairs[:, list(numbers)] = keep.astype(float) @ of_edge

    with torch.inference_mode(), engine.model.running():
        for numbers in engine.table.partition(12, engine.batch_tokens):
            in_halves(numbers, fill, engine.table.too_large)
    combined = engine.metric.combine(engine.rows, values, len(engine.task))
    return dict(zip(at, combined, strict=True)), dict(zip(at, pairs.mean(1), strict=True))
