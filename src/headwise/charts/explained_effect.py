"""How few heads explain a behaviour: explained effect against the number of heads kept.

One panel per task, and one row of panels per ablation type. Of several orders of a model the chosen one is the thick
line, the others are thin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import INK, Axis, Chart, Label, Line, Mark, Panel, count_axis, curve, grid_shape
from headwise.charts.random_controls import (
    CONTROLS,
    about_controls,
    better_than_all,
    control_lines,
    mean_of_draws,
    moved_note,
)
from headwise.charts.words import joined, shortened, task_title, under
from headwise.names import ablation_name
from headwise.tables.frames import columns_of, distinct, groups

EXPLAINED = "explained_effect"
COLOURS = (
    {"dense": "#1f77b4", "sparse": "#ff7f0e", "control": "#9467bd"},  # blue, orange, purple
    {"dense": "#2ca02c", "sparse": "#e377c2", "control": "#8c564b"},  # green, pink, brown
    {"dense": "#17becf", "sparse": "#d62728", "control": "#bcbd22"},
)
"""Of the first pair of models, the second, the third; then from the start."""
FEW = 0.1
"""Share of the heads: where all thick curves reach the threshold before it, the axis of heads is a square root."""
_LONGEST_NAME = 30
_THICK, _THIN = 1.8, 0.8
_DASHES = ("dash", "dot", "dashdot", "solid")
"""Of the first order as a thin line, the second, the third; then from the start."""
_ACTIONS = {
    "keep": ("Kept", "0 is no head kept, 1 the full model; all other heads are ablated."),
    "mask": ("Masked", "0 is no head masked, 1 the effect of masking all; masked heads are ablated."),
}
"""Word on the x axis, and what 0 and 1 mean."""
Chosen = Mapping[tuple[str, str, str], str]
"""The order of the thick line, by task, model and ablation type."""


def explained_chart(
    curves: pd.DataFrame,
    *,
    members: pd.DataFrame | None = None,
    ratios: pd.DataFrame | None = None,
    threshold: float = 0.9,
    orders: Mapping[tuple[str, str, str], Sequence[str]] | None = None,
    chosen: Chosen | None = None,
    name: str = "",
) -> Chart:
    """One panel per task and ablation type: the explained effect of each model's first k heads, with its interval.

    curves: the rows of `curves` of one or several orders, with the controls of the chosen ones: thin grey, the mean of
        their draws and an interval over draws and examples; they end where too few heads are left besides the order's
        own.
    members: which models form a pair, and in which role; by default each model stands alone.
    ratios: a dashed segment joins the dense and the sparse model's thick curves at the threshold and carries the ratio
        of their circuit sizes, with its interval.
    orders: the heads of the chosen order by task, model and ablation type, so that the page marks a chosen one.
    chosen: by default the first order of each model.
    """
    table = curves[curves["metric"] == EXPLAINED]
    table = table if "reference" in table else table.assign(reference="")
    chosen = _first(table) if chosen is None else chosen
    members = _members(table) if members is None else members[members["model"].isin(table["model"])]
    references, tasks = distinct(table["reference"]), distinct(members["task"])
    note = moved_note(table)
    panels: list[Panel | None] = []
    for reference in references:
        row = _Row(table[table["reference"] == reference], chosen, orders or {}, ratios, threshold, note)
        for task in tasks:
            panels.append(row.panel(task, members[members["task"] == task], len(references) > 1))
    columns, rows = grid_shape(len(tasks)) if len(references) == 1 else (len(tasks), len(references))
    several = table.loc[~table["series"].isin(CONTROLS), "series"].nunique() > 1
    return Chart(
        name=name,
        title=f"Explained effect (faithfulness) of the top k heads, {_ranked_by(table, chosen)}{under(table)}",
        heading="",
        panels=panels,
        caption=f"{_ACTIONS[table['action'].iloc[0]][1]} Bands are 95 % CIs over examples. "
        + ("Thick: the order with the smallest circuit on the other half of the examples. " * several)
        + ("Thin: the other orders. " * several)
        + about_controls(table, note)
        + _better_controls(table)
        + "The dashed segment joins two models where they reach the threshold; beside it is the ratio of their "
        "circuit sizes.",
        size=(4.6, 3.2) if len(panels) == 1 else (2.75 * columns + 0.4, 2.55 * rows + 0.2),
        columns=columns,
        page_columns=2,
        legend="bottom",
        legend_columns=3 if several and len(tasks) > 2 else 2,
        table=mean_of_draws(table)[["model", "task", "reference", "series", "k", "value", "lo", "hi", "n"]],
    )


def _better_controls(table: pd.DataFrame) -> str:
    """That random heads alone do better than all heads of a model, where they do: all heads are 1 by definition."""
    kept = table[table["series"].isin(CONTROLS) & (table["action"] == "keep")]
    what = "with only {k} random heads kept the explained effect rises from"
    return "".join(
        better_than_all(part, (1.0, 1.0), f"{model}, {task_title(task)}", what, lambda value: f"{value:.2f}")
        for (model, task, _), part in groups(mean_of_draws(kept), "model", "task", "reference")
    )


def _first(table: pd.DataFrame) -> Chosen:
    """The first order of each task, model and ablation type."""
    orders = table[~table["series"].isin(CONTROLS)].drop_duplicates(["task", "model", "reference"])
    return {(r["task"], r["model"], r["reference"]): r["series"] for r in orders.to_dict("records")}


def _members(table: pd.DataFrame) -> pd.DataFrame:
    alone = table[["task", "model"]].drop_duplicates().reset_index(drop=True)
    return alone.assign(pair=alone.groupby("task").cumcount(), role="dense")


def _ranked_by(table: pd.DataFrame, chosen: Chosen) -> str:
    every = distinct(table.loc[~table["series"].isin(CONTROLS), "series"])
    if len(every) > 1:
        return f"ranked by {joined(every)}"
    return f"ranked by {(every or distinct(chosen.values()) or ['order'])[0]}"


class _Row:
    """The panels of one ablation type, which share their axes."""

    def __init__(
        self,
        table: pd.DataFrame,
        chosen: Chosen,
        orders: Mapping[tuple[str, str, str], Sequence[str]],
        ratios: pd.DataFrame | None,
        threshold: float,
        note: str,
    ) -> None:
        self.table, self.chosen, self.orders = table, chosen, orders
        self.threshold, self.note = threshold, note
        self.reference = str(table["reference"].iloc[0])
        self.ratios = pd.DataFrame() if ratios is None else ratios
        if "reference" in self.ratios:
            self.ratios = self.ratios[self.ratios["reference"] == self.reference]
        if "chosen" in self.ratios:
            self.ratios = self.ratios[self.ratios["chosen"]]
        keys = zip(table["task"], table["model"], table["reference"], strict=True)
        thick = table["series"] == [chosen.get(key, "") for key in keys]
        self.thick = table[thick]
        self.few, self.y = few_heads(self.thick, threshold), effect_range(self.thick, table)
        self.series = distinct(table.loc[~table["series"].isin(CONTROLS), "series"])

    def panel(self, task: str, members: pd.DataFrame, in_grid: bool) -> Panel | None:
        """The panel of one task; None where the task has no curve of this ablation type."""
        table = self.table[self.table["task"] == task]
        if table.empty:
            return None
        total = max(int(table["k"].max()), 1)
        together = members.to_dict("records")
        lines = [self._thick(row, task) for row in together]
        models = [str(row["model"]) for row in together]
        keys = {line.name: (task, model, self.reference) for line, model in zip(lines, models, strict=True)}
        ordered = {name: key for name, key in keys.items() if key in self.orders}
        label = f"Number of Heads {_ACTIONS[table['action'].iloc[0]][0]}"
        x = count_axis(label, total)
        if self.few:
            x = Axis(label=f"{label} (√ axis)", limits=(0, total), scale="root", ticks=root_ticks(total))
        marks = [*control_lines(table, self.note), *self._thin(table, task, together), *lines]
        title = task_title(task)
        return Panel(
            title="" if in_grid else title,
            row=ablation_name(self.reference) if in_grid else "",
            column=title if in_grid else "",
            marks=[*marks, *self._segments(task, x)],
            x=x,
            y=Axis(label="Explained Effect", limits=self.y, ticks=(0, 0.5, 1)),
            legend="lower right",
            model=models[0] if len(models) == 1 else "",
            orders={name: self.orders[key] for name, key in ordered.items()},
            owners={name: key[1] for name, key in ordered.items()},
        )

    def _thick(self, member: Mapping[Any, Any], task: str) -> Line:
        mine = (self.thick["model"] == member["model"]) & (self.thick["task"] == task)
        rows = self.thick[mine].sort_values("k")
        name = shortened(member["model"], _LONGEST_NAME, set(self.thick["model"]))
        colour = COLOURS[member["pair"] % len(COLOURS)][member["role"]]
        if rows["value"].isna().all():
            # Two points that are not drawn: the page has no legend entry for a line without points.
            nowhere = [math.nan] * 2
            return Line(x=nowhere, y=nowhere, name=f"{name}: no effect to explain", colour=colour)
        name += f" ({rows['series'].iloc[0]})" * (len(self.series) > 1)
        examples = columns_of(rows, "model", "task", "series", "order", "by", "reference")
        return curve(rows, name=name, colour=colour, width=_THICK, examples=examples)

    def _thin(self, table: pd.DataFrame, task: str, members: Sequence[Mapping[Any, Any]]) -> list[Line]:
        """The orders that were not chosen, after a black line each for the legend: their colours are the models'."""
        keys, lines = [], []
        for series, dash in zip(self.series, _DASHES * len(self.series), strict=False):
            look: dict[str, Any] = {
                "name": f"ranked by {series}",
                "dash": dash,
                "width": _THIN,
                "common": True,
            }
            for member in members:
                rows = table[(table["model"] == member["model"]) & (table["series"] == series)].sort_values(
                    "k"
                )
                is_chosen = self.chosen.get((task, member["model"], self.reference)) == series
                if rows["value"].isna().all() or is_chosen:
                    continue
                colour = COLOURS[member["pair"] % len(COLOURS)][member["role"]]
                examples = columns_of(rows, "model", "task", "series", "order", "by", "reference")
                prefix = str(member["model"])
                whose: dict[str, Any] = {"colour": colour, "hover_prefix": prefix, "examples": examples}
                lines.append(curve(rows, band=0, **whose, **look))
            if any(line.name == look["name"] for line in lines):
                keys.append(Line(x=[math.nan] * 2, y=[math.nan] * 2, colour=INK, **look))
        return [*keys, *lines]

    def _segments(self, task: str, x: Axis) -> list[Mark]:
        """A segment from curve to curve; its ratio where the curves leave room: to the right below, or left above."""
        if self.ratios.empty:
            return []
        pairs = self.ratios[(self.ratios["task"] == task) & (self.ratios["compared"] == "dense/sparse")]
        # Circuits are as large as where the curve stays above the threshold; earlier runs may not have it.
        stays = "stays_ratio" in pairs
        names = (
            ["stays", "other_stays", "stays_ratio", "stays_lo", "stays_hi"]
            if stays
            else ["k", "other_k", "ratio", "lo", "hi"]
        )
        found = pairs[pairs[names[2]].notna()]
        _, total = x.limits or (0, 1)
        marks: list[Mark] = []
        for number, row in enumerate(found.to_dict("records")):
            *ends, ratio, lo, hi = (row[name] for name in names)
            if not np.isfinite(ends).all():
                continue
            marks.append(
                Line(x=ends, y=[self.threshold] * 2, dash="dash", width=1.2, marker="circle", size=3.2)
            )
            interval = f"\n[{lo:.1f}, {hi:.1f}]" if np.isfinite(lo) else ""
            share = max(ends) / total
            below = (math.sqrt(share) if x.scale == "root" else share) < 0.7
            side: dict[str, Any] = {"x": min(ends), "across": "right", "up": "bottom", "shift": (-4, 3)}
            if below:
                side = {"x": max(ends), "across": "left", "up": "top", "shift": (4, -5 - 24 * number)}
            colour = COLOURS[row["pair"] % len(COLOURS)]["dense"] if len(found) > 1 else INK
            marks.append(
                Label(y=self.threshold, text=f"{ratio:.1f}x{interval}", colour=colour, box=True, **side)
            )
        return marks


