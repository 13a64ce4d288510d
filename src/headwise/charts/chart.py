"""What a chart is: panels with marks and words. `static.py` and `interactive.py` draw the same definition.

A panel holds marks in the order in which they are drawn:

    Cells   a matrix of colours, optionally with a word in each cell
    Line    points, joined by a line or not, with a band or error bars
    Bars    bars with intervals, vertical or horizontal
    Rule    a thin reference line across the panel
    Span    a shaded range of x
    Label   words at a point

The colour `ink` is the colour of text: black on paper, light on a dark page; `paper` is the background. Words are
plain text; each renderer escapes the characters that its markup would interpret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as count_from
from typing import Any, Literal

import numpy as np
import pandas as pd

Numbers = Sequence[float] | np.ndarray | pd.Series

INK, PAPER = "ink", "paper"
GREY = "#737373"
PALETTES = {
    "viridis": "#440154 #482576 #414487 #355f8d #2a788e #21918c #22a884 #42be71 #7ad151 #bddf26 #fde725",
    "RdBu": "#67001f #b3192c #d6604d #f3a481 #fddbc7 #f6f7f7 #d1e5f0 #93c6de #4393c3 #2065ab #053061",
    "Greens": "#f7fcf5 #e5f5e0 #c7e9c0 #a0d99b #73c476 #42ab5d #238b45 #006d2c #00441b",
    "Blues": "#f7fbff #deebf7 #c6dbef #9dcae1 #6aaed6 #4292c6 #2171b5 #08519c #08306b",
    "Reds": "#fff5f0 #fee0d2 #fcbba1 #fc9272 #fb694a #ef3c2c #cb181d #a50f15 #67000d",
}
"""Colours at even steps, safe for colour-blind readers; for a signed score red is interference, blue facilitation."""
DARK_PALETTES = {
    "RdBu": "#ffb3a0 #f78a76 #e0604f #b5433a #6b2f2e #24282e #24456b #2f6fae #4f98d8 #86bdec #c0ddf9",
    "Greens": "#1d2420 #1c3325 #1c4a30 #1f643d #27804c #34a05f #55b978 #76d096 #9be8b3",
    "Blues": "#1c222b #1d2f47 #1f4168 #24578c #2e71b3 #4a90d2 #6ba8e0 #8bbeee #add5fb",
    "Reds": "#281e1e #412424 #622b2a #873431 #ae413b #d35b52 #e2756b #ec8f85 #f7aaa0",
}
"""The palettes that are nearly white at 0, for a dark page: 0 is as dark as the page, large values are bright."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One scale of a panel."""

    label: str = ""
    limits: tuple[float, float] | None = None
    """Ends of the axis from left to right, or bottom to top; the larger number first inverts the axis."""
    ticks: Sequence[float] | None = None
    names: Sequence[str] | None = None
    """Labels of the ticks; by default their numbers."""
    scale: Literal["linear", "log", "root"] = "linear"
    """`root` is a square root, which gives the first few of many heads more room."""
    angle: int = 0
    """Counter-clockwise rotation of the names, in degrees."""
    size: float | None = None
    """Size of the names on paper, in points."""
    grid: bool = False
    """Whether the panel has grid lines on paper; the page always has them."""
    colour: str = INK


