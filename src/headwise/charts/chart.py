"""What a chart is: panels with marks and words. `static.py` and `interactive.py` draw the same definition.

A panel holds marks in the order in which they are drawn:

    Cells   a matrix of colours, optionally with a word in each cell
    Line    points, joined by a line or not, with a band or error bars
    Bars    bars with intervals, standing or lying
    Rule    a thin reference line across the panel
    Span    a shaded range of x
    Text    words at a place

The colour `ink` is the colour of text: black on paper, light on a dark page. Words are plain text: each renderer
escapes what its own markup would read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

Numbers = Sequence[float] | np.ndarray | pd.Series

INK = "ink"
GREY = "#737373"
PALETTES = {
    "viridis": "#440154 #482576 #414487 #355f8d #2a788e #21918c #22a884 #42be71 #7ad151 #bddf26 #fde725",
    "RdBu": "#67001f #b3192c #d6604d #f3a481 #fddbc7 #f6f7f7 #d1e5f0 #93c6de #4393c3 #2065ab #053061",
    "Greens": "#f7fcf5 #e5f5e0 #c7e9c0 #a0d99b #73c476 #42ab5d #238b45 #006d2c #00441b",
    "Blues": "#f7fbff #deebf7 #c6dbef #9dcae1 #6aaed6 #4292c6 #2171b5 #08519c #08306b",
    "Reds": "#fff5f0 #fee0d2 #fcbba1 #fc9272 #fb694a #ef3c2c #cb181d #a50f15 #67000d",
}
"""Colours at even steps, safe for colour-blind readers; of a signed score red hinders and blue helps."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One scale of a panel."""

    label: str = ""
    limits: tuple[float, float] | None = None
    """From left to right, from bottom to top; the larger first turns the axis round."""
    ticks: Sequence[float] | None = None
    names: Sequence[str] | None = None
    """What stands at the ticks, if not their numbers."""
    scale: Literal["linear", "log", "root"] = "linear"
    """`root` is a square root: it gives the first few of many heads room."""
    angle: int = 0
    """Degrees by which names are turned against the clock."""
    size: float | None = None
    """Size of the names on paper, in points."""
    grid: bool = False
    """Whether pale lines lead from the ticks across the panel on paper; the page has them always."""
    colour: str = INK


@dataclass(frozen=True)
class Scale:
    """Which colour a number has. Panels with the same scale share one colour bar."""

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


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A matrix; row 0 at y = 0, column 0 at x = 0. NaN is an empty cell."""

    values: np.ndarray
    scale: Scale
    words: np.ndarray | None = None
    """What is written in each cell."""
    bold: np.ndarray | None = None
    """Which of the words are bold."""
    details: np.ndarray | None = None
    """rows × columns × (lo, hi, n), shown in the hover text."""
    heads: bool = False
    """Whether rows are layers and columns heads, so that a click chooses a head."""
    hover: str = "{row}, {column}: {value}"
    """Hover text of a cell, where the axes have names."""
    empty: str = "#d9d9d9"
    """Colour of an empty cell: grey for a head that does not exist."""
    square: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points in order. An interval is a band along a line, and error bars where nothing joins the points."""

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
    """Whether the space down to 0 is filled."""
    right: bool = False
    """Whether it belongs to the panel's second scale."""
    hover_x: Numbers | None = None
    """The numbers that the hover text shows instead of x."""
    words: Sequence[str] | None = None
    """A word for each point in the hover text: a token."""
    hover_prefix: str = ""
    """Start of the hover text, where several lines share one name."""
    common: bool = False
    """Whether its entry is in the chart's legend although the panel has a legend of its own."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars around the places `at`."""

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
    lying: bool = False
    words: Sequence[str] | None = None
    """What is written inside each bar; empty where it is too short."""
    hover: Sequence[str] | None = None
    """Hover text of each bar, after the name."""


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
class Text:
    """Words at a place of the panel."""

    x: float
    y: float
    text: str
    colour: str = INK
    across: Literal["left", "center", "right"] = "center"
    """Which side of the words stands at x."""
    up: Literal["bottom", "middle", "top"] = "middle"
    """Which side of the words stands at y."""
    shift: tuple[float, float] = (0, 0)
    """Points to the right and up."""
    size: float = 8
    box: bool = False
    """Whether a pale ground keeps it readable over lines."""


