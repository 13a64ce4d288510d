"""Joint effects of heads: the interaction matrix, effects given a removed set, joint removal, freezing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import (
    Axis,
    Bars,
    Cells,
    Chart,
    Label,
    Mark,
    Panel,
    Rule,
    Scale,
    axis_range,
    curve,
    diagonal,
    names_axis,
    points,
)
from headwise.charts.heatmap import importance_scale, score_unit
from headwise.charts.words import shortened, span, under
from headwise.names import component_numbers
from headwise.tables.frames import LEVEL, groups, head_names

BACKUP, OTHER = "#d95f02", "#7f8fa6"
SERIES = {
    "greedy": ("greedy order", "#2166ac", "solid"),
    "single": ("order of single effects", "#d95f02", "dash"),
    "random": ("random heads", "#737373", "dot"),
}
"""Name, colour and dash of each curve of joint removal."""
FROZEN = {
    "none": "nothing",
    "backups": "backups",
    "random": "random heads,\nsame layers",
    "all": "all other\nheads",
}
_NAMED = 8
"""Backups with a name in the chart of effects."""


def interaction_chart(table: pd.DataFrame, *, order: str = "layer") -> Chart:
    """The interaction matrix of one model and task; for one set with many heads, the effects given the set."""
    first = table.iloc[0]
    title = f"Interactions on {first['task']}, {first['model']}, n = {span(table['n'])}{under(table)}"
    if table["a"].nunique() == 1 and len(table) > 1:
        rows = table.rename(columns={"effect_b": "single"})
        panel = effects_panel(
            rows.assign(backup=_clear(rows)), list(rows["b"]), shortened(str(first["a"]), 24)
        )
        return Chart(title=title, panels=[panel], size=(6.4, 5.4), legend="right", height=420)
    panel = pairs_panel(table, interaction_scale(table), order)
    side = 2.2 + 0.16 * len(panel.y.names or ())
    return Chart(title=title, panels=[panel], size=(side + 1.2, side), height=560)


def _clear(rows: pd.DataFrame) -> pd.Series:
    """Whether a head's effect is larger where the set is removed (q < .05)."""
    return (rows["q"] < LEVEL) & (rows["interaction"] > 0)


# ---- the matrix -----------------------------------------------------------------------------------------------------


def interaction_scale(table: pd.DataFrame) -> Scale:
    label = f"Interaction{score_unit(table)}; blue: back each other up, red: need each other"
    return replace(importance_scale(table["interaction"], True, ""), label=label)


def pairs_panel(table: pd.DataFrame, scale: Scale, order: str, **fields: Any) -> Panel:
    """The pairs of a table as a symmetric matrix; pairs with q < .05 carry a dot."""
    square = square_of(table, "interaction")
    names = list(square.index) if order == "layer" else cluster_order(square)
    values = square.loc[names, names].to_numpy()
    q = square_of(table, "q").loc[names, names].to_numpy()
    rows, columns = np.nonzero(q < LEVEL)
    marks: list[Mark] = [Cells(values=values, scale=scale, square=True)]
    if len(rows):
        marks.append(points(columns, rows, size=1.6))
    look: dict[str, Any] = {"size": 6 if len(names) > 24 else 7}
    return Panel(
        title=fields.pop("title", "By layer" if order == "layer" else "By cluster"),
        note="dot: q < .05" if len(rows) else "",
        marks=marks,
        x=names_axis(names, angle=90, **look),
        y=names_axis(names, down=True, **look),
        **fields,
    )


