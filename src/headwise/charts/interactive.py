"""A chart on the page: one definition as Plotly's JSON. The page lays panels out for the width it has.

The page has one scale per panel: a chart with two in one panel has separate panels for the page (`Chart.page`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import INK, Axis, Bars, Cells, Chart, Label, Line, Panel, Rule, Scale, Span

_INTERVAL = "[%{customdata[0]:.4~g}, %{customdata[1]:.4~g}]"
_ERROR = {"type": "data", "symmetric": False, "thickness": 1.8, "width": 4}
_ERROR_COLOUR = "#868b94"
"""Seen on a light page, on a dark one, and on bars."""
_POINT = 1.6
"""Pixels of the page for a point of the paper."""


def page_chart(chart: Chart) -> dict[str, Any]:
    """The chart as the page's script reads it."""
    shown = chart.page_panels
    in_legend: set[tuple[int, str]] = set()
    bars: list[Scale] = []
    panels = [_panel(panel, number, in_legend, bars) for number, panel in enumerate(shown)]
    name_length = max([_longest_name(panel.y) for panel in shown], default=0)
    label_breaks = max([panel.y.label.count("\n") for panel in shown], default=0)
    turned_length = max([_longest_name(panel.x) for panel in shown if panel.x.angle], default=0)
    return {
        "title": chart.title,
        "square": any(isinstance(mark, Cells) and mark.square for panel in shown for mark in panel.marks),
        "panels": panels,
        "columns": chart.page_columns or chart.columns,
        "min_panel_width": chart.min_panel_width,
        "height": chart.height,
        "gap": int(min(190, max(62, 34 + 6.3 * name_length))) + 14 * label_breaks,
        "below": int(min(150, max(52, 46 + 5.6 * turned_length))),
        "bars": len(bars),
    }


def _longest_name(axis: Axis) -> int:
    """Characters of the longest line among the names at the ticks."""
    return max((len(line) for name in axis.names or () for line in name.split("\n")), default=0)


def _panel(panel: Panel, number: int, in_legend: set[tuple[int, str]], bars: list[Scale]) -> dict[str, Any]:
    """A panel; `in_legend` and `bars` collect the legend entries and colour bars that the chart has so far."""
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
            marks.append(_DRAW[type(mark)](mark, panel))
    if not traces:  # Plotly has no axes where nothing is drawn on them
        traces.append({"type": "scatter", "x": [None], "y": [None], "hoverinfo": "skip", "showlegend": False})
    for trace in traces:
        if name := trace.get("name"):
            # A panel's own legend has its own entries; the chart's legend has each name once.
            corner = "" if trace.pop("common", False) else panel.legend
            entry = (number if corner else -1, name)
            trace |= {"showlegend": entry not in in_legend, "legendgroup": name}
            trace |= {"corner": corner} if corner else {}
            in_legend.add(entry)
    plain = panel.bare or any(isinstance(mark, Cells) for mark in panel.marks)
    still: dict[str, Any] = {"showgrid": False, "zeroline": False, "ticks": ""} if plain else {}
    still |= {"showline": False} if panel.bare else {}
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
    """Plotly has no square-root axis: positions are square roots, the names at the ticks the numbers themselves."""
    settings: dict[str, Any] = {"title": safe(axis.label)}
    if axis.scale == "log":
        settings["type"] = "log"
    if axis.limits is not None:
        low, high = _position(np.array(axis.limits), axis)
        settings["range"] = [low, high] if axis.scale != "log" else json_numbers(np.log10([low, high]))
    if axis.ticks is None and axis.scale == "log" and axis.limits is not None:
        # Plotly writes 2 and 5 for 20 and 50.
        axis = replace(axis, ticks=_log_ticks(*axis.limits))
    if axis.ticks is not None:
        names = axis.names if axis.names is not None else [f"{tick:g}" for tick in axis.ticks]
        settings |= {"tickvals": _position(axis.ticks, axis), "ticktext": [safe(name) for name in names]}
    if axis.angle:
        settings["tickangle"] = -axis.angle
    if axis.colour != INK:
        settings["color"] = axis.colour
    return settings


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each power of ten, as in the figures.

    >>> _log_ticks(1, 40)
    [1.0, 2.0, 5.0, 10.0, 20.0]
    """
    low, high = min(low, high), max(low, high)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high]


def _position(values: Any, axis: Axis) -> list[Any]:
    """Coordinates on Plotly's linear axis: on a square-root axis, the roots."""
    numbers = np.asarray(values, dtype=float)
    return json_numbers(np.sqrt(np.maximum(numbers, 0)) if axis.scale == "root" else numbers, 6)


