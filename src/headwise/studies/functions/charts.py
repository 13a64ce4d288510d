"""Which heads serve which ability: a map per ability on one scale, and how far the abilities share heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.heatmap import grid, saturation
from headwise.charts.style import house_style
from headwise.charts.words import span

COLUMNS = 4
READABLE = "a probe shows what is readable from a head, not what the head does"


def ability_maps(table: pd.DataFrame) -> Any:
    """A layer × head map for each ability of one model and method, four in a row, all on one scale.

    `table` holds the rows of `scores` of one model and one method; `task` is the ability. A signed score
    (column `signed`) gets a diverging scale centred at 0, any other viridis from 0. The scale ends at the 99th
    percentile, and its end says so. Returns a matplotlib figure.
    """
    from matplotlib.figure import Figure

    abilities = list(dict.fromkeys(table["task"]))
    signed = bool(table["signed"].iloc[0])
    top, step = saturation(table["score"].to_numpy(dtype=float))
    shape = (int(table["layer"].max()) + 1, int(table["head"].max()) + 1)
    columns = min(COLUMNS, len(abilities))
    rows = math.ceil(len(abilities) / columns)
    scale = (
        {"cmap": "RdBu", "vmin": -top, "vmax": top} if signed else {"cmap": "viridis", "vmin": 0, "vmax": top}
    )
    with house_style():
        figure = Figure(figsize=(2.3 * columns + 1.3, 2.5 * rows + 0.6), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for panel, ability in zip(panels.flat, abilities, strict=False):
            values = np.full(shape, np.nan)
            part = table[table["task"] == ability]
            own = grid(part)
            values[: own.shape[0], : own.shape[1]] = own
            panel.set_facecolor("0.85")  # a head that does not exist
            image = panel.imshow(values, aspect="auto", interpolation="nearest", **scale)
            panel.set_title(ability, fontsize=9)
            panel.spines[:].set_visible(False)
            _ticks(panel, shape)
        for panel in panels.flat[len(abilities) :]:
            panel.set_visible(False)
        _label_outer(panels, len(abilities))
        _bar(figure, panels, image, table, top, step, signed)
        first = table.iloc[0]
        note = f"\n{READABLE}" if first["method"] == "probe" else ""
        n = span(table["n"])
        figure.suptitle(
            f"{str(first['method']).capitalize()}, {first['model']}, n = {n} per ability{note}", fontsize=10
        )
    return figure


def overlap_matrix(table: pd.DataFrame) -> Any:
    """How far the heads of each two abilities are the same, one matrix per method.

    `table` holds the rows of `overlap` of one model. A number is the Jaccard index of the two sets of heads
    before the elbow. Beside the ability's name stand how many these are and, for a score with a sign, how many heads
    have q < .05: a head before the elbow need not be told from 0. Returns a matplotlib figure.
    """
    from matplotlib.figure import Figure

    methods = list(dict.fromkeys(table["method"]))
    abilities = list(dict.fromkeys(table["task"]))
    with house_style():
        figure = Figure(
            figsize=(1.9 + (0.42 * len(abilities) + 0.9) * len(methods) + 0.8, 0.42 * len(abilities) + 2.0),
            layout="constrained",
        )
        figure.set_layout_engine("constrained", h_pad=0.12)  # keeps the title off the panels' own
        panels = figure.subplots(1, len(methods), squeeze=False)
        for panel, method in zip(panels.flat, methods, strict=True):
            part = table[table["method"] == method]
            values = part.pivot(index="task", columns="other", values="jaccard").loc[abilities, abilities]
            image = panel.imshow(values.to_numpy(), cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
            counts = _counts(part)
            names = [f"{a} ({counts[a]})" for a in abilities] if panel is panels[0, 0] else None
            places = range(len(abilities))
            panel.set_yticks(places, names or [f"({counts[a]})" for a in abilities])
            panel.set_xticks(places, abilities, rotation=45, ha="right", rotation_mode="anchor")
            panel.set_title(method)
            panel.spines[:].set_visible(False)
            for (row, column), value in np.ndenumerate(values.to_numpy()):
                colour = "black" if value > 0.6 else "white"
                panel.text(column, row, _short(value), ha="center", va="center", color=colour, fontsize=7)
        figure.colorbar(image, ax=panels, label="Jaccard index of the heads before the elbow", shrink=0.8)
        figure.suptitle(
            f"Heads that abilities share, {table['model'].iloc[0]} (in brackets: heads before the elbow; with q < .05)",
            fontsize=10,
        )
    return figure


def _counts(part: pd.DataFrame) -> dict[str, str]:
    """Of each ability the heads before the elbow and, where there is a test, those with q < .05."""
    counts = {}
    for row in part.drop_duplicates("task").to_dict("records"):
        tested = row.get("significant")
        counts[row["task"]] = (
            f"{row['heads']}" if tested is None or pd.isna(tested) else f"{row['heads']}; {tested}"
        )
    return counts


def _short(value: float) -> str:
    """Two digits without the zero before the point; only the same sets are 1.

    >>> [_short(value) for value in (0.0, 0.256, 0.997, 1.0)]
    ['.00', '.26', '>.99', '1']
    """
    if np.isnan(value):
        return "–"
    return "1" if value == 1 else ">.99" if value > 0.99 else f"{value:.2f}"[1:]


def _ticks(panel: Any, shape: tuple[int, int]) -> None:
    from matplotlib.ticker import MaxNLocator

    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    panel.yaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))
    panel.set_xlim(-0.5, shape[1] - 0.5)
    panel.set_ylim(shape[0] - 0.5, -0.5)


def _label_outer(panels: Any, count: int) -> None:
    """Axis names at the left and below the lowest panel of each column."""
    columns = panels.shape[1]
    for number, panel in enumerate(panels.flat[:count]):
        if number % columns == 0:
            panel.set_ylabel("Layer")
        lowest = number + columns >= count
        if lowest:
            panel.set_xlabel("Head")
        panel.tick_params(labelbottom=lowest)


def _bar(
    figure: Any, panels: Any, image: Any, table: pd.DataFrame, top: float, step: float, signed: bool
) -> None:
    ticks = np.arange(round(top / step) + 1) * step
    if signed:
        ticks = np.unique(np.round(np.concatenate([-ticks[::2], ticks[::2], [-top, top]]), 12))
        # Next to the end a tick of the coarser step would run into it.
        ticks = np.array([t for t in ticks if abs(t) in (0, top) or top - abs(t) > 1.5 * step])
    places = max(0, -math.floor(math.log10(step) + 1e-9) + (0 if _whole(step) else 1))
    labels = [f"{tick:.{places}f}".replace("-", "−") for tick in ticks]
    scores = table["score"].to_numpy(dtype=float)
    if np.nanmax(scores) > top:
        labels[-1] = f"≥ {labels[-1]}" if signed else f"{labels[-1]}+"
    if signed and np.nanmin(scores) < -top:
        labels[0] = f"≤ {labels[0]}"
    bar = figure.colorbar(image, ax=panels, fraction=0.03, pad=0.015, aspect=35)
    bar.set_ticks(ticks, labels=labels)
    bar.outline.set_visible(False)
    unit = f" ({table['metric'].iloc[0]})" if "metric" in table else ""
    bar.set_label(f"Heads Importance{unit}" + ("; blue helps, red hinders" if signed else ""))


def _whole(step: float) -> bool:
    """Whether the step is one digit (0.002) and not two (0.0025)."""
    return len(f"{step:e}".split("e")[0].rstrip("0").rstrip(".").replace(".", "")) == 1