def square_of(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """A column of a table of pairs as a symmetric matrix, units by layer and head."""
    units = set(table["a"]) | set(table["b"])
    names = sorted(units, key=lambda name: [component_numbers(head) or (-1, -1) for head in name.split("+")])
    places = {name: number for number, name in enumerate(names)}
    values = np.full((len(names), len(names)), np.nan)
    a, b = (table[side].map(places).to_numpy() for side in ("a", "b"))
    values[a, b] = values[b, a] = table[column]
    return pd.DataFrame(values, index=names, columns=names)


def cluster_order(square: pd.DataFrame) -> list[str]:
    """The units with those that back each other up side by side: leaves of average linkage on the interactions."""
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    values = np.nan_to_num(square.to_numpy(dtype=float))
    if len(values) < 3:
        return list(square.index)
    distance = values.max() - values
    np.fill_diagonal(distance, 0.0)
    flat = squareform(distance, checks=False)
    return [square.index[i] for i in leaves_list(optimal_leaf_ordering(linkage(flat, "average"), flat))]


# ---- effects given a set --------------------------------------------------------------------------------------------


def effects_panel(table: pd.DataFrame, names: Sequence[str], removed: str, **fields: Any) -> Panel:
    """Each head's effect where a set is removed against its effect alone; on the diagonal the set changes nothing.

    table: `single`, `conditional`, `backup`, and where there are any the bounds `conditional_lo`, `conditional_hi`.
    """
    table = table.assign(name=list(names))
    backups = table["backup"].to_numpy(dtype=bool)
    bounds = [table.loc[backups, name] for name in ("conditional_lo", "conditional_hi") if name in table]
    limits = axis_range(table["single"], table["conditional"], *bounds, [0.0], room=0.08) or (0.0, 1.0)
    marks: list[Mark] = [Rule(at=0), Rule(at=0, of="x"), diagonal(limits, dash="dash", width=0.9)]
    for rows, label, colour in ((table[~backups], "other heads", OTHER), (table[backups], "backups", BACKUP)):
        look: dict[str, Any] = {"name": label, "colour": colour}
        if label == "backups" and "conditional_lo" in rows:
            look |= {"lo": rows["conditional_lo"], "hi": rows["conditional_hi"]}
        if len(rows):
            marks.append(points(rows["single"], rows["conditional"], words=list(rows["name"]), **look))
    marks += _names(table[backups], limits)
    unit = score_unit(table)
    return Panel(
        title=fields.pop("title", "Effect of each head"),
        marks=marks,
        x=Axis(label=f"Effect alone{unit}", limits=limits),
        y=Axis(label=f"Effect with {removed} removed{unit}", limits=limits),
        **fields,
    )


def _names(backups: pd.DataFrame, limits: tuple[float, float]) -> list[Mark]:
    """Names beside the backups that are farthest above the diagonal, as far as they do not cover one another."""
    width = limits[1] - limits[0]
    named: list[dict[Any, Any]] = []
    order = (backups["conditional"] - backups["single"]).sort_values(ascending=False).index
    for row in backups.loc[order].to_dict("records"):
        covered = any(
            abs(row["single"] - other["single"]) < 0.12 * width
            and abs(row["conditional"] - other["conditional"]) < 0.04 * width
            for other in named
        )
        if not covered and len(named) < _NAMED:
            named.append(row)
    where: dict[str, Any] = {"across": "left", "up": "bottom", "shift": (4, 2), "size": 7}
    return [
        Label(x=float(row["single"]), y=float(row["conditional"]), text=str(row["name"]), **where)
        for row in named
    ]


def _per_model(
    table: pd.DataFrame,
    panel: Callable[[str, pd.DataFrame], Panel],
    title: str,
    size: tuple[float, float, float],
    **fields: Any,
) -> Chart:
    """A panel for each model, side by side. size: inches of a panel, of what is beside the panels, and their height."""
    panels = [panel(str(model), rows) for model, rows in groups(table, "model")]
    title += f", {table['task'].iloc[0]}, n = {span(table['n'])}{under(table)}"
    width, beside, height = size
    paper = (width * len(panels) + beside, height)
    return Chart(title=title, panels=panels, size=paper, columns=len(panels), **fields)


def effects_chart(backups: pd.DataFrame, primary: dict[str, str], *, name: str) -> Chart:
    """Single against conditional effect of every candidate. primary: the set of each model."""

    def panel(model: str, rows: pd.DataFrame) -> Panel:
        rows, title = rows.reset_index(drop=True), f"{model}\n{primary[model]} removed"
        return effects_panel(rows, head_names(rows), "the primary set", title=title, model=model)

    title = "Effect of each head alone and with the primary set removed"
    caption = (
        "On the diagonal a head has the same effect in both cases. Above it the head matters more once the primary set "
        "is gone: a backup, where the difference has q < .05 and is large enough."
    )
    look: dict[str, Any] = {"legend": "right", "height": 400}
    return _per_model(backups, panel, title, (5.2, 1.2, 5.2), name=name, caption=caption, **look)


# ---- joint removal and freezing -------------------------------------------------------------------------------------


def removal_chart(curves: pd.DataFrame, *, name: str) -> Chart:
    """The metric as more heads are removed together, by three orders."""
    caption = (
        "Greedy: each head is the one whose removal costs most given the heads removed before. Orders were found on "
        "the other half of the examples."
    )
    fields = {"name": name, "legend": "right", "caption": caption}
    return _per_model(curves, _removal, "Joint removal of heads", (4.6, 1.8, 3.6), **fields)


def _removal(model: str, rows: pd.DataFrame) -> Panel:
    of = dict(groups(rows, "series"))
    marks = [
        curve(of[series], name=label, colour=colour, dash=dash, marker="circle", size=3)
        for series, (label, colour, dash) in SERIES.items()
        if series in of
    ]
    ticks = sorted(rows["k"].unique())[:: 1 + rows["k"].max() // 13]
    x = Axis(label="Number of removed heads", ticks=ticks)
    y = Axis(label=str(rows["metric"].iloc[0]), grid=True)
    return Panel(title=model, marks=marks, x=x, y=y, model=model)


def freezing_chart(freezing: pd.DataFrame, *, name: str) -> Chart:
    """What removing the primary set costs while other heads keep their plain output."""
    caption = (
        "A frozen head cannot react when the primary set is removed. The line is the cost of the removal plus the "
        "repair (the interaction of set and backups). Where freezing the backups reaches the line, the repair was "
        "their reaction. Random heads of the same layers do not reach it."
    )
    return _per_model(freezing, _costs, "Proof by freezing", (4.4, 0.6, 3.8), name=name, caption=caption)


def _costs(model: str, of_model: pd.DataFrame) -> Panel:
    rows: Any = of_model.set_index("frozen").reindex(list(FROZEN))
    hover = [
        f"{row.effect:.3g} [{row.lo:.3g}, {row.hi:.3g}]"
        + (f", {row.share:.0%} of the repair gone" if np.isfinite(row.share) else "")
        for row in rows.itertuples()
    ]
    look: dict[str, Any] = {"colours": [OTHER, BACKUP, "#c8c8c8", "#999999"], "hover": hover}
    bars = Bars(at=range(len(rows)), values=rows["effect"], lo=rows["lo"], hi=rows["hi"], **look)
    x = names_axis(FROZEN.values(), label="Heads held at their plain output")
    y = Axis(label=f"Cost of removing the set ({rows['metric'].iloc[0]})")
    without = float(rows.loc["none", ["effect", "repair"]].sum())
    look = {"across": "right", "up": "bottom", "shift": (0, 2)}
    label = Label(x=len(rows) - 0.55, y=without, text="cost plus repair", **look)
    marks: list[Mark] = [Rule(at=0), bars, Rule(at=without, colour=BACKUP), label]
    return Panel(title=model, marks=marks, x=x, y=y, model=model)
