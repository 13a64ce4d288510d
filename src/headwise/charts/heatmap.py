"""Layer × head maps: the cells of one score, and the chart of a score with the heads that stand out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Bars, Cells, Chart, Line, Mark, Panel, Rule, Scale, whole_ticks
from headwise.charts.words import minus, span

SATURATION = 99.0
"""Percentile of the absolute scores at which colours end: a few large heads would hide all others."""
LEVEL = 0.05
"""Heads whose q-value is below it carry a dot."""
HELPS, HINDERS, UNSIGNED = "#2166ac", "#b2182b", "#35608d"


def grid(table: pd.DataFrame, column: str = "score") -> np.ndarray:
    """A score table's column as an array `[layers, heads]`; NaN where there is no such head."""
    values = np.full((int(table["layer"].max()) + 1, int(table["head"].max()) + 1), np.nan)
    values[table["layer"], table["head"]] = table[column]
    return values


def head_panel(
    table: pd.DataFrame,
    scale: Scale,
    *,
    of: str = "score",
    bounds: tuple[str, str] = ("lo", "hi"),
    dots: pd.DataFrame | None = None,
    shape: tuple[int, int] | None = None,
    most: tuple[int, int] = (7, 5),
    **about: Any,
) -> Panel:
    """The map of the column `of` of a table; `dots` holds the heads that carry a dot.

    shape: layers and heads, where other panels have more. most: numbers along the layers and along the heads.
    `about` is what else the panel says: its title, or its row and column.
    """
    values = grid(table, of)
    layers, heads = shape or values.shape
    padded = np.full((layers, heads), np.nan)
    padded[: values.shape[0], : values.shape[1]] = np.where(np.isfinite(values), values, np.nan)
    details = np.full((layers, heads, 3), np.nan)
    for place, name in enumerate((*bounds, "n")):
        if name in table:
            details[table["layer"], table["head"], place] = table[name].to_numpy(dtype=float)
    marks: list[Cells | Line] = [Cells(values=padded, scale=scale, details=details, heads=True)]
    if dots is not None and len(dots):
        dot: dict[str, Any] = {
            "dash": "none",
            "marker": "circle",
            "size": 2.2,
            "colour": "#000000",
            "edge": "#ffffff",
        }
        marks.append(Line(x=dots["head"], y=dots["layer"], **dot))
    return Panel(
        marks=marks,
        x=Axis(label="Head", limits=(-0.5, heads - 0.5), ticks=whole_ticks(heads, most[1])),
        y=Axis(label="Layer", limits=(layers - 0.5, -0.5), ticks=whole_ticks(layers, most[0])),
        model=str(table["model"].iloc[0]) if "model" in table else "",
        **about,
    )


def significant(table: pd.DataFrame) -> pd.DataFrame:
    """The heads that are told from 0."""
    return table[table["q"] < LEVEL] if "q" in table else table[:0]


def importance(scores: pd.Series, signed: bool, unit: str) -> Scale:
    """The scale of a score, ending at a round number near the 99th percentile; its end says if it saturates."""
    known = scores.to_numpy(dtype=float)
    known = known[np.isfinite(known)]
    top, step = saturation(known)
    ticks = np.arange(round(top / step) + 1) * step
    if signed:
        ticks = np.unique(np.round(np.concatenate([-ticks[::2], ticks[::2], [-top, top]]), 12) + 0.0)
        # Next to the end a tick of the coarser step would run into it.
        ticks = np.array([t for t in ticks if abs(t) in (0, top) or top - abs(t) > 1.5 * step])
    digits = max(0, -math.floor(math.log10(step) + 1e-9) + (0 if _one_digit(step) else 1))
    names = [minus(f"{tick:.{digits}f}") for tick in ticks]
    if known.max(initial=0) > top:
        names[-1] = f"≥ {names[-1]}" if signed else f"{names[-1]}+"
    if signed and known.min(initial=0) < -top:
        names[0] = f"≤ {names[0]}"
    label = unit + ("; blue helps, red hinders" if signed else "")
    low, palette = (-top, "RdBu") if signed else (0.0, "viridis")
    above = bool(known.max(initial=0) > top)
    return Scale(palette, low, top, label, tuple(float(tick) for tick in ticks), tuple(names), above)


def score_chart(
    table: pd.DataFrame,
    *,
    signed: bool = True,
    title: str | None = None,
    bars: int = 12,
    scale: Scale | None = None,
    name: str = "",
) -> Chart:
    """Left, every head's score; right, the `bars` largest with their intervals.

    A signed score gets a diverging scale centred at 0 (red hinders, blue helps). Heads whose q-value is below
    .05 carry a dot.
    """
    first = table.iloc[0]
    unit = f" ({first['metric']})" if "metric" in table else ""
    scale = scale or importance(table["score"], signed, f"Score{unit}")
    dots = significant(table)
    note = "dot: q < .05" if len(dots) else ""
    label = (
        f"{str(first['method']).capitalize()} on {first['task']}, {first['model']}, n = {span(table['n'])}"
    )
    return Chart(
        name=name,
        title=title or label,
        panels=[
            head_panel(table, scale, dots=dots, most=(12, 10), note=note),
            _largest(table, signed, bars, unit),
        ],
        size=(9.2, 5.4),
        columns=2,
        widths=(1.25, 1),
        least=360,
        height=360,
    )


def _largest(table: pd.DataFrame, signed: bool, bars: int, unit: str) -> Panel:
    largest = table.reindex(table["score"].abs().sort_values(ascending=False, kind="stable").index)[:bars]
    names = [f"L{layer}H{head}" for layer, head in zip(largest["layer"], largest["head"], strict=True)]
    colours = [HELPS if score > 0 else HINDERS for score in largest["score"]] if signed else UNSIGNED
    known = bool(np.isfinite(largest[["lo", "hi"]].to_numpy(dtype=float)).all())
    told = [f"{row.score:.4g} [{row.lo:.4g}, {row.hi:.4g}]" for row in largest.itertuples()]
    marks: list[Mark] = [
        Bars(
            at=np.arange(len(largest)),
            values=largest["score"],
            lo=largest["lo"] if known else None,
            hi=largest["hi"] if known else None,
            colours=colours,
            lying=True,
            hover=[f"{name}: {number}" for name, number in zip(names, told, strict=True)],
        ),
        Rule(at=0, of="x", colour="#666666"),
    ]
    return Panel(
        title=f"The {len(largest)} largest",
        marks=marks,
        x=Axis(label=f"Score{unit}, 95 % interval"),
        y=Axis(limits=(len(largest) - 0.5, -0.5), ticks=list(range(len(largest))), names=names),
    )


def saturation(scores: np.ndarray) -> tuple[float, float]:
    """Where the colours end, and the step of the ticks: round numbers, at or just above the 99th percentile.

    >>> saturation(np.linspace(0, 0.0038, 101))
    (0.004, 0.0005)
    """
    sizes = np.abs(scores[np.isfinite(scores)])
    high = float(np.percentile(sizes, SATURATION)) if sizes.size else 0.0
    high = high or float(sizes.max(initial=0.0)) or 1.0
    power = 10.0 ** math.floor(math.log10(high / 5))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if high <= 8 * m * power)
    return float(f"{math.ceil(high / step - 1e-9) * step:.6g}"), float(f"{step:.6g}")


def _one_digit(step: float) -> bool:
    """Whether the step is one digit (0.002) and not two (0.0025)."""
    return len(f"{step:e}".split("e")[0].rstrip("0").rstrip(".").replace(".", "")) == 1
