"""How far scores agree: three matrices, and each score's agreement with itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Cells, Chart, Line, Panel, Scale

_CORRELATION = Scale("RdBu", -1, 1, "Rank correlation")
_OVERLAP = Scale("viridis", 0, 1, "Jaccard index")


def agreement_chart(
    signed: pd.DataFrame,
    absolute: pd.DataFrame,
    jaccard: pd.DataFrame,
    stability: pd.DataFrame,
    *,
    k: int,
    title: str | None = None,
) -> Chart:
    """Rank correlation (signed, absolute), Jaccard of the top k, and stability.

    Correlations share a diverging scale from −1 to 1, the overlap runs from 0 to 1; every cell carries its
    number, and a cell without one has no meaning (a signed beside an unsigned score).
    """
    side = 1.6 + 0.52 * len(signed)
    label = 0.075 * max(len(str(name)) for name in signed.index)
    return Chart(
        title=title or "How far scores agree",
        heading=title or "",
        panels=[
            _matrix(signed, "Rank correlation, signed", _CORRELATION),
            _matrix(absolute, "Rank correlation, absolute", _CORRELATION),
            _matrix(jaccard, f"Jaccard of the top {k}", _OVERLAP),
            _stability(stability, k),
        ],
        size=(3 * side + 2.6 + label, side + 0.7 + label),
        widths=(1, 1, 1, 0.8),
        legend="bottom",
        bar="bottom",
    )


def _matrix(table: pd.DataFrame, title: str, scale: Scale) -> Panel:
    values = table.to_numpy(dtype=float)
    words = np.array([[f"{value:.2f}" if np.isfinite(value) else "" for value in row] for row in values])
    return Panel(
        title=title,
        marks=[Cells(values=values, scale=scale, words=words)],
        x=Axis(
            limits=(-0.5, len(table) - 0.5),
            ticks=range(len(table)),
            names=[*map(str, table.columns)],
            angle=45,
        ),
        y=_names(table),
    )


def _stability(table: pd.DataFrame, k: int) -> Panel:
    where = np.arange(len(table))
    marks = [
        Line(
            x=table["resamples"],
            y=where,
            name="other examples",
            colour="#35608d",
            dash="none",
            marker="circle",
            size=6,
        )
    ]
    if table["seeds"].notna().any():
        look: dict[str, Any] = {"dash": "none", "marker": "diamond", "size": 6, "hollow": True}
        marks.append(Line(x=table["seeds"], y=where, name="other seeds", colour="#d95f02", **look))
    x = Axis(label="mean Jaccard", limits=(0, 1.03))
    return Panel(title=f"Stability of the top {k}", marks=marks, x=x, y=_names(table))


def _names(table: pd.DataFrame) -> Axis:
    return Axis(limits=(len(table) - 0.5, -0.5), ticks=range(len(table)), names=[*map(str, table.index)])
