"""How few heads explain a behaviour: explained effect against the number of heads kept, one panel per task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.style import house_style
from headwise.charts.words import shortened, task_title

COLUMNS = 4
EXPLAINED = "explained_effect"
COLOURS = (
    {"dense": "#1f77b4", "sparse": "#ff7f0e", "control": "#9467bd"},  # blue, orange, purple
    {"dense": "#2ca02c", "sparse": "#e377c2", "control": "#8c564b"},  # green, pink, brown
    {"dense": "#17becf", "sparse": "#d62728", "control": "#bcbd22"},
)
"""Of the first pair, the second, the third; then again."""
CONTROLS = {
    "random": ("random heads", "-"),
    "random_layer": ("random heads, same layers", (0, (4, 2))),
}
"""Of each kind of control its name and its line. None holds one of the order's own first k heads."""
FEW = 0.1
"""Share of the heads: where all curves reach the threshold before it, the axis of heads is a square root."""
_LONGEST_NAME = 30


def explained_panels(
    curves: pd.DataFrame,
    *,
    members: pd.DataFrame | None = None,
    ratios: pd.DataFrame | None = None,
    threshold: float = 0.9,
    controls: bool = True,
) -> Any:
    """One panel per task: the explained effect of each model's first k heads, with its interval over examples.

    curves: the rows of `curves` of one order, with its controls: thin grey, the mean of their draws and an interval
        over draws and examples; they end where too few heads are left besides the order's own.
    members: which models form a pair, and in which role; by default each model stands alone.
    ratios: a dashed segment joins the dense and the sparse model's curve at the threshold and says how many
        times more heads the dense one needs, with its interval. Returns a matplotlib figure.
    """
    from matplotlib.figure import Figure

    table = curves[curves["metric"] == EXPLAINED]
    shown = _members(table) if members is None else members[members["model"].isin(table["model"])]
    tasks = list(dict.fromkeys(shown["task"]))
    few, note = few_heads(table, threshold), moved_note(table)
    columns = min(COLUMNS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    size = (4.6, 3.2) if len(tasks) == 1 else (2.75 * columns + 0.4, 2.55 * rows + 0.2)
    with house_style():
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        for number, (panel, task) in enumerate(zip(panels.flat, tasks, strict=False)):
            own = table[table["task"] == task]
            together = shown[shown["task"] == task]
            if controls:
                _draw_controls(panel, own, note)
            _draw_curves(panel, own, together)
            _limits(panel, own, few)
            if ratios is not None:
                _draw_ratios(panel, ratios[ratios["task"] == task], threshold)
            panel.set_title(task_title(task))
            kept = own["action"].iloc[0] == "keep"
            if number + columns >= len(tasks):
                what = "Number of Heads Kept" if kept else "Number of Heads Masked"
                panel.set_xlabel(f"{what} (√ axis)" if few else what)
            if number % columns == 0:
                panel.set_ylabel("Explained Effect")
            _legend(panel)
        for panel in panels.flat[len(tasks) :]:
            panel.set_visible(False)
        _legend_of_chance(figure, list(panels.flat[: len(tasks)]))
    return figure


def _is_chance(label: str) -> bool:
    return any(label.startswith(name) for name, _ in CONTROLS.values())


def _entries(panel: Any, chance: bool) -> tuple[list[Any], list[str]]:
    handles, labels = panel.get_legend_handles_labels()
    found = [(h, label) for h, label in zip(handles, labels, strict=True) if _is_chance(label) == chance]
    return [h for h, _ in found], [label for _, label in found]


def _legend(panel: Any) -> None:
    """The models, in the corner that their curves leave free."""
    panel.legend(
        *_entries(panel, chance=False),
        loc="lower right",
        fontsize=7,
        handlelength=1.6,
        borderaxespad=0.2,
        labelspacing=0.3,
        framealpha=0.75,
        edgecolor="none",
    )


def _legend_of_chance(figure: Any, panels: Sequence[Any]) -> None:
    """The grey lines mean the same in every panel: said once, below all of them."""
    entries = {label: h for panel in panels for h, label in zip(*_entries(panel, chance=True), strict=True)}
    if entries:
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=2,
            fontsize=7,
            frameon=False,
        )


def _members(table: pd.DataFrame) -> pd.DataFrame:
    alone = table[["task", "model"]].drop_duplicates().reset_index(drop=True)
    return alone.assign(pair=alone.groupby("task").cumcount(), role="dense")