@dataclass(frozen=True)
class Scale:
    """How numbers map to colours. Panels with the same scale share one colour bar."""

    palette: str
    low: float
    high: float
    label: str = ""
    ticks: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    above: bool = False
    """Whether there are numbers beyond the upper end; the bar then ends in an arrow, unless its names say so."""

    @property
    def colours(self) -> list[str]:
        """The palette's colours, from low to high."""
        return PALETTES[self.palette].split()

    @property
    def dark_colours(self) -> list[str]:
        """The colours on a dark page."""
        return DARK_PALETTES.get(self.palette, PALETTES[self.palette]).split()


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A matrix; row 0 at y = 0, column 0 at x = 0. NaN is an empty cell."""

    values: np.ndarray
    scale: Scale
    words: np.ndarray | None = None
    """The text in each cell."""
    bold: np.ndarray | None = None
    """Which of the words are bold."""
    details: np.ndarray | None = None
    """rows × columns × (lo, hi, n, q), shown in the hover text."""
    heads: bool = False
    """Whether rows are layers and columns heads, so that a click chooses a head."""
    hover: str = "{row}, {column}: {value}"
    """Hover text of a cell, where the axes have names."""
    empty: str = "#d9d9d9"
    """Colour of an empty cell: grey for a head that does not exist."""
    square: bool = False
    examples: Mapping[str, str] = field(default_factory=dict)
    """Which rows of the run's per-example tables are behind the numbers: column -> value. A cell is one head."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points in order. The interval is a band along a line; points without a line have error bars."""

    x: Numbers
    y: Numbers
    name: str = ""
    """Its entry in the legend; a line without a name has no hover text."""
    colour: str = INK
    lo: Numbers | None = None
    hi: Numbers | None = None
    band: float = 0.2
    """Opacity of the band; 0 for an interval that only the hover text shows."""
    dash: Literal["solid", "dash", "dot", "dashdot", "none"] = "solid"
    width: float = 1.5
    marker: Literal["", "circle", "diamond"] = ""
    size: float = 4
    """Diameter of a marker on paper, in points."""
    hollow: bool = False
    edge: str = ""
    """Colour of a marker's edge, if not the line's."""
    filled: bool = False
    """Whether the area between the line and 0 is filled."""
    right: bool = False
    """Whether it uses the panel's second y axis."""
    hover_x: Numbers | None = None
    """The numbers that the hover text shows instead of x."""
    words: Sequence[str] | None = None
    """A word for each point in the hover text: a token."""
    hover_prefix: str = ""
    """Start of the hover text, where several lines share one name."""
    hover: Sequence[str] | None = None
    """The whole hover text of each point, for lines that are no curves: the edges of a graph."""
    heads: Sequence[str] | None = None
    """The component at each point (`L12H3`); a click on a head chooses it."""
    common: bool = False
    """Whether its entry is in the chart's legend although the panel has a legend of its own."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """Which rows of the run's per-example tables are behind the numbers: column -> value. A point is one k."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars centred at `at`."""

    at: Numbers
    values: Numbers
    name: str = ""
    colours: str | Sequence[str] = GREY
    lo: Numbers | None = None
    hi: Numbers | None = None
    base: Numbers | None = None
    """Where each bar begins, if not at 0."""
    thickness: float = 0.7
    opacity: float = 1.0
    horizontal: bool = False
    words: Sequence[str] | None = None
    """The text inside each bar; empty where the bar is too short."""
    hover: Sequence[str] | None = None
    """Hover text of each bar, after the name."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """Which rows of the run's per-example tables are behind the numbers: column -> value."""
    keys: Sequence[str] | None = None
    """Which of these rows are behind each bar: a head (`L12H3`), or a model."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A thin line across the panel at one value."""

    at: float
    of: Literal["x", "y"] = "y"
    colour: str = "#999999"
    width: float = 0.8


@dataclass(frozen=True, kw_only=True)
class Span:
    """A shaded range of x."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Label:
    """Words at a point of the panel."""

    x: float
    y: float
    text: str
    colour: str = INK
    across: Literal["left", "center", "right"] = "center"
    """Horizontal alignment: which side of the words is at x."""
    up: Literal["bottom", "middle", "top"] = "middle"
    """Vertical alignment: which side of the words is at y."""
    shift: tuple[float, float] = (0, 0)
    """Offset to the right and up, in points."""
    size: float = 8
    box: bool = False
    """Whether it has a pale background, to be readable over lines."""


Mark = Cells | Line | Bars | Rule | Span | Label


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str = ""
    row: str = ""
    column: str = ""
    """Titles of its row and its column in a grid of panels; on paper they are at the grid's edges."""
    note: str = ""
    """A remark next to the title."""
    marks: Sequence[Mark] = ()
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    y2: Axis | None = None
    """A second y axis at the right, on paper only; the page has one panel per axis."""
    legend: str = ""
    """Corner of the panel's legend (`lower right`); if empty, its lines are in the chart's legend."""
    bare: bool = False
    """Whether it is drawn without axis lines and ticks."""
    model: str = ""
    """The model whose heads the panel shows; a chosen head is marked only in panels of its model."""
    orders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """For curves over an order: series -> its heads in order; the page marks the k at which a chosen head enters."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """For a panel with several models: series -> the model whose heads are ordered."""
    attention: str = ""
    """The head whose attention the panel shows, if it does."""

    @property
    def heading(self) -> str:
        """Title, row and column in one line, for a panel outside a grid."""
        return ", ".join(word for word in (self.title, self.row, self.column) if word)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Panels with a common title, legend and caption."""

    name: str = ""
    """File name of the figures, without the extension; a chart without one is on the page only."""
    title: str
    panels: Sequence[Panel | None]
    """Row by row; None leaves a gap."""
    page: Sequence[Panel] | None = None
    """The panels of the page, where their layout differs from paper; the marks are the same. If empty, the chart is on
    paper only."""
    heading: str | None = None
    """The line above the figure on paper; by default the title."""
    note: str = ""
    """A line below the figure on paper; on the page part of the caption."""
    caption: str = ""
    """Explanation below the chart on the page."""
    prompt: str = ""
    """The prompt whose tokens the chart shows; on the page it is above the chart."""
    size: tuple[float, float] = (6.4, 4.8)
    """Width and height on paper, in inches."""
    columns: int = 4
    """Most panels in a row; a narrow page has fewer."""
    page_columns: int | None = None
    places: Sequence[Sequence[int]] | None = None
    """Panel numbers by row and column of the figure on paper; a number may repeat to span several cells."""
    widths: Sequence[float] | None = None
    """Relative widths of the columns on paper."""
    shared_axis_labels: bool = False
    """Whether the figure on paper has one x label and one y label for all panels."""
    legend: Literal["top", "right", "bottom"] = "top"
    legend_columns: int = 6
    bar: Literal["right", "bottom"] = "right"
    """Position of the colour bars on paper."""
    min_panel_width: int = 340
    """Minimum width of a panel on the page, in pixels; a narrower page has fewer panels in a row."""
    height: int = 300
    """Height of one panel on the page, in pixels."""
    table: pd.DataFrame | None = None
    """The chart's numbers as a table, for readers who cannot see the chart."""
    table_shown: bool = False
    """Whether the page shows the table at once: it has what panels of text have on paper."""

    @property
    def page_panels(self) -> list[Panel]:
        """The panels of the page."""
        return [panel for panel in (self.panels if self.page is None else self.page) if panel is not None]