Mark = Cells | Line | Bars | Rule | Span | Text


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str = ""
    row: str = ""
    column: str = ""
    """Of a panel in a grid: what its row and its column are about. On paper they stand at the grid's edges."""
    note: str = ""
    """A few words beside the title."""
    marks: Sequence[Mark] = ()
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    y2: Axis | None = None
    """A second scale at the right, on paper alone: the page has a panel for each."""
    legend: str = ""
    """The corner of the panel's own legend (`lower right`); without one its lines are in the chart's."""
    bare: bool = False
    """Whether words stand alone, without lines around them."""
    model: str = ""
    """The model whose heads the panel shows; a chosen head is marked only in panels of its model."""
    orders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """For curves over an order: series -> its heads, so that the chosen one is marked where it enters."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """Where a panel shows several models: series -> the model whose heads the order is of."""
    attention: str = ""
    """The head whose attention the panel shows, if it does."""

    @property
    def heading(self) -> str:
        """The title where it stands alone, without a grid around it."""
        return ", ".join(word for word in (self.title, self.row, self.column) if word)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Panels that belong together, with what they show in words."""

    name: str = ""
    """The name of its files."""
    title: str
    panels: Sequence[Panel | None]
    """Row by row; None leaves a place empty."""
    page: Sequence[Panel] | None = None
    """The same marks in other panels, where the page lays them out otherwise."""
    heading: str | None = None
    """What stands above the figure on paper, if not the title."""
    note: str = ""
    """A line below the figure on paper; on the page part of the caption."""
    caption: str = ""
    """What a reader of the page needs to know; a paper has its own caption."""
    size: tuple[float, float] = (6.4, 4.8)
    """Inches on paper."""
    columns: int = 4
    """Panels in a row, on the page where there is room."""
    page_columns: int | None = None
    places: Sequence[Sequence[int]] | None = None
    """Which panel stands where on paper, where a panel takes several places."""
    widths: Sequence[float] | None = None
    """How wide columns are on paper, one against the others."""
    once: bool = False
    """Whether the names of the axes stand once for the whole grid, on paper."""
    legend: Literal["top", "right", "bottom"] = "top"
    legend_columns: int = 6
    bar: Literal["right", "bottom"] = "right"
    """Where colour bars stand on paper."""
    least: int = 340
    """Minimum width of a panel on the page, in pixels; a narrower page has fewer panels in a row."""
    height: int = 300
    """Pixels of one panel on the page."""
    table: pd.DataFrame | None = None
    """The same numbers to read, for people who do not see charts."""

    @property
    def page_panels(self) -> list[Panel]:
        """The panels of the page."""
        return [panel for panel in (self.panels if self.page is None else self.page) if panel is not None]


def distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order of first appearance."""
    return list(dict.fromkeys(values))


def curve(rows: pd.DataFrame, x: str = "k", y: str = "value", **look: Any) -> Line:
    """A line through two columns of a table; its interval is in the columns `y`_lo and `y`_hi, or lo and hi."""
    lo, hi = (rows.get(f"{y}_{end}", rows.get(end)) for end in ("lo", "hi"))
    return Line(x=rows[x], y=rows[y], lo=lo, hi=hi, **look)


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
    """0, and so on in even steps, for `count` things with at most `most` numbers.

    >>> whole_ticks(9, 5), whole_ticks(32, 5), whole_ticks(4, 10)
    ([0, 2, 4, 6, 8], [0, 10, 20, 30], [0, 1, 2, 3])
    """
    step = next((step for step in (1, 2, 5, 10, 20, 50, 100) if -(-count // step) <= most), 1000)
    return list(range(0, count, step))


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
