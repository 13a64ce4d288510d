"""A chart on paper: one definition as a matplotlib figure, for PNG, SVG and PDF."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np

from headwise.charts.chart import INK, PAPER, Axis, Bars, Cells, Chart, Label, Line, Panel, Rule, Scale, Span
from headwise.charts.style import drawable, house_style

_DASHES = {"solid": "-", "dash": (0, (4, 2)), "dot": ":", "dashdot": "-.", "none": "none"}
_MARKERS = {"": "", "circle": "o", "diamond": "D"}
_CENTRED = {"ha": "center", "va": "center", "fontsize": 7}
_OUTSIDE = {"top": "outside upper center", "right": "outside right center", "bottom": "outside lower center"}


def figure(chart: Chart) -> Any:
    """The chart as a matplotlib figure."""
    from matplotlib.figure import Figure

    grid = _grid(chart)
    with house_style():
        drawn = Figure(figsize=chart.size, layout="constrained")
        axes = drawn.subplot_mosaic(grid.tolist(), empty_sentinel=-1, width_ratios=chart.widths)
        twins: dict[int, Any] = {}
        for number, panel in enumerate(chart.panels):
            if panel is not None:
                twins[number] = _draw(axes[number], panel, _edges(grid, number, chart))
        _colour_bars(drawn, chart, axes)
        heading = chart.title if chart.heading is None else chart.heading
        taken = {"top": heading, "bottom": chart.note}  # matplotlib would write a legend over them
        _legends(drawn, chart, axes, twins, "right" if taken.get(chart.legend) else chart.legend)
        if chart.shared_axis_labels:
            _name_axes(drawn, [axes[number] for number in twins])
        if heading:
            drawn.suptitle(_plain(heading), fontsize=9 if "\n" in heading else 10)
        if chart.note:
            drawn.supxlabel(_plain(chart.note), fontsize=8)
    return drawn


def _grid(chart: Chart) -> np.ndarray:
    """The panels' numbers by row and column of the figure; -1 where there is no panel."""
    if chart.places is not None:
        return np.array(chart.places)
    columns = min(chart.columns, len(chart.panels))
    numbers = [number if panel is not None else -1 for number, panel in enumerate(chart.panels)]
    numbers += [-1] * (-len(numbers) % columns)
    return np.array(numbers).reshape(-1, columns)


@dataclass(frozen=True)
class _Edges:
    """Where a panel is in the grid, and the axes at the grid's edge, whose labels it need not repeat."""

    top: bool
    right: bool
    x: Axis | None
    """The axis of the lowest panel of its column, where that is another panel."""
    y: Axis | None
    """The axis of the first panel of its row, where that is another panel."""


def _edges(grid: np.ndarray, number: int, chart: Chart) -> _Edges:
    row, column = np.argwhere(grid == number)[0]
    in_column, in_row = (numbers[numbers >= 0] for numbers in (grid[:, column], grid[row]))
    lowest, leftmost = chart.panels[in_column[-1]], chart.panels[in_row[0]]
    return _Edges(
        top=bool(row == 0),
        right=bool(in_row[-1] == number),
        x=lowest.x if lowest and in_column[-1] != number else None,
        y=leftmost.y if leftmost and in_row[0] != number else None,
    )


def _draw(axes: Any, panel: Panel, edges: _Edges) -> Any:
    """Draw one panel; returns its second pair of axes, if it has one."""
    twin = axes.twinx() if panel.y2 else None
    for number, mark in enumerate(panel.marks):
        target = twin if isinstance(mark, Line) and mark.right else axes
        _DRAW[type(mark)](target, mark, 2 + 0.01 * number)
    if any(isinstance(mark, Cells) for mark in panel.marks) or panel.bare:
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    _set_axis(axes, "x", panel.x, edges.x)
    _set_axis(axes, "y", panel.y, edges.y)
    if twin is not None and panel.y2:
        _set_axis(twin, "y", panel.y2, None if edges.right else panel.y2)
        twin.spines["right"].set(visible=True, color=panel.y2.colour)
        twin.tick_params(axis="y", colors=panel.y2.colour, length=3, labelright=edges.right)
    axes.set_title(_plain(panel.title or (panel.column if edges.top else "")))
    if panel.note:
        axes.set_title(_plain(panel.note), fontsize=8, loc="right")
    if panel.row and edges.right:
        look = {"transform": axes.transAxes, "rotation": -90, "va": "center", "ha": "left", "fontsize": 10}
        axes.text(1.04, 0.5, _plain(panel.row), **look)
    return twin


