"""The layer × head map of one score, with the error bars of the heads that stand out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.style import house_style
from headwise.charts.words import span

SATURATION = 99.0
"""Percentile of the absolute scores at which colours end: a few large heads would hide all others."""


def grid(table: pd.DataFrame, column: str = "score") -> np.ndarray:
    """A score table's column as an array `[layers, heads]`; NaN where there is no such head."""
    values = np.full((int(table["layer"].max()) + 1, int(table["head"].max()) + 1), np.nan)
    values[table["layer"], table["head"]] = table[column]
    return values


def score_map(table: pd.DataFrame, *, signed: bool = True, title: str | None = None, bars: int = 12) -> Any:
    """Left, every head's score; right, the `bars` largest with their intervals.

    A signed score gets a diverging scale centred at 0 (red hinders, blue helps). Heads whose q-value is below
    .05 carry a dot. Returns a matplotlib figure.
    """
    from matplotlib.figure import Figure

    with house_style():
        figure = Figure(figsize=(9.2, 5.4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _draw_map(figure, left, table, signed)
        _draw_bars(right, table, signed, bars)
        first = table.iloc[0]
        figure.suptitle(
            title
            or f"{first['method'].capitalize()} on {first['task']}, {first['model']}, n = {span(table['n'])}"
        )
    return figure


def _draw_map(figure: Any, axes: Any, table: pd.DataFrame, signed: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    values = grid(table)
    known = values[np.isfinite(values)]
    top = float(np.abs(known).max(initial=0.0)) or 1.0
    scale = (
        {"cmap": "RdBu", "vmin": -top, "vmax": top}
        if signed
        else {
            "cmap": "viridis",
            "vmin": known.min() if len(known) else 0.0,
            "vmax": known.max() if len(known) else 1.0,
        }
    )
    axes.set_facecolor("0.85")  # a head that does not exist, or whose score is no number
    image = axes.imshow(
        np.where(np.isfinite(values), values, np.nan), aspect="auto", interpolation="nearest", **scale
    )
    found = table[table["q"] < 0.05]
    axes.scatter(found["head"], found["layer"], s=5, color="black", linewidths=0)
    axes.set(xlabel="Head", ylabel="Layer")
    axes.spines[:].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(12, integer=True))
    unit = f" ({table['metric'].iloc[0]})" if "metric" in table else ""
    label = f"Score{unit}; blue helps, red hinders" if signed else f"Score{unit}"
    figure.colorbar(image, ax=axes, label=label)
    if len(found):
        axes.set_title("dot: q < .05", fontsize=8, loc="right")


def _draw_bars(axes: Any, table: pd.DataFrame, signed: bool, bars: int) -> None:
    largest = table.reindex(table["score"].abs().sort_values(ascending=False, kind="stable").index)[:bars]
    names = [f"L{layer}H{head}" for layer, head in zip(largest["layer"], largest["head"], strict=True)]
    where = np.arange(len(largest))[::-1]
    colours = ["#2166ac" if score > 0 else "#b2182b" for score in largest["score"]] if signed else "#35608d"
    error = np.abs(largest[["lo", "hi"]].to_numpy().T - largest["score"].to_numpy())
    error = error if np.isfinite(error).all() else None
    axes.barh(
        where,
        largest["score"],
        color=colours,
        xerr=error,
        height=0.7,
        error_kw={"elinewidth": 1, "capsize": 2},
    )
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.set_yticks(where, names)
    unit = f" ({table['metric'].iloc[0]})" if "metric" in table else ""
    axes.set(xlabel=f"Score{unit}, 95 % interval", title=f"The {len(largest)} largest")


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
