"""What the report says of one study: a question, what was found, and charts, all from tables.

A chart is panels; the page lays them out for the width it has, so a phone shows one beside none. Traces are
Plotly's own JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from headwise.registry import Registry
from headwise.runs.gather import Run


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    traces: list[dict[str, Any]]
    x: dict[str, Any] = field(default_factory=dict)
    y: dict[str, Any] = field(default_factory=dict)
    y2: dict[str, Any] | None = None
    """A second scale at the right; traces on it say `"second": true`."""
    model: str = ""
    """Whose heads the panel is about: a head is marked in the panels of its own model."""
    map: bool = False
    """Whether x is the head and y the layer, so that a click chooses one."""
    orders: dict[str, list[str]] = field(default_factory=dict)
    """For curves over an order: series -> its heads, so that the chosen one is marked where it enters."""
    owners: dict[str, str] = field(default_factory=dict)
    """Where a panel shows several models: series -> the model whose heads the order is of."""
    root: bool = False
    """Whether x is the square root of a number of heads, which gives the first few of many room."""
    attention: str = ""
    """The head whose attention the panel shows, if it does."""
    marks: list[dict[str, Any]] = field(default_factory=list)
    """Plotly shapes and annotations, with `kind`: `shape` or `text`."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Panels that belong together, with what they show in words."""

    title: str
    panels: list[Panel]
    caption: str = ""
    columns: int = 4
    """Panels in a row where there is room."""
    least: int = 230
    """Pixels a panel needs at least; below that there are fewer in a row."""
    height: int = 260
    """Pixels of one panel."""
    gap: int = 62
    """Pixels left of each panel, for its labels."""
    table: pd.DataFrame | None = None
    """The same numbers to read, for people who do not see charts."""
    legend: bool = True
    stacked: bool = False
    """Whether bars stand on one another instead of side by side."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was found, in a sentence with its numbers."""

    sentence: str
    weight: float = 0.0
    """How much it would interest a reader who sees three: a size of effect between 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """What one study adds to the report."""

    findings: Sequence[Finding] = ()
    charts: Sequence[Chart] = ()
    texts: pd.DataFrame | None = None
    """Sample texts to read, a row each."""
    heads: pd.DataFrame | None = None
    """Rows for the table of heads: model, task, measure, layer, head, score, lo, hi, n, q."""


Writer = Callable[[Run], Section]
WRITERS: Registry[Writer] = Registry("section of the report", "headwise.studies.*.findings")


def register(study: str) -> Callable[[Writer], Writer]:
    """Make known how the report writes about a study."""

    def add(writer: Writer) -> Writer:
        WRITERS.add(study, writer)
        return writer

    return add


def writers() -> Mapping[str, Writer]:
    """Every study that has its own section; the others get the general one."""
    return WRITERS.all()


def head_names(rows: pd.DataFrame) -> list[str]:
    """The heads of a table's rows, in its order, as people write them: L12H3."""
    return [f"L{layer}H{head}" for layer, head in zip(rows["layer"], rows["head"], strict=True)]


def head_rows(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of a score table as the table of heads has them."""
    rows = scores.rename(columns={"method": "measure"})
    columns = ["model", "task", "measure", "layer", "head", "score", "lo", "hi", "n", "q"]
    return rows.reindex(columns=columns)