def _set_axis(axes: Any, which: str, axis: Axis, edge: Axis | None) -> None:
    """Set up one axis; labels that the axis at the grid's edge has too are left out."""
    ticks = axes.xaxis if which == "x" else axes.yaxis
    if axis.scale == "log":
        getattr(axes, f"set_{which}scale")("log", base=10 if axis.ticks is None else 2)
        ticks.set_major_formatter(lambda tick, _: f"{tick:g}")
        ticks.set_minor_formatter(lambda tick, _: f"{tick:g}" if f"{tick:e}"[0] in "25" else "")
        if axis.ticks is not None:
            ticks.minorticks_off()
    elif axis.scale == "root":
        functions = (lambda k: np.sqrt(np.maximum(k, 0)), np.square)
        getattr(axes, f"set_{which}scale")("function", functions=functions)
    if axis.ticks is not None:
        names = [_plain(name) for name in axis.names] if axis.names is not None else None
        ticks.set_ticks(list(axis.ticks), names)
        turned = {"ha": "right", "rotation_mode": "anchor"} if 0 < axis.angle < 90 else {}
        for label in ticks.get_ticklabels():
            label.set(rotation=axis.angle, **turned)
        if axis.size:
            axes.tick_params(axis=which, labelsize=axis.size, pad=1)
    if axis.limits is not None:
        getattr(axes, f"set_{which}lim")(*axis.limits)
    if axis.grid:
        axes.grid(axis=which, color="0.93", linewidth=0.8)
        axes.set_axisbelow(True)
    if edge is None or edge.label != axis.label:
        ticks.set_label_text(_plain(axis.label), color=_ink(axis.colour))
    if edge == axis and axis.limits is not None:
        axes.tick_params(axis=which, labelbottom=False, labelleft=False)


def _name_axes(drawn: Any, axes: list[Any]) -> None:
    """Replace the panels' axis labels by one x label and one y label for the figure."""
    for which, write in (("x", drawn.supxlabel), ("y", drawn.supylabel)):
        names = [getattr(one, f"get_{which}label")() for one in axes]
        write(next((name for name in names if name), ""), fontsize=9, ha="center")
        for one in axes:
            one.set(**{f"{which}label": ""})


# ---- marks -----------------------------------------------------------------------------------------------


def _cells(axes: Any, mark: Cells, order: float) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    axes.set_facecolor(mark.empty)
    scale = mark.scale
    colours = LinearSegmentedColormap.from_list(scale.palette, scale.colours)
    look = {"interpolation": "nearest", "aspect": "equal" if mark.square else "auto", "zorder": 1}
    values = np.ma.masked_invalid(np.asarray(mark.values, dtype=float))
    image = axes.imshow(values, cmap=colours, vmin=scale.low, vmax=scale.high, **look)
    if mark.words is None:
        return
    for (row, column), word in np.ndenumerate(mark.words):
        if word:
            red, green, blue, _ = image.cmap(image.norm(mark.values[row, column]))
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            weight = "bold" if mark.bold is not None and mark.bold[row, column] else "normal"
            colour = "white" if dark else "black"
            axes.text(column, row, _plain(word), color=colour, fontweight=weight, zorder=order, **_CENTRED)


def _line(axes: Any, mark: Line, order: float) -> None:
    x, y = (np.asarray(values, dtype=float) for values in (mark.x, mark.y))
    colour = _ink(mark.colour)
    joined = mark.dash != "none" and len(x) > 1
    face = "white" if mark.hollow else colour
    look = {"color": colour, "zorder": order, "label": mark.name or "_mark"}
    look |= {"marker": _MARKERS[mark.marker], "markersize": mark.size, "markerfacecolor": face}
    if mark.edge:
        look |= {"markeredgecolor": _ink(mark.edge), "markeredgewidth": 0.4}
    elif not mark.hollow:
        look |= {"markeredgewidth": 0}
    # Points without a line are not clipped at the panel's edge.
    axes.plot(x, y, linestyle=_DASHES[mark.dash], linewidth=mark.width, clip_on=mark.dash != "none", **look)
    if mark.filled:
        axes.fill_between(x, 0, y, color=colour, alpha=mark.band, linewidth=0)
    if mark.lo is None or mark.hi is None or not mark.band:
        return
    lo, hi = (np.asarray(values, dtype=float) for values in (mark.lo, mark.hi))
    if joined:
        axes.fill_between(x, lo, hi, color=colour, alpha=mark.band, linewidth=0, zorder=order - 0.5)
    else:
        error = np.abs(np.stack([y - lo, hi - y]))
        axes.errorbar(x, y, yerr=error, fmt="none", ecolor=colour, elinewidth=0.9, capsize=2, zorder=order)


def _bars(axes: Any, mark: Bars, order: float) -> None:
    at, values = (np.asarray(numbers, dtype=float) for numbers in (mark.at, mark.values))
    base = np.zeros(len(at)) if mark.base is None else np.asarray(mark.base, dtype=float)
    look = {"color": mark.colours, "alpha": mark.opacity, "label": mark.name or "_mark", "zorder": order}
    if mark.lo is not None and mark.hi is not None:
        error = np.abs(np.stack([values - np.asarray(mark.lo), np.asarray(mark.hi) - values]).astype(float))
        look |= {"xerr" if mark.horizontal else "yerr": error} if np.isfinite(error).any() else {}
        look |= {"error_kw": {"elinewidth": 1, "capsize": 2, "ecolor": "0.25", "zorder": order}}
    draw, start = (axes.barh, "left") if mark.horizontal else (axes.bar, "bottom")
    draw(at, values, mark.thickness, **{start: base}, **look)
    for across, along, word in zip(at, base + values / 2, mark.words or (), strict=False):
        if word:
            spot = (along, across) if mark.horizontal else (across, along)
            axes.text(*spot, _plain(word), color="white", zorder=order, **_CENTRED)


