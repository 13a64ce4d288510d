"""What it costs to cut heads out of a model: loss against the share removed, under the constraint of plain checkpoints.

Every layer loses the same number of heads (`model/load/shrink.py`); gates measure it before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headwise.heads import Order, Scores, mask_gates
from headwise.heads.components import kinds_of
from headwise.model.load.shrink import counts, last_heads, sizes
from headwise.model.model import Model
from headwise.scores.measure import measure
from headwise.tasks.examples import Task


@dataclass(frozen=True)
class Removal:
    """The curve of one ranking."""

    table: pd.DataFrame
    """A row per task and size: `share` of heads removed, `heads` and `kv_heads` kept in a layer, `loss` (cross-entropy
    per target token) and the `cost` (loss minus that of the whole model), with their intervals."""

    def within(self, tolerance: float) -> float:
        """The largest share for which it, and every smaller one, costs at most so many nats on each task; else 0."""
        costs = self.table.groupby("share")["cost"].max().sort_index()
        return float(costs.index[(costs <= tolerance).cummin()].max())

    def summary(self, tolerance: float) -> str:
        """The curve as a table, and the largest share within the tolerance."""
        lines = ["loss (nats per target token) by the share of heads removed, with 95 % intervals:"]
        for row in self.table.itertuples(index=False):
            loss = f"{row.loss:.3f} [{row.loss_lo:.3f}, {row.loss_hi:.3f}]"
            cost = f"{row.cost:+.3f} [{row.cost_lo:+.3f}, {row.cost_hi:+.3f}]"
            lines.append(f"  {row.task:<16}{row.share:>6.1%}  {loss}  {cost}")
        largest = self.within(tolerance)
        return "\n".join([*lines, f"largest share that costs at most {tolerance:g}: {largest:.1%}"])

    def plot(self) -> Any:
        """Draw the loss against the share of heads removed; returns the matplotlib figure."""
        from headwise.charts.chart import Axis, Chart, Panel, curve
        from headwise.charts.static import figure

        panels = [
            Panel(
                title=str(name),
                marks=[curve(rows, x="share", y="loss", marker="circle")],
                x=Axis(label="Share of heads removed"),
                y=Axis(label="Nats per target token"),
            )
            for name, rows in self.table.groupby("task", sort=False)
        ]
        return figure(Chart(title="Loss against heads removed", panels=panels, size=(4.5 * len(panels), 3.3)))


def removal(
    model: Model,
    order: Order,
    tasks: Sequence[Task],
    components: str | Sequence[str] | None = None,
    **options: Any,
) -> Removal:
    """Measure every size that a smaller checkpoint can have.

    order: every head (or key/value head), most important first; components: see `hw.export`. options: `reference`,
    `reference_task`, `progress`.
    """
    possible = sizes(model.hooks, components or kinds_of(order))
    removed = [last_heads(model.hooks, model.query_heads(order), size) for size in possible]
    gates = np.stack([mask_gates(heads, model.shape) for heads in ([], *removed)])
    whole = counts(model.hooks)
    rows = []
    for task in tasks:
        measured = measure(model, task, gates, metric="mean_logprob", **options).table()
        for (heads, kv_heads), row in zip([whole, *possible], measured.to_dict("records"), strict=True):
            loss = {"loss": -row["mean"], "loss_lo": -row["hi"], "loss_hi": -row["lo"]}
            cost = {"cost": row["effect"], "cost_lo": row["effect_lo"], "cost_hi": row["effect_hi"]}
            size = {"share": 1 - heads / whole[0], "heads": heads, "kv_heads": kv_heads}
            rows.append({"task": task.name, **size, **loss, **cost, "n": row["n"]})
    return Removal(pd.DataFrame(rows))


def mean_order(scores: Sequence[Scores]) -> Order:
    """The heads by the mean of their places in several rankings, most important first."""
    orders = [one.order() for one in scores]
    places = [{head: place for place, head in enumerate(order)} for order in orders]
    return sorted(orders[0], key=lambda head: (sum(place[head] for place in places), head))
