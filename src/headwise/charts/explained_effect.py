"""How few heads explain a behaviour: explained effect against the number of heads kept, one panel per task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import INK, Axis, Chart, Line, Mark, Panel, Text, columns_of, curve, grid_shape
from headwise.charts.words import shortened, task_title

EXPLAINED = "explained_effect"
COLOURS = (
    {"dense": "#1f77b4", "sparse": "#ff7f0e", "control": "#9467bd"},  # blue, orange, purple
    {"dense": "#2ca02c", "sparse": "#e377c2", "control": "#8c564b"},  # green, pink, brown
    {"dense": "#17becf", "sparse": "#d62728", "control": "#bcbd22"},
)
"""Of the first pair of models, the second, the third; then from the start."""
CONTROLS = {"random": ("random heads", "solid"), "random_layer": ("random heads, same layers", "dash")}
"""Name and dash of each kind of control. A control never holds one of the order's own first k heads."""
_CONTROL_LOOK: dict[str, Any] = {"colour": "#a6a6a6", "width": 0.8, "band": 0.15, "common": True}
FEW = 0.1
"""Share of the heads: where all curves reach the threshold before it, the axis of heads is a square root."""
_LONGEST_NAME = 30
_ACTIONS = {
    "keep": ("Kept", "0 is no head kept, 1 the full model; all other heads are ablated."),
    "mask": ("Masked", "0 is no head masked, 1 the effect of masking all; masked heads are ablated."),
}
"""Word on the x axis, and what 0 and 1 mean."""


def explained_chart(
    curves: pd.DataFrame,
    *,
    members: pd.DataFrame | None = None,
    ratios: pd.DataFrame | None = None,
    threshold: float = 0.9,
    orders: Mapping[tuple[str, str], Sequence[str]] | None = None,
    name: str = "",
) -> Chart:
    """One panel per task: the explained effect of each model's first k heads, with its interval over examples.

    curves: the rows of `curves` of one order, with its controls: thin grey, the mean of their draws and an interval
        over draws and examples; they end where too few heads are left besides the order's own.
    members: which models form a pair, and in which role; by default each model stands alone.
    ratios: a dashed segment joins the dense and the sparse model's curve at the threshold and carries the ratio of
        their circuit sizes, with its interval.
    orders: the heads in order by task and model, so that the page marks a chosen one.
    """
    table = curves[curves["metric"] == EXPLAINED]
    members = _members(table) if members is None else members[members["model"].isin(table["model"])]
    few, note = few_heads(table, threshold), moved_note(table)
    panels = []
    for task, together in members.groupby("task", sort=False):
        panel = _panel(table[table["task"] == task], together, orders or {}, few, note)
        if ratios is not None and len(ratios):
            segments = _segments(ratios[ratios["task"] == task], threshold, panel.x)
            panel = replace(panel, marks=[*panel.marks, *segments])
        panels.append(panel)
    columns, rows = grid_shape(len(panels))
    series = next((str(series) for series in table["series"] if series not in CONTROLS), "order")
    return Chart(
        name=name,
        title=f"Explained effect (faithfulness) of the top k heads, ranked by {series}",
        heading="",
        panels=panels,
        caption=f"{_ACTIONS[table['action'].iloc[0]][1]} Bands are 95 % CIs over examples. "
        + _about_controls(table, note)
        + "The dashed segment joins two models where they first reach the threshold; beside it is the ratio of their "
        "circuit sizes.",
        size=(4.6, 3.2) if len(panels) == 1 else (2.75 * columns + 0.4, 2.55 * rows + 0.2),
        page_columns=2,
        legend="bottom",
        legend_columns=2,
        table=_mean_of_draws(table)[["model", "task", "series", "k", "value", "lo", "hi", "n"]],
    )


def _members(table: pd.DataFrame) -> pd.DataFrame:
    alone = table[["task", "model"]].drop_duplicates().reset_index(drop=True)
    return alone.assign(pair=alone.groupby("task").cumcount(), role="dense")


def _panel(
    table: pd.DataFrame,
    members: pd.DataFrame,
    orders: Mapping[tuple[str, str], Sequence[str]],
    few: bool,
    note: str,
) -> Panel:
    task, total = str(table["task"].iloc[0]), max(int(table["k"].max()), 1)
    curves = table[~table["series"].isin(CONTROLS)]
    models = [str(model) for model in members["model"]]
    lines = [
        _curve(curves[curves["model"] == row["model"]].sort_values("k"), row)
        for row in members.to_dict("records")
    ]
    ordered = {line.name: model for line, model in zip(lines, models, strict=True) if (task, model) in orders}
    label = f"Number of Heads {_ACTIONS[table['action'].iloc[0]][0]}"
    x = Axis(label=label, limits=(0, total))
    if few:
        x = Axis(label=f"{label} (√ axis)", limits=(0, total), scale="root", ticks=root_ticks(total))
    return Panel(
        title=task_title(task),
        marks=[*_controls(table, note), *lines],
        x=x,
        y=Axis(label="Explained Effect", limits=effect_range(table), ticks=(0, 0.5, 1)),
        legend="lower right",
        model=models[0] if len(models) == 1 else "",
        orders={name: orders[task, model] for name, model in ordered.items()},
        owners=ordered,
    )


