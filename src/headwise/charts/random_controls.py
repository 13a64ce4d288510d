"""Random controls of a curve: thin grey lines, the mean of several draws with an interval over draws and examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from headwise.charts.chart import Line, curve

CONTROLS = {"random": ("random heads", "solid"), "random_layer": ("random heads, same layers", "dash")}
"""Name and dash of each kind of control. A control never holds one of the order's own first k heads."""
_LOOK: dict[str, Any] = {"colour": "#a6a6a6", "width": 0.8, "band": 0.15, "common": True}


def control_lines(table: pd.DataFrame, note: str) -> list[Line]:
    """Thin and grey, with one legend entry for all models: which model a control is of does not matter."""
    lines = []
    for kind, (label, dash) in CONTROLS.items():
        name = f"{label} ({note})" if note and kind == "random_layer" else label
        rows = mean_of_draws(table[(table["series"] == kind) & table["value"].notna()])
        for model, part in rows.groupby("model", sort=False):
            mean = part.groupby("k", as_index=False)[["value", "lo", "hi"]].mean()
            lines.append(curve(mean, name=name, dash=dash, hover_prefix=str(model), **_LOOK))
    return lines


def mean_of_draws(table: pd.DataFrame) -> pd.DataFrame:
    """The rows without single draws of a control where the mean over its draws is there, with its interval."""
    if "draw" not in table or table.empty:
        return table
    columns = ("model", "task", "reference", "order", "series", "metric")
    keys = [table[key] for key in columns if key in table]
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


def about_controls(table: pd.DataFrame, note: str) -> str:
    """What the grey lines are, in a sentence; empty where there are none."""
    draws = table.loc[table["series"].isin(CONTROLS), "draw"].nunique() if "draw" in table else 0
    moved = f" (in the same layers: {note}, where a layer has too few others)" if note else ""
    controls = (
        f"Grey: the mean of {draws} random draws of k other heads, never one of the curve's own first k{moved}, with "
        "95 % CIs over draws and examples; it ends where too few other heads are left. "
    )
    return controls if draws else ""


def better_than_all(
    controls: pd.DataFrame, full: tuple[float, float], where: str, what: str, write: Callable[[float], str]
) -> str:
    """That a control does better than the model with all its heads, and whether this is noise; empty where none does.

    controls: rows of `curves` with one model and task; full: the value with all heads and the upper end of its
    interval. what: the change and its metric, `{k}` in it the number of heads; write: a value in words.
    """
    above = controls[controls["value"] > full[0]].sort_values("value").to_dict("records")
    if not above:
        return ""
    best = above[-1]
    noise = "the intervals overlap, so this is within noise"
    if best["lo"] > full[1]:
        noise = (
            "the intervals do not overlap, so this is more than noise: some of these heads stand in the way"
        )
    changed = what.format(k=int(best["k"]))
    return f"{where}: {changed} {write(full[0])} to {write(best['value'])}; {noise}. "
