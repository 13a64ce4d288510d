"""How few heads explain a behaviour: explained effect against the number of heads kept, one panel per task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import INK, Axis, Chart, Line, Mark, Panel, Text
from headwise.charts.words import shortened, task_title

COLUMNS = 4
EXPLAINED = "explained_effect"
COLOURS = (
    {"dense": "#1f77b4", "sparse": "#ff7f0e", "control": "#9467bd"},  # blue, orange, purple
    {"dense": "#2ca02c", "sparse": "#e377c2", "control": "#8c564b"},  # green, pink, brown
    {"dense": "#17becf", "sparse": "#d62728", "control": "#bcbd22"},
)
"""Of the first pair, the second, the third; then again."""
CONTROLS = {"random": ("random heads", "solid"), "random_layer": ("random heads, same layers", "dash")}
"""Of each kind of control its name and its line. None holds one of the order's own first k heads."""
FEW = 0.1
"""Share of the heads: where all curves reach the threshold before it, the axis of heads is a square root."""
_LONGEST_NAME = 30
_MASKED = "0 is no head masked, 1 what is lost when all are; a masked head is"


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
    ratios: a dashed segment joins the dense and the sparse model's curve at the threshold and says how many
        times more heads the dense one needs, with its interval.
    orders: the heads in order by task and model, so that the page marks a chosen one.
    """
    table = curves[curves["metric"] == EXPLAINED]
    shown = _members(table) if members is None else members[members["model"].isin(table["model"])]
    tasks = list(dict.fromkeys(shown["task"]))
    few, note = few_heads(table, threshold), moved_note(table)
    panels = []
    for task in tasks:
        own, together = table[table["task"] == task], shown[shown["task"] == task]
        found = ratios[ratios["task"] == task] if ratios is not None and len(ratios) else None
        panels.append(_panel(own, together, found, threshold, few, note, orders or {}))
    columns = min(COLUMNS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    kept = table["action"].iloc[0] == "keep"
    series = next((str(name) for name in table["series"] if name not in CONTROLS), "order")
    return Chart(
        name=name,
        title=f"How much of the behaviour the first k heads explain, by {series}",
        heading="",
        panels=panels,
        caption=("0 is no head kept, 1 the whole model; every other head is" if kept else _MASKED)
        + " replaced by its reference. Bands are 95 % over examples. "
        + _about_controls(table, note)
        + "The dashed segment joins two models where they first reach the threshold and carries the ratio of their "
        "heads.",
        size=(4.6, 3.2) if len(tasks) == 1 else (2.75 * columns + 0.4, 2.55 * rows + 0.2),
        columns=columns,
        page_columns=2,
        legend="bottom",
        legend_columns=2,
        least=400,
        height=300,
        table=_mean_of_draws(table)[["model", "task", "series", "k", "value", "lo", "hi", "n"]],
    )


def _members(table: pd.DataFrame) -> pd.DataFrame:
    alone = table[["task", "model"]].drop_duplicates().reset_index(drop=True)
    return alone.assign(pair=alone.groupby("task").cumcount(), role="dense")


def _panel(
    table: pd.DataFrame,
    members: pd.DataFrame,
    ratios: pd.DataFrame | None,
    threshold: float,
    few: bool,
    note: str,
    orders: Mapping[tuple[str, str], Sequence[str]],
) -> Panel:
    task = str(table["task"].iloc[0])
    most = max(int(table["k"].max()), 1)
    curves = table[~table["series"].isin(CONTROLS)]
    marks: list[Mark] = [*_controls(table, note)]
    own_orders, owners = {}, {}
    for row in members.to_dict("records"):
        line = _curve(curves[curves["model"] == row["model"]].sort_values("k"), row)
        marks.append(line)
        if order := orders.get((task, str(row["model"]))):
            own_orders[line.name], owners[line.name] = order, str(row["model"])
    if ratios is not None:
        marks += _segments(ratios, threshold, most, few)
    what = "Number of Heads Kept" if table["action"].iloc[0] == "keep" else "Number of Heads Masked"
    root: dict[str, Any] = {"scale": "root", "ticks": root_ticks(most)} if few else {}
    return Panel(
        title=task_title(task),
        marks=marks,
        x=Axis(label=f"{what} (√ axis)" if few else what, limits=(0, most), **root),
        y=Axis(label="Explained Effect", limits=effect_range(table), ticks=(0, 0.5, 1)),
        legend="lower right",
        model=str(members["model"].iloc[0]) if len(members) == 1 else "",
        orders=own_orders,
        owners=owners,
    )


def _curve(own: pd.DataFrame, member: Mapping[Any, Any]) -> Line:
    colour = COLOURS[member["pair"] % len(COLOURS)][member["role"]]
    name = shortened(Path(member["model"]).name, _LONGEST_NAME)
    if own["value"].isna().all():
        return Line(x=[], y=[], name=f"{name}: no effect to explain", colour=colour)
    dash = "dashdot" if member["role"] == "control" else "solid"
    about: dict[str, Any] = {"lo": own["lo"], "hi": own["hi"], "dash": dash, "width": 1.6}
    return Line(x=own["k"], y=own["value"], name=name, colour=colour, **about)


def _controls(table: pd.DataFrame, note: str) -> list[Line]:
    """Thin and grey. One entry of the legend for all models: which is which does not matter, they are chance."""
    lines = []
    for kind, (label, dash) in CONTROLS.items():
        name = f"{label} ({note})" if note and kind == "random_layer" else label
        own = _mean_of_draws(table[(table["series"] == kind) & table["value"].notna()])
        for model, rows in own.groupby("model", sort=False):
            mean = rows.groupby("k", as_index=False)[["value", "lo", "hi"]].mean()
            look: dict[str, Any] = {
                "colour": "#a6a6a6",
                "dash": dash,
                "width": 0.8,
                "band": 0.15,
                "common": True,
            }
            about: dict[str, Any] = {
                "lo": mean["lo"],
                "hi": mean["hi"],
                "name": name,
                "hover_prefix": str(model),
            }
            lines.append(Line(x=mean["k"], y=mean["value"], **about, **look))
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
    own = table[(table["series"] == "random_layer") & (table["moved"].fillna(0) > 0)]
    if own.empty:
        return ""
    most = own.iloc[int(own["moved"].astype(int).argmax())]
    return f"up to {int(most['moved'])} of {int(most['k'])} from the nearest layers"


def _about_controls(table: pd.DataFrame, note: str) -> str:
    numbers = table.loc[table["series"].isin(CONTROLS), "draw"] if "draw" in table else pd.Series(dtype=float)
    if not numbers.nunique():
        return ""
    moved = f" (in the same layers: {note}, where a layer has too few others)" if note else ""
    return (
        f"Grey: the mean of {numbers.nunique()} draws of as many other heads, never one of the curve's own first "
        f"k{moved}, with 95 % bands over draws and examples; it ends where too few other heads are left. "
    )


def few_heads(table: pd.DataFrame, threshold: float) -> bool:
    """Whether every curve is over the threshold so early that a plain axis would hide how it got there."""
    own = table[~table["series"].isin(CONTROLS)]
    reached = own[own["value"] >= threshold].groupby(["model", "task"])["k"].min()
    return len(reached) > 0 and bool(reached.max() < FEW * own["k"].max())


def effect_range(table: pd.DataFrame) -> tuple[float, float]:
    """The explained effect from 0 to 1, and as much beyond as the curves need."""
    own = table[~table["series"].isin(CONTROLS)][["value", "lo", "hi"]].to_numpy(dtype=float)
    chance = table["value"].to_numpy(dtype=float)
    own, chance = own[np.isfinite(own)], chance[np.isfinite(chance)]
    low = min(0.0, max(own.min(initial=0.0), -0.5), max(chance.min(initial=0.0), -0.25))
    return float(low) - 0.06, float(min(max(1.0, own.max(initial=1.0)), 2.5)) + 0.08


def root_ticks(most: int) -> list[int]:
    """Numbers on a square-root axis: as far apart as a number is wide, none so near the last that they touch."""
    ticks = [tick for tick in (0, 1, 5, 20, 50, 100, 200, 500, 1000, 2000) if tick < 0.75 * most]
    return [*ticks, most]


def _segments(ratios: pd.DataFrame, threshold: float, most: int, few: bool) -> list[Mark]:
    """A segment from curve to curve; its ratio where the curves leave room: right below, or left above it."""
    found = ratios[(ratios["compared"] == "dense/sparse") & ratios["ratio"].notna()]
    marks: list[Mark] = []
    for number, row in enumerate(found.to_dict("records")):
        ends = [row["k"], row["other_k"]]
        if not np.isfinite(ends).all():
            continue
        marks.append(Line(x=ends, y=[threshold] * 2, dash="dash", width=1.2, marker="circle", size=3.2))
        text = f"{row['ratio']:.1f}x"
        if np.isfinite(row["lo"]):
            text += f"\n[{row['lo']:.1f}, {row['hi']:.1f}]"
        share = max(ends) / most
        below = (math.sqrt(share) if few else share) < 0.7
        colour = COLOURS[row["pair"] % len(COLOURS)]["dense"] if len(found) > 1 else INK
        shift = (4, -5 - 24 * number) if below else (-4, 3)
        side: dict[str, Any] = (
            {"across": "left", "up": "top"} if below else {"across": "right", "up": "bottom"}
        )
        place = max(ends) if below else min(ends)
        marks.append(Text(x=place, y=threshold, text=text, colour=colour, shift=shift, box=True, **side))
    return marks
