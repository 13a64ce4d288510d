"""The course of a sparse-attention training, and what became of the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Chart, Line, Panel, Scale
from headwise.charts.heatmap import grid, head_panel

_BLUE, _ORANGE = "#1f77b4", "#ff7f0e"


def training_chart(
    curve: pd.DataFrame, checks: pd.DataFrame, *, bound: float, title: str | None = None
) -> Chart:
    """Share of open edges, excess over the dense model and multiplier against updates.

    Lines: noisy gates, a moving mean over updates. Dots: hard gates on held-back text, the model as it is used.
    """
    smooth = curve.rolling(min(50, max(1, len(curve) // 20)), min_periods=1).mean()
    noisy: dict[str, Any] = {"name": "noisy gates", "colour": _BLUE}
    hard: dict[str, Any] = {
        "name": "hard gates, held-back",
        "colour": _ORANGE,
        "dash": "none",
        "marker": "circle",
    }
    usual = smooth["excess"][len(curve) // 10 :].quantile(0.99)
    top = np.nanmax([usual, checks["excess"][checks["step"] > 0].max(), bound])
    limits = (min(0.0, smooth["excess"].min(), checks["excess"].min()), 1.15 * top)
    price = (0, 1.05 * float(smooth["multiplier"].max()) or 1)
    ends = (float(curve["step"].min()), float(curve["step"].max())) if len(curve) else (0.0, 1.0)
    x = Axis(label="Update")
    lines = {
        "share": [
            Line(x=curve["step"], y=100 * smooth["share"], **noisy),
            Line(x=checks["step"], y=100 * checks["share"], **hard),
        ],
        "excess": [
            Line(x=curve["step"], y=smooth["excess"], **noisy),
            Line(x=checks["step"], y=checks["excess"], **hard),
            Line(x=ends, y=[bound] * 2, name=f"bound {bound:g}", colour="#4d4d4d", dash="dash", width=1),
        ],
        "multiplier": [Line(x=curve["step"], y=smooth["multiplier"], **noisy)],
    }
    return Chart(
        title=title or "The course of the training",
        heading=title or "",
        panels=[
            Panel(marks=lines["share"], x=x, y=Axis(label="Open edges (%)", scale="log")),
            Panel(marks=lines["excess"], x=x, y=Axis(label="Nats per token above dense", limits=limits)),
            Panel(marks=lines["multiplier"], x=x, y=Axis(label="Multiplier λ", limits=price)),
        ],
        size=(9.6, 3.3),
        columns=3,
        legend="bottom",
        least=320,
    )


def edge_chart(edges: pd.DataFrame, lengths: pd.DataFrame, *, title: str | None = None) -> Chart:
    """Left, the part of causal edges open in every head; right, how far open edges reach beside all edges."""
    shares = edges.assign(share=100 * edges["open"])
    values = grid(shares, "share")
    top = float(np.nanquantile(values, 0.98)) or 1.0
    above = bool(np.nanmax(values) > top)
    scale = Scale("viridis", 0, top, f"Open edges (%){', some beyond' if above else ''}", above=above)
    axis_range = [
        Line(
            x=lengths["length"] + 1,
            y=(lengths[column] / max(1, lengths[column].sum())).cumsum(),
            name=label,
            colour=colour,
        )
        for column, label, colour in (
            ("possible", "all causal edges", "#999999"),
            ("edges", "open edges", _ORANGE),
        )
    ]
    ticks = [2**power for power in range(0, int(np.log2(max(2, len(lengths)))) + 1)]
    x = Axis(
        label="Edge length (tokens back, + 1)", scale="log", ticks=ticks, names=[str(tick) for tick in ticks]
    )
    return Chart(
        title=title or "Which edges are open",
        heading=title or "",
        panels=[
            head_panel(shares, scale, of="share", most=(10, 10)),
            Panel(
                marks=axis_range,
                x=x,
                y=Axis(label="Part of edges up to this length", limits=(0, 1.02)),
                legend="upper left",
            ),
        ],
        size=(9.2, 4.2),
        columns=2,
        widths=(1, 1.1),
        least=360,
        height=340,
    )
