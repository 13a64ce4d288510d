"""How far scores agree: three matrices, and each score's agreement with itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Chart, Line, Panel, Scale, names_axis
from headwise.charts.heatmap import matrix_panel

_CORRELATION = Scale("RdBu", -1, 1, "Rank correlation")
_OVERLAP = Scale("viridis", 0, 1, "Jaccard index")
_POINTS: dict[str, Any] = {"dash": "none", "size": 6}


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
            matrix_panel(signed, _CORRELATION, _two_digits, title="Rank correlation, signed"),
            matrix_panel(absolute, _CORRELATION, _two_digits, title="Rank correlation, absolute"),
            matrix_panel(jaccard, _OVERLAP, _two_digits, title=f"Jaccard of the top {k}"),
            _stability(stability, k),
        ],
        size=(3 * side + 2.6 + label, side + 0.7 + label),
        widths=(1, 1, 1, 0.8),
        legend="bottom",
        bar="bottom",
        min_panel_width=230,
    )


def _two_digits(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else ""


def _stability(table: pd.DataFrame, k: int) -> Panel:
    rows = np.arange(len(table))
    look: dict[str, Any] = {"name": "other examples", "colour": "#35608d", "marker": "circle"}
    marks = [Line(x=table["resamples"], y=rows, **look, **_POINTS)]
    if table["seeds"].notna().any():
        look = {"name": "other seeds", "colour": "#d95f02", "marker": "diamond", "hollow": True}
        marks.append(Line(x=table["seeds"], y=rows, **look, **_POINTS))
    x = Axis(label="mean Jaccard", limits=(0, 1.03))
    return Panel(title=f"Stability of the top {k}", marks=marks, x=x, y=names_axis(table.index, down=True))
