"""A chart on the page: one definition as Plotly's JSON. The page lays panels out for the width it has.

The page has one scale per panel: a chart with two in one panel gives the page panels of their own (`Chart.page`).
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import (
    INK,
    PALETTES,
    Axis,
    Bars,
    Cells,
    Chart,
    Line,
    Panel,
    Rule,
    Scale,
    Span,
    Text,
)

_INTERVAL = "[%{customdata[0]:.4~g}, %{customdata[1]:.4~g}]"
_ERROR = {"type": "data", "symmetric": False, "thickness": 1.8, "width": 4}
_ERROR_COLOUR = "#868b94"
"""Seen on a light page, on a dark one, and on bars."""
_POINT = 1.6
"""Pixels of the page for a point of the paper."""


def page_chart(chart: Chart) -> dict[str, Any]:
    """The chart as the page's script reads it."""
    seen: set[tuple[str, str]] = set()
    bars: list[Scale] = []
    panels = [_panel(panel, number, seen, bars) for number, panel in enumerate(chart.page_panels)]
    long = max([len(_longest(panel.y)) for panel in chart.page_panels], default=0)
    more = max([panel.y.label.count("\n") for panel in chart.page_panels], default=0)
    deep = max([len(_longest(panel.x)) for panel in chart.page_panels if panel.x.angle], default=0)
    return {
        "title": chart.title,
        "panels": panels,
        "columns": chart.page_columns or chart.columns,
        "least": chart.least,
        "height": chart.height,
        "gap": int(min(190, max(62, 34 + 6.3 * long))) + 14 * more,
        "below": int(min(150, max(52, 46 + 5.6 * deep))),
        "bars": len(bars),
    }


def _longest(axis: Axis) -> str:
    return max((line for name in axis.names or () for line in name.split("\n")), key=len, default="")


def _panel(panel: Panel, number: int, seen: set[tuple[str, str]], bars: list[Scale]) -> dict[str, Any]:
    traces: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    for mark in panel.marks:
        if isinstance(mark, Cells):
            traces.append(_cells(mark, panel, bars))
        elif isinstance(mark, Line):
            traces += _line(mark, panel)
        elif isinstance(mark, Bars):
            traces.append(_bars(mark))
        else:
            marks += _DRAW[type(mark)](mark, panel)
    if not traces:  # Plotly has no axes where nothing is drawn on them
        traces.append({"type": "scatter", "x": [None], "y": [None], "hoverinfo": "skip", "showlegend": False})
    for trace in traces:
        name = trace.get("name")
        if name is None:
            continue
        # A panel's own legend has its own entries; the chart's has each name once.
        inside = panel.legend and not trace.pop("common", False)
        trace.pop("common", None)
        legend = f"panel-{number}" if inside else ""
        trace |= {"showlegend": (legend, name) not in seen, "legendgroup": name}
        trace |= {"corner": panel.legend} if inside else {}
        seen.add((legend, name))
    plain = panel.bare or any(isinstance(mark, Cells) for mark in panel.marks)
    still = {"showgrid": False, "zeroline": False, "ticks": ""} if plain else {}
    return {
        "title": safe(panel.heading + (f" ({panel.note})" if panel.note else "")),
        "traces": traces,
        "x": _axis(panel.x) | still,
        "y": _axis(panel.y) | still,
        "marks": marks,
        "model": panel.model,
        "map": any(isinstance(mark, Cells) and mark.heads for mark in panel.marks),
        "orders": {name: list(order) for name, order in panel.orders.items()},
        "owners": dict(panel.owners),
        "root": panel.x.scale == "root",
        "attention": panel.attention,
    }


def _axis(axis: Axis) -> dict[str, Any]:
    """Plotly has no root axis: what is drawn are the roots, what is written the numbers."""
    made: dict[str, Any] = {"title": safe(axis.label)}
    if axis.scale == "log":
        made["type"] = "log"
    if axis.limits is not None:
        low, high = _place(np.array(axis.limits), axis)
        made["range"] = [low, high] if axis.scale != "log" else rounded(np.log10([low, high]))
    if axis.ticks is not None:
        names = axis.names if axis.names is not None else [f"{tick:g}" for tick in axis.ticks]
        made |= {"tickvals": _place(axis.ticks, axis), "ticktext": [safe(name) for name in names]}
    if axis.angle:
        made["tickangle"] = -axis.angle
    if axis.colour != INK:
        made["color"] = axis.colour
    return made


def _place(values: Any, axis: Axis) -> list[Any]:
    numbers = np.asarray(values, dtype=float)
    return rounded(np.sqrt(np.maximum(numbers, 0)) if axis.scale == "root" else numbers, 6)


# ---- traces ----------------------------------------------------------------------------------------------


