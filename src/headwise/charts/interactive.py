"""Panels that several studies draw: maps of heads, curves with bands, bars with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.section import Panel

BLUE_HELPS = [[0.0, "#b2182b"], [0.25, "#f4a582"], [0.5, "#f7f7f7"], [0.75, "#92c5de"], [1.0, "#2166ac"]]
"""Diverging, safe for colour-blind readers: red hinders, blue helps, as in the static figures."""


def head_map(
    rows: pd.DataFrame, *, title: str, top: float, signed: bool, unit: str, model: str, bar: bool = False
) -> Panel:
    """A layer × head map of one score; hovering shows the head, its score and its interval."""
    shape = (int(rows["layer"].max()) + 1, int(rows["head"].max()) + 1)
    at = (rows["layer"].to_numpy(), rows["head"].to_numpy())
    z = np.full(shape, np.nan)
    z[at] = rows["score"]
    said = np.full((*shape, 3), np.nan)
    # Plotly writes 0 for a bound that is not there, so a map without intervals does not speak of them.
    bounded = {"lo", "hi"} <= set(rows) and bool(rows[["lo", "hi"]].notna().any(axis=None))
    between = " [%{customdata[0]:.4~g}, %{customdata[1]:.4~g}]" if bounded else ""
    for number, name in enumerate(("lo", "hi", "n")):
        if name in rows:
            said[(*at, number)] = rows[name].to_numpy(dtype=float)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": rounded(z),
        "customdata": [[rounded(cell) for cell in line] for line in said],
        "colorscale": BLUE_HELPS if signed else "Viridis",
        "zmin": -top if signed else 0,
        "zmax": top,
        "hovertemplate": f"<b>L%{{y}}H%{{x}}</b><br>%{{z:.4~g}}{between}<br>n = %{{customdata[2]}}<extra></extra>",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
        "showscale": bar,
    }
    if bar:
        trace["colorbar"] = colour_bar(unit)
    axis = {"zeroline": False, "showgrid": False, "ticks": ""}
    return Panel(
        title=title,
        traces=[trace],
        x={"title": "Head", **axis},
        y={"title": "Layer", "autorange": "reversed", **axis},
        model=model,
        map=True,
    )


def matrix(
    square: pd.DataFrame, *, unit: str, hover: str, low: float, signed: bool = False, bar: bool = True
) -> dict[str, Any]:
    """A map with named rows and columns, from `low` to 1; `hover` is what pointing at a cell says."""
    return {
        "type": "heatmap",
        "z": rounded(square.to_numpy(), 3),
        "x": list(square.columns),
        "y": list(square.index),
        "colorscale": BLUE_HELPS if signed else "Viridis",
        "zmin": low,
        "zmax": 1,
        "showscale": bar,
        "colorbar": colour_bar(unit),
        "hovertemplate": f"{hover}<extra></extra>",
    }


def colour_bar(unit: str) -> dict[str, Any]:
    """The bar of a map, its unit above it: beside it, Plotly writes it over the numbers."""
    return {"title": {"text": unit, "side": "top", "font": {"size": 11}}, "thickness": 12, "outlinewidth": 0}


def curve(
    rows: pd.DataFrame,
    *,
    name: str,
    colour: str,
    x: str = "k",
    said: str | None = None,
    dash: str = "solid",
    first: bool = True,
    markers: bool = False,
    second: bool = False,
) -> list[dict[str, Any]]:
    """A line with its band, from columns `x`, `value`, `lo`, `hi`.

    said: the column that hovering shows instead of the place on the axis. first: the line that the legend shows.
    """
    rows = rows.sort_values(x)
    xs = rounded(rows[x])
    line: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "x": xs,
        "y": rounded(rows["value"]),
        "name": name,
        "legendgroup": name,
        "showlegend": first,
        "line": {"color": colour, "dash": dash, "width": 2},
        "customdata": [
            list(row) for row in zip(*(rounded(rows[name]) for name in ("lo", "hi", said or x)), strict=True)
        ],
        "hovertemplate": "%{fullData.name}, %{customdata[2]}: %{y:.4~g} [%{customdata[0]:.4~g}, "
        "%{customdata[1]:.4~g}]<extra></extra>",
    }
    band: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "x": [*xs, *xs[::-1]],
        "y": [*rounded(rows["hi"]), *rounded(rows["lo"])[::-1]],
        "fill": "toself",
        "fillcolor": translucent(colour, 0.16),
        "line": {"width": 0},
        "legendgroup": name,
        "showlegend": False,
        "hoverinfo": "skip",
    }
    traces = [band, line] if rows[["lo", "hi"]].notna().all(axis=None) else [line]
    return [trace | {"second": True} for trace in traces] if second else traces


def bars(
    rows: pd.DataFrame, *, name: str, colour: str, x: str, first: bool = True, scale: float = 1.0
) -> dict[str, Any]:
    """Bars with intervals, from columns `x`, `value`, `lo`, `hi`."""
    value, lo, hi = (rows[column].to_numpy(dtype=float) * scale for column in ("value", "lo", "hi"))
    return {
        "type": "bar",
        "x": [str(label) for label in rows[x]],
        "y": rounded(value),
        "name": name,
        "legendgroup": name,
        "showlegend": first,
        "marker": {"color": colour},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": rounded(hi - value),
            "arrayminus": rounded(value - lo),
            "color": "#868b94",  # seen on a light page, on a dark one, and on the bars
            "thickness": 1.8,
            "width": 4,
        },
        "customdata": [[low, high] for low, high in zip(rounded(lo), rounded(hi), strict=True)],
        "hovertemplate": "%{fullData.name}, %{x}: %{y:.3~g} [%{customdata[0]:.3~g}, %{customdata[1]:.3~g}]"
        "<extra></extra>",
    }


def rounded(values: Iterable[float] | np.ndarray | pd.Series, digits: int = 5) -> list[Any]:
    """Numbers short enough for a page, lists as deep as the array; what is not finite becomes null."""
    array = np.asarray(values, dtype=float)
    if array.ndim > 1:
        return [rounded(line, digits) for line in array]
    return [_plain(float(f"{value:.{digits}g}")) if np.isfinite(value) else None for value in array]


def _plain(value: Any) -> Any:
    number = float(value)
    return int(number) if number.is_integer() else number


def plus(number: float, digits: int = 1) -> str:
    """A change as a sentence has it, with its sign: +0.3, −1.2."""
    return f"{number:+.{digits}f}".replace("-", "−")


def translucent(colour: str, opacity: float) -> str:
    """A hex colour as rgba."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def joined(words: Sequence[str]) -> str:
    """Words as a sentence lists them: a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