# ---- traces ----------------------------------------------------------------------------------------------


def _cells(mark: Cells, panel: Panel, bars: list[Scale]) -> dict[str, Any]:
    values, scale = np.asarray(mark.values, dtype=float), mark.scale
    last = len(scale.colours) - 1
    trace: dict[str, Any] = {"type": "heatmap", "z": json_numbers(values), "hoverongaps": False} | _examples(
        mark
    )
    trace |= {"zmin": scale.low, "zmax": scale.high, "showscale": scale not in bars}
    for name, colours in (("colorscale", scale.colours), ("dark", scale.dark_colours)):
        trace[name] = [[round(i / last, 4), colour] for i, colour in enumerate(colours)]
    if scale not in bars:
        trace["colorbar"] = _colour_bar(scale, len(bars))
        bars.append(scale)
    if mark.heads:
        details = mark.details if mark.details is not None else np.full((*values.shape, 4), np.nan)
        # Plotly writes 0 for a bound that is missing, so the hover text of a map without intervals has none.
        between = f" {_INTERVAL}" if _any(details[..., :2]) else ""
        n = "<br>n = %{customdata[2]}" if _any(details[..., 2]) else ""
        n += "<br>q = %{customdata[3]:.2~g}" if _any(details[..., 3]) else ""
        gap = int(values.shape[1] <= 16)  # among many heads gaps would be all that is seen
        trace |= {"customdata": json_numbers(details), "xgap": gap, "ygap": gap}
        trace["hovertemplate"] = f"<b>L%{{y}}H%{{x}}</b><br>%{{z:.4~g}}{between}{n}<extra></extra>"
    else:
        rows, columns = ([safe(name) for name in axis.names or ()] for axis in (panel.y, panel.x))
        if (len(rows), len(columns)) == values.shape:
            trace["customdata"] = [[[row, column] for column in columns] for row in rows]
        words = {"row": "%{customdata[0]}", "column": "%{customdata[1]}", "value": "%{z:.4~g}"}
        trace["hovertemplate"] = mark.hover.format_map(words) + "<extra></extra>"
    if mark.words is not None:
        text = [[safe(word) for word in row] for row in mark.words]
        for row, column in np.argwhere(mark.bold) if mark.bold is not None else ():
            text[row][column] = f"<b>{text[row][column]}</b>"
        trace |= {"text": text, "texttemplate": "%{text}"}
    return trace