def _cells(mark: Cells, panel: Panel, bars: list[Scale]) -> dict[str, Any]:
    values = np.asarray(mark.values, dtype=float)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": rounded(values),
        "colorscale": _stops(mark.scale.palette),
        "zmin": mark.scale.low,
        "zmax": mark.scale.high,
        "hoverongaps": False,
        "showscale": mark.scale not in bars,
    }
    if mark.scale not in bars:
        trace["colorbar"] = _colour_bar(mark.scale, len(bars))
        bars.append(mark.scale)
    if mark.heads:
        details = mark.details if mark.details is not None else np.full((*values.shape, 3), np.nan)
        # Plotly writes 0 for a bound that is not there, so a map without intervals does not speak of them.
        between = f" {_INTERVAL}" if np.isfinite(details[..., :2]).any() else ""
        n = "<br>n = %{customdata[2]}" if np.isfinite(details[..., 2]).any() else ""
        gap = int(values.shape[1] <= 16)  # among many heads gaps would be all that is seen
        trace |= {"customdata": rounded(details), "xgap": gap, "ygap": gap}
        trace["hovertemplate"] = f"<b>L%{{y}}H%{{x}}</b><br>%{{z:.4~g}}{between}{n}<extra></extra>"
    else:
        rows, columns = ([safe(name) for name in axis.names or ()] for axis in (panel.y, panel.x))
        if len(rows) == values.shape[0] and len(columns) == values.shape[1]:
            trace["customdata"] = [[[row, column] for column in columns] for row in rows]
        words = {"row": "%{customdata[0]}", "column": "%{customdata[1]}", "value": "%{z:.4~g}"}
        trace["hovertemplate"] = mark.hover.format_map(words) + "<extra></extra>"
    if mark.words is not None:
        bold = mark.bold if mark.bold is not None else np.zeros(mark.words.shape, dtype=bool)
        written = np.vectorize(
            lambda word, strong: f"<b>{safe(word)}</b>" if strong else safe(word), otypes="O"
        )
        trace |= {"text": written(mark.words, bold).tolist(), "texttemplate": "%{text}"}
    return trace


def _line(mark: Line, panel: Panel) -> list[dict[str, Any]]:
    xs, ys = _place(mark.x, panel.x), rounded(mark.y)
    said = rounded(mark.x if mark.said is None else mark.said)
    joined = mark.dash != "none" and len(xs) > 1
    shapes = [word for word, there in (("lines", joined), ("markers", mark.marker)) if there]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "+".join(shapes) or "markers",
        "x": xs,
        "y": ys,
        "line": {"color": mark.colour, "dash": mark.dash.replace("none", "solid"), "width": 1.3 * mark.width},
    }
    if mark.marker:
        size = max(4.0, _POINT * mark.size)
        symbol = mark.marker + ("-open" if mark.hollow else "")
        trace["marker"] = {"symbol": symbol, "size": size, "color": mark.colour}
        if mark.edge:
            trace["marker"]["line"] = {"color": mark.edge, "width": 0.6}
    bounded = mark.lo is not None and mark.hi is not None and _any(mark.lo)
    lo, hi = (rounded(mark.lo), rounded(mark.hi)) if bounded else ([None] * len(xs), [None] * len(xs))
    if mark.name:
        trace |= {"name": safe(mark.name), "common": mark.common}
        trace["customdata"] = [list(row) for row in zip(lo, hi, said, strict=True)]
        trace["hovertemplate"] = _hover(mark, bounded)
    else:
        trace |= {"hoverinfo": "skip", "showlegend": False}
    if mark.words is not None:
        trace["text"] = [safe(word) for word in mark.words]
    if mark.filled:
        trace |= {"fill": "tozeroy", "fillcolor": translucent(mark.colour, mark.band)}
    traces = [trace]
    if bounded and mark.band and joined:
        traces.insert(0, _band(trace, lo, hi, mark))
    elif bounded and mark.band:
        trace["error_y"] = _error(mark.y, mark.lo, mark.hi) | {"color": mark.colour}
    return traces


def _hover(mark: Line, bounded: bool) -> str:
    about = f"{safe(mark.about)}, " if mark.about else ""
    between = f" {_INTERVAL}" if bounded else ""
    if mark.words is not None:
        return f"{about}%{{fullData.name}}, token %{{x}} “%{{text}}”: %{{y:.3~g}}<extra></extra>"
    return f"{about}%{{fullData.name}}, %{{customdata[2]}}: %{{y:.4~g}}{between}<extra></extra>"


