"""The course of a sparse-attention training, and what became of the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Chart, Line, Panel, Scale, curve
from headwise.charts.heatmap import head_panel
from headwise.tables.frames import grid

_BLUE, _ORANGE = "#1f77b4", "#ff7f0e"


def training_chart(training: pd.DataFrame, checks: pd.DataFrame, *, bound: float) -> Chart:
    """Share of open edges, excess over the dense model and multiplier against updates.

    Lines: noisy gates, a moving mean over updates. Dots: hard gates on held-back text, the model as it is used.
    """
    window = min(50, max(1, len(training) // 20))
    smooth = training.rolling(window, min_periods=1).mean().assign(step=training["step"])
    usual = smooth["excess"][len(training) // 10 :].quantile(0.99)
    top = np.nanmax([usual, checks["excess"][checks["step"] > 0].max(), bound])
    limits = (min(0.0, smooth["excess"].min(), checks["excess"].min()), 1.15 * top)
    smooth, checks = (table.assign(percent=100 * table["share"]) for table in (smooth, checks))
    noisy: dict[str, Any] = {"x": "step", "name": "noisy gates", "colour": _BLUE}
    hard: dict[str, Any] = {"x": "step", "name": "hard gates, held-back", "colour": _ORANGE, "dash": "none"}
    ends = (float(smooth["step"].min()), float(smooth["step"].max())) if len(smooth) else (0.0, 1.0)
    limit = Line(x=ends, y=[bound] * 2, name=f"bound {bound:g}", colour="#4d4d4d", dash="dash", width=1)
    price = (0, 1.05 * float(smooth["multiplier"].max()) or 1)
    axes = {
        "percent": Axis(label="Open edges (%)", scale="log"),
        "excess": Axis(label="Nats per token above dense", limits=limits),
        "multiplier": Axis(label="Multiplier λ", limits=price),
    }
    lines = {column: [curve(smooth, y=column, **noisy)] for column in axes}
    for column in ("percent", "excess"):
        lines[column].append(curve(checks, y=column, marker="circle", **hard))
    lines["excess"].append(limit)
    x = Axis(label="Update")
    return Chart(
        title="The course of the training",
        panels=[Panel(marks=lines[column], x=x, y=y) for column, y in axes.items()],
        size=(9.6, 3.3),
        columns=3,
        legend="bottom",
    )


def edge_chart(edges: pd.DataFrame, lengths: pd.DataFrame, *, title: str | None = None) -> Chart:
    """Left, the share of causal edges open in every head; right, how far open edges reach beside all edges."""
    shares = edges.assign(share=100 * edges["open"])
    values = grid(shares, "share")
    top = float(np.nanquantile(values, 0.98)) or 1.0
    above = bool(np.nanmax(values) > top)
    scale = Scale("viridis", 0, top, f"Open edges (%){', some beyond' if above else ''}", above=above)
    kinds = {"possible": ("all causal edges", "#999999"), "edges": ("open edges", _ORANGE)}
    reach = (lengths[[*kinds]] / lengths[[*kinds]].sum().clip(lower=1)).cumsum()
    reach["tokens"] = lengths["length"] + 1
    lines = [curve(reach, "tokens", kind, name=name, colour=c) for kind, (name, c) in kinds.items()]
    ticks = [2**power for power in range(0, int(np.log2(max(2, len(lengths)))) + 1)]
    x = Axis(label="Edge length (tokens back, + 1)", scale="log", ticks=ticks, names=[*map(str, ticks)])
    y = Axis(label="Part of edges up to this length", limits=(0, 1.02))
    return Chart(
        title=title or "Which edges are open",
        heading=title or "",
        panels=[
            head_panel(shares, scale, of="share", most=(10, 10)),
            Panel(marks=lines, x=x, y=y, legend="upper left"),
        ],
        size=(9.2, 4.2),
        columns=2,
        widths=(1, 1.1),
        height=340,
    )
