"""How few heads explain a behaviour: explained effect against the number of heads kept, and what a mean leaves out.

One column of panels per task: the mean explained effect; below it how far the kept heads follow single examples, and
the family of examples that they explain least. Of several orders of a model the chosen one is the thick line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import (
    GREY,
    INK,
    Axis,
    Chart,
    Label,
    Line,
    Mark,
    Panel,
    Rule,
    count_axis,
    curve,
    grid_shape,
    key,
)
from headwise.charts.random_controls import (
    CONTROLS,
    about_controls,
    better_than_all,
    control_lines,
    mean_of_draws,
    moved_note,
)
from headwise.charts.words import joined, shortened, task_title, under
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
_THICK, _THIN = 1.6, 0.8
PAPER_WIDTH = 7.2
"""Inches of a figure across a page."""
R2, LOWEST = "r2", "lowest_family"
"""Columns of the curves, and rows of panels, beside the explained effect."""
_ROWS = {
    EXPLAINED: (4, 0.0, ""),
    R2: (3, 1.6, "R² = 1 − Σ(kept − full)² / Σ(full − its mean)² over examples: 0 is a constant, 1 follows the model; "
    "the axis ends at −1. "),
    LOWEST: (3, 1.6, "Lowest family: the lowest explained effect of a family of at least 20 examples, with an interval "
    "for all of them together. "),
}  # fmt: skip
"""Of each row of panels: its relative height, the inches that it adds to the figure, and what the caption says."""
_SHARES = {"within": ("examples within a fifth of the effect", "dash"), "agreement": ("same answer", "dot")}
"""Shares of examples: name and dash of their lines."""
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
    """A column of panels per task, of one ablation type: the explained effect of each model's first k heads, with its
    interval; below it R² over examples and the explained effect of the lowest family, where the table has them.

    curves: the rows of `curves` of one or several orders, with the controls of the chosen ones: thin grey, the mean of
        their draws and an interval over draws and examples; they end where too few heads are left besides the order's
        own. Of two kinds of control the one from the same layers is drawn. Orders that were not chosen are drawn where
        the panel has one model; a panel that compares models has their chosen orders only.
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
    members = members[members["task"].isin(table["task"])]
    tasks, note = distinct(members["task"]), moved_note(table)
    ratios = pd.DataFrame() if ratios is None else ratios
    drawn = _Panels(table, members, chosen, orders or {}, ratios, threshold, note)
    columns, blocks = grid_shape(len(tasks))
    kinds = drawn.kinds()
    panels: list[Panel | None] = []
    places: list[list[int]] = []
    for start in range(0, len(tasks), columns):
        some = tasks[start : start + columns]
        for kind in kinds:
            numbers = list(range(len(panels), len(panels) + len(some)))
            places += [numbers + [-1] * (columns - len(some))] * (_ROWS[kind][0] if len(kinds) > 1 else 1)
            panels += [drawn.panel(kind, task) for task in some]
    several = table.loc[~table["series"].isin(CONTROLS), "series"].nunique() > 1
    width = {1: 4.6, 2: 6.0}.get(columns, PAPER_WIDTH)
    height = 3.2 if len(panels) == 1 else 2.55 * blocks + 0.2
    return Chart(
        name=name,
        title=f"Explained effect (faithfulness) of the top k heads, {_ranked_by(table, chosen)}{under(table)}",
        heading="",
        panels=panels,
        caption=f"{_ACTIONS[table['action'].iloc[0]][1]} Bands are 95 % CIs over examples. "
        + ("Thick: the order with the smallest circuit on the other half of the examples. " * several)
        + ("Thin: the other orders. " * (several and drawn.alone))
        + about_controls(drawn.table, note)
        + _better_controls(drawn.table)
        + "".join(_ROWS[kind][2] for kind in kinds)
        + "The dashed segment joins two models where they reach the threshold; beside it is the ratio of their "
        "circuit sizes.",
        size=(width, height + sum(_ROWS[kind][1] for kind in kinds) * blocks),
        columns=columns,
        places=places,
        page_columns=2 if len(tasks) > 1 or len(kinds) == 1 else len(kinds),
        legend="bottom",
        legend_columns=2 if columns < 3 else 3,
        table=mean_of_draws(table)[
            ["model", "task", "reference", "series", "k", "value", "lo", "hi", "n"]
            + [column for column in ("r2", "within", "agreement", LOWEST, "family") if column in table]
        ],
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


@dataclass
class _Panels:
    """The panels of one ablation type, which share their axes."""

    table: pd.DataFrame
    members: pd.DataFrame
    chosen: Chosen
    orders: Mapping[tuple[str, str, str], Sequence[str]]
    ratios: pd.DataFrame
    threshold: float
    note: str

    def __post_init__(self) -> None:
        table, chosen, threshold = self.table, self.chosen, self.threshold
        if table["series"].eq("random_layer").any():
            self.table = table[table["series"] != "random"]
        self.reference = str(table["reference"].iloc[0])
        if "reference" in self.ratios:
            self.ratios = self.ratios[self.ratios["reference"] == self.reference]
        if "chosen" in self.ratios:
            self.ratios = self.ratios[self.ratios["chosen"]]
        keys = zip(table["task"], table["model"], table["reference"], strict=True)
        thick = table["series"] == [chosen.get(key, "") for key in keys]
        self.thick = table[thick]
        self.few, self.y = few_heads(self.thick, threshold), effect_range(self.thick, table)
        self.series = distinct(table.loc[~table["series"].isin(CONTROLS), "series"])
        self.alone = bool(self.members.groupby("task").size().max() == 1)
        """Whether every panel has one model: then there is room for more lines."""
        self.narrow = self.members["task"].nunique() > 2

    def kinds(self) -> list[str]:
        """The rows of panels: what the table has numbers for."""
        found = [kind for kind in (R2, LOWEST) if kind in self.thick and self.thick[kind].notna().any()]
        return [EXPLAINED, *found]

    def panel(self, kind: str, task: str) -> Panel:
        """One panel of one task."""
        table = self.table[self.table["task"] == task]
        together = self.members[self.members["task"] == task].to_dict("records")
        total = max(int(table["k"].max()), 1)
        label = f"Number of Heads {_ACTIONS[table['action'].iloc[0]][0]}"
        x = count_axis(label, total, 4 if self.narrow else 8)
        if self.few:
            label = f"{label.removeprefix('Number of ') if self.narrow else label} (√ axis)"
            x = Axis(label=label, limits=(0, total), scale="root", ticks=root_ticks(total, self.narrow))
        models = [str(row["model"]) for row in together]
        common: dict[str, Any] = {"x": x, "model": models[0] if len(models) == 1 else ""}
        if kind == R2:
            lines = [line for row in together for line in self._followed(row, task)]
            marks: list[Mark] = [Rule(at=0), *self._keys(lines), *lines]
            y = Axis(label="R²" if not self.alone else "R², Share", limits=(-1.05, 1.08), ticks=(-1, 0, 1))
            return Panel(column=task_title(task), marks=marks, y=y, **common)
        if kind == LOWEST:
            lines = [line for row in together for line in self._worst(row, task)]
            marks = [Rule(at=self.threshold), *self._keys(lines), *lines]
            if not lines:
                words: dict[str, Any] = {"x": total / 2, "y": 0.5, "size": 7, "colour": GREY}
                marks = [Label(text="no family with enough examples\nand an effect of its own", **words)]
            y = Axis(label="Worst Family", limits=self.y, ticks=(0, 0.5, 1))
            return Panel(column=task_title(task), marks=marks, y=y, **common)
        lines = [self._thick(row, task) for row in together]
        keys = {line.name: (task, model, self.reference) for line, model in zip(lines, models, strict=True)}
        ordered = {name: key for name, key in keys.items() if key in self.orders}
        thin = self._thin(table, task, together) if self.alone else []
        return Panel(
            title=task_title(task),
            marks=[*control_lines(table, self.note), *thin, *lines, *self._segments(task, x)],
            y=Axis(label="Explained Effect", limits=self.y, ticks=(0, 0.5, 1)),
            legend="lower right",
            orders={name: self.orders[key] for name, key in ordered.items()},
            owners={name: key[1] for name, key in ordered.items()},
            **common,
        )

    def _of(self, member: Mapping[Any, Any], task: str) -> tuple[pd.DataFrame, str]:
        """The rows of a model's thick curve, and its colour."""
        mine = (self.thick["model"] == member["model"]) & (self.thick["task"] == task)
        return self.thick[mine].sort_values("k"), COLOURS[member["pair"] % len(COLOURS)][member["role"]]

    def _followed(self, member: Mapping[Any, Any], task: str) -> list[Line]:
        """R² over examples and, where there is room, the shares of examples that are followed."""
        rows, colour = self._of(member, task)
        prefix: dict[str, Any] = {"hover_prefix": str(member["model"]), "colour": colour, "common": True}
        lines = [curve(rows, y=R2, name="R² over examples", width=_THICK, **prefix)]
        for column, (name, dash) in _SHARES.items() if self.alone else ():
            if rows[column].notna().any():
                lines.append(curve(rows, y=column, name=name, dash=dash, width=_THIN, band=0.08, **prefix))
        return lines

    def _keys(self, lines: Sequence[Line]) -> list[Line]:
        """Where several models share a panel, a black line of each kind for the legend: colours are the models'."""
        first = {line.name: line for line in reversed(lines)} if not self.alone else {}
        empty = key()
        return [
            replace(one, x=empty.x, y=empty.y, lo=None, hi=None, words=None, colour=empty.colour)
            for one in first.values()
        ]

    def _worst(self, member: Mapping[Any, Any], task: str) -> list[Line]:
        """The explained effect of the lowest family, and the mean over all examples as a thin line."""
        rows, colour = self._of(member, task)
        if rows[LOWEST].isna().all():
            return []
        look: dict[str, Any] = {"hover_prefix": str(member["model"]), "colour": colour, "common": True}
        words = rows["family"].tolist()
        return [
            curve(rows, band=0, width=_THIN, name="mean of all examples", **look),
            curve(rows, y=LOWEST, name="lowest family", width=_THICK, words=words, **look),
        ]

    def _thick(self, member: Mapping[Any, Any], task: str) -> Line:
        rows, colour = self._of(member, task)
        name = shortened(member["model"], _LONGEST_NAME, set(self.thick["model"]))
        if rows["value"].isna().all():
            return key(colour, name=f"{name}: no effect to explain")
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
                keys.append(key(**look))
        return [*keys, *lines]

    def _segments(self, task: str, x: Axis) -> list[Mark]:
        """A segment from curve to curve; its ratio where the curves leave room: to the right below, or left above."""
        if self.ratios.empty:
            return []
        pairs = self.ratios[(self.ratios["task"] == task) & (self.ratios["compared"] == "dense/sparse")]
        # Circuits are as large as where the curve stays above the threshold.
        names = ["stays", "other_stays", "stays_ratio", "stays_lo", "stays_hi"]
        found = pairs[pairs["stays_ratio"].notna()]
        _, total = x.limits or (0, 1)
        marks: list[Mark] = []
        for number, row in enumerate(found.to_dict("records")):
            *ends, ratio, lo, hi = (row[name] for name in names)
            if not np.isfinite(ends).all():
                continue
            share = max(ends) / total
            below = (math.sqrt(share) if x.scale == "root" else share) < 0.7
            colour = COLOURS[row["pair"] % len(COLOURS)]["dense"] if len(found) > 1 else INK
            place = number if below else None
            marks += ratio_marks(ends, self.threshold, (ratio, lo, hi), place, colour)
        return marks


def ratio_marks(
    ends: Sequence[float],
    threshold: float,
    ratio: tuple[float, float, float],
    place: int | None = 0,
    colour: str = INK,
) -> list[Mark]:
    """A dashed segment from curve to curve at the threshold, and beside it the ratio with its interval: below the right
    end (place: how many others are there already), or above the left one (None)."""
    value, lo, hi = ratio
    text = f"{value:.1f}x" + (f"\n[{lo:.1f}, {hi:.1f}]" if np.isfinite(lo) else "")
    side: dict[str, Any] = {"x": min(ends), "across": "right", "up": "bottom", "shift": (-4, 3)}
    if place is not None:
        side = {"x": max(ends), "across": "left", "up": "top", "shift": (4, -5 - 24 * place)}
    return [
        Line(x=ends, y=[threshold] * 2, dash="dash", width=1.2, marker="circle", size=3.2),
        Label(y=threshold, text=text, colour=colour, box=True, **side),
    ]


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


def root_ticks(total: int, narrow: bool = False) -> list[int]:
    """Ticks of a square-root axis, far enough apart for their numbers; none so near the last that they touch."""
    if narrow:
        return [*(tick for tick in (0, 5, 50, 200, 1000) if tick < 0.5 * total), total]
    ticks = [tick for tick in (0, 1, 5, 20, 50, 100, 200, 500, 1000, 2000) if tick < 0.75 * total]
    return [*ticks, total]