def _curve(rows: pd.DataFrame, member: Mapping[Any, Any]) -> Line:
    colour = COLOURS[member["pair"] % len(COLOURS)][member["role"]]
    name = shortened(Path(member["model"]).name, _LONGEST_NAME)
    if rows["value"].isna().all():
        return Line(x=[], y=[], name=f"{name}: no effect to explain", colour=colour)
    dash = "dashdot" if member["role"] == "control" else "solid"
    examples = columns_of(rows, "model", "task", "series", "order", "by", "reference")
    return curve(rows, name=name, colour=colour, dash=dash, width=1.6, examples=examples)


def _controls(table: pd.DataFrame, note: str) -> list[Line]:
    """Thin and grey, with one legend entry for all models: which model a control is of does not matter."""
    lines = []
    for kind, (label, dash) in CONTROLS.items():
        name = f"{label} ({note})" if note and kind == "random_layer" else label
        rows = _mean_of_draws(table[(table["series"] == kind) & table["value"].notna()])
        for model, part in rows.groupby("model", sort=False):
            mean = part.groupby("k", as_index=False)[["value", "lo", "hi"]].mean()
            lines.append(curve(mean, name=name, dash=dash, hover_prefix=str(model), **_CONTROL_LOOK))
    return lines


def _mean_of_draws(table: pd.DataFrame) -> pd.DataFrame:
    """The rows without single draws of a control where the mean over its draws is there, with its interval."""
    if "draw" not in table or table.empty:
        return table
    keys = [table[key] for key in ("model", "task", "order", "series", "metric") if key in table]
    pooled = table["draw"].isna().groupby(keys, sort=False).transform("any")
    return table[table["draw"].isna() | ~pooled]


def moved_note(table: pd.DataFrame) -> str:
    """How many heads of the layer-matched draws came from other layers, at most; empty where none did."""
    if "moved" not in table:
        return ""
    rows = table[(table["series"] == "random_layer") & (table["moved"].fillna(0) > 0)]
    if rows.empty:
        return ""
    largest = rows.iloc[int(rows["moved"].astype(int).argmax())]
    return f"up to {int(largest['moved'])} of {int(largest['k'])} from the nearest layers"


def _about_controls(table: pd.DataFrame, note: str) -> str:
    draws = table.loc[table["series"].isin(CONTROLS), "draw"].nunique() if "draw" in table else 0
    moved = f" (in the same layers: {note}, where a layer has too few others)" if note else ""
    controls = (
        f"Grey: the mean of {draws} random draws of k other heads, never one of the curve's own first k{moved}, with "
        "95 % CIs over draws and examples; it ends where too few other heads are left. "
    )
    return controls if draws else ""


def few_heads(table: pd.DataFrame, threshold: float) -> bool:
    """Whether every curve reaches the threshold so early that a linear axis would hide its rise."""
    curves = table[~table["series"].isin(CONTROLS)]
    reached = curves[curves["value"] >= threshold].groupby(["model", "task"])["k"].min()
    return len(reached) > 0 and bool(reached.max() < FEW * curves["k"].max())


def effect_range(table: pd.DataFrame) -> tuple[float, float]:
    """The explained effect from 0 to 1, and as much beyond as the curves need."""
    curves = table[~table["series"].isin(CONTROLS)][["value", "lo", "hi"]].to_numpy(dtype=float)
    values = table["value"].to_numpy(dtype=float)
    curves, values = curves[np.isfinite(curves)], values[np.isfinite(values)]
    low = min(0.0, max(curves.min(initial=0.0), -0.5), max(values.min(initial=0.0), -0.25))
    return float(low) - 0.06, float(min(max(1.0, curves.max(initial=1.0)), 2.5)) + 0.08


def root_ticks(total: int) -> list[int]:
    """Ticks of a square-root axis, far enough apart for their numbers; none so near the last that they touch."""
    ticks = [tick for tick in (0, 1, 5, 20, 50, 100, 200, 500, 1000, 2000) if tick < 0.75 * total]
    return [*ticks, total]


def _segments(ratios: pd.DataFrame, threshold: float, x: Axis) -> list[Mark]:
    """A segment from curve to curve; its ratio where the curves leave room: to the right below, or left above."""
    known = ratios[(ratios["compared"] == "dense/sparse") & ratios["ratio"].notna()]
    _, total = x.limits or (0, 1)
    marks: list[Mark] = []
    for number, row in enumerate(known.to_dict("records")):
        ends = [row["k"], row["other_k"]]
        if not np.isfinite(ends).all():
            continue
        marks.append(Line(x=ends, y=[threshold] * 2, dash="dash", width=1.2, marker="circle", size=3.2))
        interval = f"\n[{row['lo']:.1f}, {row['hi']:.1f}]" if np.isfinite(row["lo"]) else ""
        share = max(ends) / total
        below = (math.sqrt(share) if x.scale == "root" else share) < 0.7
        side: dict[str, Any] = {"x": min(ends), "across": "right", "up": "bottom", "shift": (-4, 3)}
        if below:
            side = {"x": max(ends), "across": "left", "up": "top", "shift": (4, -5 - 24 * number)}
        colour = COLOURS[row["pair"] % len(COLOURS)]["dense"] if len(known) > 1 else INK
        marks.append(
            Text(y=threshold, text=f"{row['ratio']:.1f}x{interval}", colour=colour, box=True, **side)
        )
    return marks