def _band(trace: dict[str, Any], lo: list[Any], hi: list[Any], mark: Line) -> dict[str, Any]:
    there = [place for place, (low, high) in enumerate(zip(lo, hi, strict=True)) if None not in (low, high)]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [trace["x"][place] for place in (*there, *there[::-1])],
        "y": [hi[place] for place in there] + [lo[place] for place in there[::-1]],
        "fill": "toself",
        "fillcolor": translucent(mark.colour, 0.8 * mark.band),
        "line": {"width": 0},
        "legendgroup": safe(mark.name),
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _bars(mark: Bars) -> dict[str, Any]:
    along, across = ("x", "y") if mark.lying else ("y", "x")
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h" if mark.lying else "v",
        along: rounded(mark.values),
        across: rounded(mark.at),
        "width": mark.thickness,
        "marker": {"color": mark.colours if isinstance(mark.colours, str) else list(mark.colours)},
        "opacity": mark.opacity,
    }
    if mark.base is not None:
        trace["base"] = rounded(mark.base)
    if mark.name:
        trace["name"] = safe(mark.name)
    else:
        trace["showlegend"] = False
    if mark.lo is not None and mark.hi is not None and _any(mark.lo):
        trace[f"error_{along}"] = _error(mark.values, mark.lo, mark.hi) | {"color": _ERROR_COLOUR}
        trace["customdata"] = [list(pair) for pair in zip(rounded(mark.lo), rounded(mark.hi), strict=True)]
    if mark.words is not None:
        trace |= {"text": [safe(word) for word in mark.words], "textposition": "inside", "textangle": 0}
        trace["insidetextanchor"] = "middle"
        trace["insidetextfont"] = {"color": "#ffffff"}
    name = f"{safe(mark.name)}, " if mark.name else ""
    if mark.hover is not None:
        trace["hovertext"] = [name + safe(words) for words in mark.hover]
    trace["hoverinfo"] = "text" if mark.hover is not None else "skip"
    return trace


def _error(values: Any, lo: Any, hi: Any) -> dict[str, Any]:
    middle, low, high = (np.asarray(numbers, dtype=float) for numbers in (values, lo, hi))
    return _ERROR | {"array": rounded(high - middle), "arrayminus": rounded(middle - low)}


def _colour_bar(scale: Scale, number: int) -> dict[str, Any]:
    """Its unit above it: beside it, Plotly writes it over the numbers. The script stacks several."""
    title = "\n".join(wrap(scale.label, 20, break_long_words=False))
    bar: dict[str, Any] = {"title": {"text": safe(title), "side": "top", "font": {"size": 11}}}
    bar |= {"thickness": 12, "outlinewidth": 0, "number": number}
    if scale.ticks:
        names = scale.names or [f"{tick:g}" for tick in scale.ticks]
        bar |= {"tickvals": list(scale.ticks), "ticktext": [safe(name) for name in names]}
    return bar


def _stops(palette: str) -> list[list[Any]]:
    colours = PALETTES[palette].split()
    return [[round(place / (len(colours) - 1), 4), colour] for place, colour in enumerate(colours)]


# ---- shapes and words --------------------------------------------------------------------------------------


def _rule(mark: Rule, panel: Panel) -> list[dict[str, Any]]:
    at, along = (mark.at, "y") if mark.of == "y" else (_place([mark.at], panel.x)[0], "x")
    across = "x" if along == "y" else "y"
    ends = {f"{along}0": at, f"{along}1": at, f"{across}0": 0, f"{across}1": 1, f"{across}ref": "domain"}
    line = {"color": mark.colour, "width": mark.width}
    return [{"kind": "shape", "type": "line", **ends, "line": line, "layer": "below"}]


def _span(mark: Span, panel: Panel) -> list[dict[str, Any]]:
    low, high = _place([mark.low, mark.high], panel.x)
    look = {"fillcolor": "rgba(128,128,128,0.18)", "line": {"width": 0}, "layer": "below"}
    return [
        {"kind": "shape", "type": "rect", "yref": "domain", "x0": low, "x1": high, "y0": 0, "y1": 1, **look}
    ]


def _text(mark: Text, panel: Panel) -> list[dict[str, Any]]:
    made: dict[str, Any] = {
        "kind": "text",
        "text": safe(mark.text),
        "x": _place([mark.x], panel.x)[0],
        "y": mark.y,
        "showarrow": False,
        "align": mark.across,
        "xanchor": mark.across,
        "yanchor": mark.up,
        "xshift": _POINT * mark.shift[0],
        "yshift": _POINT * mark.shift[1],
        "font": {"size": 1.4 * mark.size} | ({"color": mark.colour} if mark.colour != INK else {}),
    }
    return [made]


_DRAW: dict[type, Any] = {Rule: _rule, Span: _span, Text: _text}


# ---- numbers and words --------------------------------------------------------------------------------------


def safe(text: object) -> str:
    """Plotly's labels are a small markup of their own, so words are escaped for it."""
    return escape(str(text), quote=False).replace("\n", "<br>")


def rounded(values: Iterable[float] | np.ndarray | pd.Series | None, digits: int = 5) -> list[Any]:
    """Numbers short enough for a page, lists as deep as the array; what is not finite becomes null."""
    array = np.asarray(values, dtype=float)
    if array.ndim > 1:
        return [rounded(line, digits) for line in array]
    return [_short(float(f"{value:.{digits}g}")) if np.isfinite(value) else None for value in array]


def _any(values: Any) -> bool:
    """Whether there is a number among them."""
    return bool(np.isfinite(np.asarray(values, dtype=float)).any())


def _short(number: float) -> float | int:
    return int(number) if number.is_integer() else number


def translucent(colour: str, opacity: float) -> str:
    """A hex colour as rgba."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:.3g})"