def _line(mark: Line, panel: Panel) -> list[dict[str, Any]]:
    xs, ys = _position(mark.x, panel.x), json_numbers(mark.y)
    joined = mark.dash != "none" and len(xs) > 1
    shapes = [shape for shape, drawn in (("lines", joined), ("markers", mark.marker)) if drawn]
    trace: dict[str, Any] = {"type": "scatter", "mode": "+".join(shapes) or "markers", "x": xs, "y": ys}
    dash = mark.dash.replace("none", "solid")
    trace["line"] = {"color": mark.colour, "dash": dash, "width": 1.3 * mark.width}
    if mark.marker:
        symbol = mark.marker + ("-open" if mark.hollow else "")
        trace["marker"] = {"symbol": symbol, "size": max(5.0, _POINT * mark.size), "color": mark.colour}
        if mark.edge:
            trace["marker"]["line"] = {"color": mark.edge, "width": 1}
    bounded = mark.lo is not None and mark.hi is not None and _any(mark.lo)
    lo, hi = (
        (json_numbers(mark.lo), json_numbers(mark.hi)) if bounded else ([None] * len(xs), [None] * len(xs))
    )
    if mark.name:
        hover_x = json_numbers(mark.x if mark.hover_x is None else mark.hover_x)
        trace |= {"name": safe(mark.name), "common": mark.common, "hovertemplate": _hover(mark, bounded)}
        trace["customdata"] = [list(row) for row in zip(lo, hi, hover_x, strict=True)]
        trace |= _examples(mark, [str(x) for x in hover_x])
    else:
        trace |= {"hoverinfo": "skip", "showlegend": False}
    if mark.words is not None:
        trace["text"] = [safe(word) for word in mark.words]
    if mark.hover is not None:
        trace.pop("hovertemplate", None)
        trace |= {"hoverinfo": "text", "hovertext": [safe(words) for words in mark.hover]}
    if mark.heads is not None:
        trace["ids"] = list(mark.heads)
    if mark.filled:
        trace |= {"fill": "tozeroy", "fillcolor": translucent(mark.colour, mark.band)}
    if bounded and mark.band and joined:
        return [_band(xs, lo, hi, mark), trace]
    if bounded and mark.band:
        trace["error_y"] = _error(mark, mark.y) | {"color": mark.colour}
    return [trace]


def _hover(mark: Line, bounded: bool) -> str:
    prefix = f"{safe(mark.hover_prefix)}, " if mark.hover_prefix else ""
    if mark.words is not None:
        return f"{prefix}%{{fullData.name}}, token %{{x}} “%{{text}}”: %{{y:.3~g}}<extra></extra>"
    between = f" {_INTERVAL}" if bounded else ""
    return f"{prefix}%{{fullData.name}}, %{{customdata[2]}}: %{{y:.4~g}}{between}<extra></extra>"


def _band(xs: list[Any], lo: list[Any], hi: list[Any], mark: Line) -> dict[str, Any]:
    points = [(x, low, high) for x, low, high in zip(xs, lo, hi, strict=True) if None not in (low, high)]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x for x, _, _ in (*points, *points[::-1])],
        "y": [high for _, _, high in points] + [low for _, low, _ in points[::-1]],
        "fill": "toself",
        "fillcolor": translucent(mark.colour, 0.8 * mark.band),
        "line": {"width": 0},
        "legendgroup": safe(mark.name),
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _bars(mark: Bars) -> dict[str, Any]:
    along, across, orientation = ("x", "y", "h") if mark.horizontal else ("y", "x", "v")
    colours = mark.colours if isinstance(mark.colours, str) else list(mark.colours)
    trace: dict[str, Any] = {"type": "bar", "orientation": orientation, "width": mark.thickness}
    trace |= {along: json_numbers(mark.values), across: json_numbers(mark.at)}
    trace |= {"marker": {"color": colours}, "opacity": mark.opacity}
    trace |= {"name": safe(mark.name)} if mark.name else {"showlegend": False}
    if mark.base is not None:
        trace["base"] = json_numbers(mark.base)
    if mark.lo is not None and mark.hi is not None and _any(mark.lo):
        trace[f"error_{along}"] = _error(mark, mark.values) | {"color": _ERROR_COLOUR}
        trace["customdata"] = [
            list(pair) for pair in zip(json_numbers(mark.lo), json_numbers(mark.hi), strict=True)
        ]
    if mark.words is not None:
        trace |= {"text": [safe(word) for word in mark.words], "textposition": "inside", "textangle": 0}
        trace |= {"insidetextanchor": "middle", "insidetextfont": {"color": "#ffffff"}}
    if mark.hover is not None:
        name = f"{safe(mark.name)}, " if mark.name else ""
        trace["hovertext"] = [name + safe(words) for words in mark.hover]
    trace["hoverinfo"] = "text" if mark.hover is not None else "skip"
    return trace | _examples(mark, mark.keys)


