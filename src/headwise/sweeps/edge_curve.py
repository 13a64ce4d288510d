"""How few edges explain a behaviour: explained effect against the number of edges kept.

A kept edge carries its sender's live output, a dropped one the reference. EE(k) is m(first k edges kept) − m(none kept)
over m(full) − m(none kept), a ratio of means over examples. Edges that were not scored are always kept, so "none" means
none of the scored ones.

K points of a curve, E examples, N edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from headwise import stats
from headwise.errors import HeadwiseError
from headwise.heads import RANKED_BY, Edge, Edges
from headwise.metrics import metric as metric_named
from headwise.model.edges.circuit import Circuits
from headwise.model.edges.parts import take_apart
from headwise.model.forward.schedule import in_halves
from headwise.model.measure.engine import Engine
from headwise.model.measure.positions import position_masks
from headwise.model.model import Model
from headwise.names import ablation_name
from headwise.progress import Progress, reporting
from headwise.scores.edges.registry import sender_kinds
from headwise.sweeps.explained import EXPLAINED, HeadsNeeded, knee_points, needed_with_intervals
from headwise.tables.codec import stored
from headwise.tasks.examples import Task

_CHANGES = {"cpu": 2**28, "accelerator": 2**31}
"""Most numbers held of what senders change in the stream: 1 GB and 8 GB in float32."""


@stored
@dataclass(frozen=True)
class EdgeCurve:
    """The metric as only the first k edges of an order are kept."""

    k: np.ndarray  # K
    values: np.ndarray  # K, E
    """The metric; at k = 0 none of the scored edges is kept, at the last k all."""
    tokens: np.ndarray  # K
    """Mean number of (edge, token) pairs that are kept per example."""
    model: str
    task: str
    series: str
    """The method that scored the edges, and how they were ranked."""
    metric: str = ""
    groups: Sequence[str | None] | None = None
    numbers: Sequence[int] | None = None
    """Of the examples, in their task; None where counted from 0."""
    details: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def n(self) -> int:
        """Number of examples."""
        return self.values.shape[1]

    @property
    def effect(self) -> np.ndarray:
        """m(full) − m(none of the edges), per example."""
        return np.asarray(self.values[-1] - self.values[0])

    @cached_property
    def _explained(self) -> stats.Ratio:
        gains = (self.values - self.values[0]).T
        return stats.ratio_interval(gains, self.effect, groups=self.groups)

    def explained(self) -> stats.Ratio:
        """The explained effect at every k, with its interval; NaN where the effect may be 0."""
        return self._explained

    @property
    def defined(self) -> bool:
        """Whether there is an effect to explain: its interval leaves out 0."""
        return not np.isnan(self._explained.value).all()

    def k_at(self, threshold: float = 0.9, seed: int = 0) -> HeadsNeeded:
        """The smallest number of edges that explains this share of the effect, and from where on it stays there."""
        if not self.defined:
            return HeadsNeeded(*[float("nan")] * 6)
        gains = self.values - self.values[0]
        return needed_with_intervals(self.k, gains, self.effect, threshold, groups=self.groups, seed=seed)

    def table(self) -> pd.DataFrame:
        """One row per point: edges kept, (edge, token) pairs kept, explained effect with its interval."""
        names = {"model": self.model, "task": self.task, "series": self.series, "action": "keep"}
        points = {"k": self.k, "tokens": self.tokens, "metric": EXPLAINED, **self._explained._asdict()}
        return pd.DataFrame({**names, **points, "n": self.n, "reference": self.details.get("reference", "")})

    def example_table(self) -> pd.DataFrame:
        """The metric of every example at every k."""
        numbers = np.arange(self.n) if self.numbers is None else np.asarray(self.numbers)
        columns = {"k": np.repeat(self.k, self.n), "example": np.tile(numbers, len(self.k))}
        return pd.DataFrame({"model": self.model, "task": self.task, **columns, "value": self.values.ravel()})

    def measured_tables(self) -> dict[str, pd.DataFrame]:
        """What must be finite."""
        return {"curve_examples": self.example_table()}

    def summary(self, threshold: float = 0.9, seed: int = 0) -> dict[str, Any]:
        """One row: edges needed, and the effect of all edges, with intervals."""
        needed = self.k_at(threshold, seed)
        lo, hi = map(float, stats.mean_interval(self.effect, groups=self.groups))
        row: dict[str, Any] = {name: getattr(self, name) for name in ("model", "task", "series", "metric")}
        row |= dict(zip(("k", "k_lo", "k_hi", "stays", "stays_lo", "stays_hi"), needed, strict=True))
        row |= {"of": int(self.k[-1]), "effect": float(self.effect.mean()), "effect_lo": lo, "effect_hi": hi}
        return row | {"threshold": threshold, "n": self.n, "defined": bool(np.isfinite(needed.k))}

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
    threshold: float = 0.9,
    progress: Progress = True,
    **options: Any,
) -> EdgeCurve:
    """Keep only the first k edges of an order, for several k, and measure the metric.

    edges: scores, best of other examples than those of `task`. by: `absolute`, `signed` or `hinders`. k: by default at
    most `points` numbers, spread evenly on a log axis and then around the threshold. options: `metric`, `reference`
    (both by default those of the scores), `reference_task`, `batch_tokens`, `seed`. Families with a norm between their
    heads and the stream are refused.
    """
    ranked = [edges.edges[n] for n in np.argsort(-RANKED_BY[by](edges.values), kind="stable")]
    measured = metric_named(options.pop("metric", None) or edges.metric or task.metric)
    used = options.pop("reference", None) or edges.details.get("reference", "mean")
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
    details = {"reference": used, "rows": engine.rows_spent}
    tokens = np.array([pairs[n] for n in at])
    series = f"{edges.method} {by}"
    names = (model.name, task.name, series, measured.name)
    curve = np.stack([values[n] for n in at])
    return EdgeCurve(at, curve, tokens, *names, task.shared_groups(), task.numbers, details)


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