def curve(rows: pd.DataFrame, x: str = "k", y: str = "value", **look: Any) -> Line:
    """A line through two columns of a table; its interval is in the columns `y`_lo and `y`_hi, or lo and hi."""
    lo, hi = (rows.get(f"{y}_{end}", rows.get(end)) for end in ("lo", "hi"))
    return Line(x=rows[x], y=rows[y], lo=lo, hi=hi, **look)


def points(x: Numbers, y: Numbers, **look: Any) -> Line:
    """Points that no line joins."""
    return Line(x=x, y=y, **({"dash": "none", "marker": "circle"} | look))


def diagonal(limits: Numbers, **look: Any) -> Line:
    """The thin line on which x and y are equal."""
    return Line(x=limits, y=limits, colour="#999999", **look)


def key(colour: str = INK, **look: Any) -> Line:
    """An entry of the legend that draws nothing. Two points: the page has no entry for a line without any."""
    return Line(x=[np.nan] * 2, y=[np.nan] * 2, colour=colour, **look)


def names_axis(names: Iterable[Any], *, down: bool = False, **look: Any) -> Axis:
    """An axis with one name at each of 0, 1, 2, …; `down` puts the first name at the top."""
    written = [str(name) for name in names]
    limits = (-0.5, len(written) - 0.5)
    return Axis(limits=limits[::-1] if down else limits, ticks=range(len(written)), names=written, **look)


def grid_shape(count: int, most: int = 4) -> tuple[int, int]:
    """Columns and rows of a grid of `count` panels with at most `most` in a row.

    >>> grid_shape(3), grid_shape(9)
    ((3, 1), (4, 3))
    """
    columns = min(most, count)
    return columns, -(-count // columns)


def whole_ticks(count: int, most: int) -> list[int]:
    """At most `most` ticks in even steps from 0, for an axis of `count` items.

    >>> whole_ticks(9, 5), whole_ticks(32, 5), whole_ticks(4, 10)
    ([0, 2, 4, 6, 8], [0, 10, 20, 30], [0, 1, 2, 3])
    """
    steps = (digit * 10**power for power in count_from(0) for digit in (1, 2, 5))
    return list(range(0, count, next(step for step in steps if -(-count // step) <= most)))


def count_axis(label: str, last: int, ticks: int = 8, **look: Any) -> Axis:
    """An axis of a number of things from 0 to `last`, with whole numbers at its ticks however few there are."""
    return Axis(label=label, limits=(0, last), ticks=whole_ticks(last + 1, ticks), **look)


def axis_range(*values: Numbers, room: float = 0.05) -> tuple[float, float] | None:
    """From the smallest number to the largest, with some room for the lines' width; None where there is no number.

    >>> axis_range([0.0, 2.0], [float("nan"), 4.0]), axis_range([float("nan")])
    ((-0.2, 4.2), None)
    """
    numbers = np.concatenate([np.asarray(part, dtype=float).ravel() for part in values])
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return None
    low, high = float(numbers.min()), float(numbers.max())
    margin = room * ((high - low) or 20.0)
    return low - margin, high + margin