def _examples(mark: Cells | Line | Bars, keys: Sequence[str] | None = None) -> dict[str, Any]:
    """Whose examples a click shows; `ids` name the points. A cell of a map is the head of its row and column."""
    if not mark.examples:
        return {}
    return {"examples": dict(mark.examples)} | ({} if keys is None else {"ids": list(keys)})


def _error(mark: Line | Bars, values: Any) -> dict[str, Any]:
    middle, low, high = (np.asarray(numbers, dtype=float) for numbers in (values, mark.lo, mark.hi))
    return _ERROR | {"array": json_numbers(high - middle), "arrayminus": json_numbers(middle - low)}


def _colour_bar(scale: Scale, number: int) -> dict[str, Any]:
    """The unit is above the bar: beside it, Plotly writes it over the numbers. The script stacks several bars."""
    lines = wrap(scale.label, 20, break_long_words=False)
    # An empty line between it and the top number. Plotly gives a line of spaces no height, this sign it does.
    title = "\n".join([*lines, "\N{BRAILLE PATTERN BLANK}"])
    bar: dict[str, Any] = {"title": {"text": safe(title), "side": "top", "font": {"size": 11}}}
    bar |= {"thickness": 12, "outlinewidth": 0, "number": number}
    if scale.ticks:
        names = scale.names or [f"{tick:g}" for tick in scale.ticks]
        bar |= {"tickvals": list(scale.ticks), "ticktext": [safe(name) for name in names]}
    return bar


# ---- shapes and words --------------------------------------------------------------------------------------


def _rule(mark: Rule, panel: Panel) -> dict[str, Any]:
    at, along, across = (
        (mark.at, "y", "x") if mark.of == "y" else (_position([mark.at], panel.x)[0], "x", "y")
    )
    ends = {f"{along}0": at, f"{along}1": at, f"{across}0": 0, f"{across}1": 1, f"{across}ref": "domain"}
    line = {"color": mark.colour, "width": mark.width}
    return {"kind": "shape", "type": "line", **ends, "line": line, "layer": "below"}


def _span(mark: Span, panel: Panel) -> dict[str, Any]:
    low, high = _position([mark.low, mark.high], panel.x)
    ends = {"x0": low, "x1": high, "y0": 0, "y1": 1, "yref": "domain"}
    look = {"fillcolor": "rgba(128,128,128,0.18)", "line": {"width": 0}, "layer": "below"}
    return {"kind": "shape", "type": "rect", **ends, **look}


def _label(mark: Label, panel: Panel) -> dict[str, Any]:
    right, up = (_POINT * points for points in mark.shift)
    return {
        "kind": "text",
        "text": safe(mark.text),
        "x": _position([mark.x], panel.x)[0],
        "y": mark.y,
        "showarrow": False,
        "align": mark.across,
        "xanchor": mark.across,
        "yanchor": mark.up,
        "xshift": right,
        "yshift": up,
        "font": {"size": 1.4 * mark.size} | ({"color": mark.colour} if mark.colour != INK else {}),
    }


_DRAW: dict[type, Any] = {Rule: _rule, Span: _span, Label: _label}


# ---- numbers and words --------------------------------------------------------------------------------------


def safe(text: object) -> str:
    """Text escaped for Plotly's labels, which interpret some HTML."""
    return escape(str(text), quote=False).replace("\n", "<br>")


def json_numbers(values: Iterable[float] | np.ndarray | pd.Series | None, digits: int = 5) -> list[Any]:
    """Rounded numbers as lists nested like the array; a number that is not finite becomes null."""
    array = np.asarray(values, dtype=float)
    if array.ndim > 1:
        return [json_numbers(line, digits) for line in array]
    numbers = [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in array]
    return [int(number) if number is not None and number.is_integer() else number for number in numbers]


def _any(values: Any) -> bool:
    """Whether there is a number among them."""
    return bool(np.isfinite(np.asarray(values, dtype=float)).any())


def translucent(colour: str, opacity: float) -> str:
    """A hex colour as rgba."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:.3g})"