def _rule(axes: Any, mark: Rule, order: float) -> None:
    draw = axes.axhline if mark.of == "y" else axes.axvline
    draw(mark.at, color=_ink(mark.colour), linewidth=mark.width, zorder=1, label="_rule")


def _span(axes: Any, mark: Span, order: float) -> None:
    axes.axvspan(mark.low, mark.high, color="0.6", alpha=0.22, linewidth=0, zorder=0)


def _label(axes: Any, mark: Label, order: float) -> None:
    look: dict[str, Any] = {"ha": mark.across, "va": "center" if mark.up == "middle" else mark.up}
    if mark.box:
        look["bbox"] = {"facecolor": "white", "alpha": 0.6, "linewidth": 0, "pad": 0.5}
    look |= {"color": _ink(mark.colour), "fontsize": mark.size, "linespacing": 1.1, "zorder": 5}
    look |= {"xytext": mark.shift, "textcoords": "offset points", "annotation_clip": False}
    axes.annotate(_plain(mark.text), (mark.x, mark.y), **look)


_DRAW: dict[type, Any] = {Cells: _cells, Line: _line, Bars: _bars, Rule: _rule, Span: _span, Label: _label}


# ---- colour bars and legends -------------------------------------------------------------------------------


def _colour_bars(drawn: Any, chart: Chart, axes: Any) -> None:
    """One bar for each scale, beside the panels that share it."""
    shared: dict[Scale, list[int]] = {}
    for number, panel in enumerate(chart.panels):
        for mark in panel.marks if panel is not None else ():
            if isinstance(mark, Cells):
                shared.setdefault(mark.scale, []).append(number)
    for scale, numbers in shared.items():
        image = axes[numbers[0]].images[0]
        size = {"shrink": 0.8, "aspect": 25} if chart.bar == "bottom" else {"shrink": 0.9, "aspect": 28}
        if chart.bar == "right" and len(numbers) > 2:
            size = {"fraction": 0.03, "pad": 0.015, "aspect": 35}
        extend = "max" if scale.above and not scale.names else "neither"
        beside = [axes[number] for number in numbers]
        bar = drawn.colorbar(image, ax=beside, location=chart.bar, extend=extend, **size)
        if scale.ticks:
            bar.set_ticks(list(scale.ticks), labels=list(scale.names) or None)
        bar.outline.set_visible(False)
        letters = int(8 * chart.size[1]) if chart.bar == "right" else 60  # as many as fit along the bar
        bar.set_label(_plain("\n".join(wrap(scale.label, letters))))


def _legends(drawn: Any, chart: Chart, axes: Any, twins: dict[int, Any], side: str) -> None:
    """Legends of the panels that have one, and one legend for all other panels."""
    common: dict[str, Any] = {}
    for number, panel in enumerate(chart.panels):
        if panel is None:
            continue
        shared = {m.name for m in panel.marks if isinstance(m, Line) and m.common}
        inside: dict[str, Any] = {}
        for name, handle in _entries(axes[number], twins[number], panel):
            (inside if panel.legend and name not in shared else common).setdefault(name, handle)
        if inside:
            look = {"loc": panel.legend, "fontsize": 7, "handlelength": 1.6, "labelspacing": 0.3}
            look |= {"framealpha": 0.75, "edgecolor": "none", "borderaxespad": 0.2, "columnspacing": 1.0}
            above = panel.legend.startswith("upper")  # in a line, over what is drawn
            columns = 1 if not above else 2 if len(inside) == 4 else min(len(inside), 3)
            look["frameon"] = not above
            axes[number].legend(inside.values(), map(_plain, inside), ncols=columns, **look)
    if common:
        columns = 1 if side == "right" else min(chart.legend_columns, len(common))
        look = {"ncols": columns, "columnspacing": 1.2, "handlelength": 2.4, "frameon": False, "fontsize": 8}
        drawn.legend(common.values(), map(_plain, common), loc=_OUTSIDE[side], **look)


def _entries(axes: Any, twin: Any, panel: Panel) -> list[tuple[str, Any]]:
    """The legend entries of a panel, in the order of its marks: name and artist."""
    handles: dict[str, Any] = {}
    for drawn in (axes, twin) if twin is not None else (axes,):
        artists, names = drawn.get_legend_handles_labels()
        for name, handle in zip(names, artists, strict=True):
            handles.setdefault(name, handle)  # of several lines with one name the first is in the legend
    named = [mark.name for mark in panel.marks if isinstance(mark, Line | Bars) and mark.name]
    return [(name, handles[name]) for name in dict.fromkeys(named)]


def _ink(colour: str) -> str:
    return {INK: "black", PAPER: "white"}.get(colour, colour)


def _plain(text: str) -> str:
    """Text that every font has, its dollar signs escaped: matplotlib reads text between two of them as mathematics."""
    return drawable(str(text)).replace("$", r"\$")