def _draw_curves(panel: Any, table: pd.DataFrame, members: pd.DataFrame) -> None:
    curves = table[~table["series"].isin(CONTROLS)]
    for row in members.to_dict("records"):
        own = curves[curves["model"] == row["model"]].sort_values("k")
        colour = COLOURS[row["pair"] % len(COLOURS)][row["role"]]
        name = shortened(Path(row["model"]).name, _LONGEST_NAME)
        if own["value"].isna().all():
            panel.plot([], [], color=colour, label=f"{name}: no effect to explain")
            continue
        panel.fill_between(own["k"], own["lo"], own["hi"], color=colour, alpha=0.2, linewidth=0)
        style = "-." if row["role"] == "control" else "-"
        panel.plot(own["k"], own["value"], style, color=colour, label=name, linewidth=1.6)


def mean_of_draws(table: pd.DataFrame) -> pd.DataFrame:
    """The rows without single draws of a control where the mean over its draws is there, with its interval."""
    keys = ["model", "task", "order", "series", "metric"]
    if "draw" not in table or table.empty:
        return table
    pooled = table["draw"].isna().groupby([table[key] for key in keys], sort=False).transform("any")
    return table[table["draw"].isna() | ~pooled]


def moved_note(table: pd.DataFrame) -> str:
    """How many heads of the layer-matched draws came from other layers, at most; empty where none did."""
    if "moved" not in table:
        return ""
    own = table[(table["series"] == "random_layer") & (table["moved"].fillna(0) > 0)]
    if own.empty:
        return ""
    most = own.iloc[int(own["moved"].astype(int).to_numpy().argmax())]
    return f"up to {int(most['moved'])} of {int(most['k'])} from the nearest layers"


def _draw_controls(panel: Any, table: pd.DataFrame, note: str) -> None:
    for kind, (label, style) in CONTROLS.items():
        of_kind = mean_of_draws(table[(table["series"] == kind) & table["value"].notna()])
        name = f"{label} ({note})" if note and kind == "random_layer" else label
        for number, (_, own) in enumerate(of_kind.groupby("model", sort=False)):
            mean = own.groupby("k")[["value", "lo", "hi"]].mean()
            panel.fill_between(mean.index, mean["lo"], mean["hi"], color="0.65", alpha=0.15, linewidth=0)
            # One entry of the legend for all models: which is which does not matter, they are chance.
            panel.plot(
                mean.index,
                mean["value"],
                linestyle=style,
                color="0.65",
                linewidth=0.8,
                label=None if number else name,
                zorder=1,
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


def _limits(panel: Any, table: pd.DataFrame, few: bool) -> None:
    """All heads, wider where few are."""
    panel.set_ylim(*effect_range(table))
    panel.set_yticks([0, 0.5, 1])
    most = max(int(table["k"].max()), 1)
    if few:
        panel.set_xscale("function", functions=(lambda k: np.sqrt(np.maximum(k, 0)), np.square))
        panel.set_xticks(root_ticks(most))
    panel.set_xlim(0, most)


def _draw_ratios(panel: Any, ratios: pd.DataFrame, threshold: float) -> None:
    """A segment from curve to curve; its ratio where the curves leave room: right below, or left above it."""
    found = ratios[(ratios["compared"] == "dense/sparse") & ratios["ratio"].notna()]
    to_share = panel.transData + panel.transAxes.inverted()
    for number, row in enumerate(found.to_dict("records")):
        ends = [row["k"], row["other_k"]]
        panel.plot(ends, [threshold] * 2, "--o", color="black", linewidth=1.2, markersize=2.4, zorder=4)
        text = f"{row['ratio']:.1f}x"
        if np.isfinite(row["lo"]):
            text += f"\n[{row['lo']:.1f}, {row['hi']:.1f}]"
        colour = COLOURS[row["pair"] % len(COLOURS)]["dense"] if len(found) > 1 else "black"
        (left, height), (right, _) = (to_share.transform((k, threshold)) for k in (min(ends), max(ends)))
        below = right < 0.7
        panel.text(
            right + 0.025 if below else left - 0.025,
            height - 0.04 - 0.17 * number if below else height + 0.02,
            text,
            transform=panel.transAxes,
            ha="left" if below else "right",
            va="top" if below else "bottom",
            color=colour,
            fontsize=8,
            linespacing=1.1,
            zorder=5,
            bbox={"facecolor": "white", "alpha": 0.6, "linewidth": 0, "pad": 0.5},
        )