def few_heads(thick: pd.DataFrame, threshold: float) -> bool:
    """Whether every thick curve reaches the threshold so early that a linear axis would hide its rise."""
    reached = thick[thick["value"] >= threshold].groupby(["model", "task"])["k"].min()
    return len(reached) > 0 and bool(reached.max() < FEW * thick["k"].max())


def effect_range(thick: pd.DataFrame, table: pd.DataFrame) -> tuple[float, float]:
    """The explained effect from 0 to 1, and as much beyond as the thick curves need."""
    curves = thick[["value", "lo", "hi"]].to_numpy(dtype=float)
    values = table["value"].to_numpy(dtype=float)
    curves, values = curves[np.isfinite(curves)], values[np.isfinite(values)]
    low = min(0.0, max(curves.min(initial=0.0), -0.5), max(values.min(initial=0.0), -0.25))
    return float(low) - 0.06, float(min(max(1.0, curves.max(initial=1.0)), 2.5)) + 0.08


def root_ticks(total: int) -> list[int]:
    """Ticks of a square-root axis, far enough apart for their numbers; none so near the last that they touch."""
    ticks = [tick for tick in (0, 1, 5, 20, 50, 100, 200, 500, 1000, 2000) if tick < 0.75 * total]
    return [*ticks, total]
