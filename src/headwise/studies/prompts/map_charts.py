"""What conditions do inside a model: how far each head moves, outputs and activations by layer. From tables alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Chart, Line, Panel, Rule, Scale, axis_range, whole_ticks
from headwise.charts.heatmap import head_panel, saturation
from headwise.studies.prompts.condition_style import LINES, colours, short


def moved_maps(table: pd.DataFrame) -> Chart:
    """Layer × head: the share of its attention that a token spends elsewhere. Rows models, columns conditions.

    One scale for all, ending at the 99th percentile. Above each map stands its largest head with its interval.
    """
    models, names = (list(dict.fromkeys(table[column])) for column in ("model", "condition"))
    top, _ = saturation(table["moved"].to_numpy(dtype=float))
    above = bool(table["moved"].max() > top)
    scale = Scale(
        "viridis", 0, top, f"Share of attention moved{' (some beyond)' if above else ''}", above=above
    )
    panels: list[Panel | None] = []
    for model in models:
        for name in names:
            part = table[(table["model"] == model) & (table["condition"] == name)]
            if not len(part):
                panels.append(None)
                continue
            best = part.loc[part["moved"].idxmax()]
            largest = f"L{best['layer']}H{best['head']} {best['moved']:.2f}{_interval(best)}"
            about: dict[str, Any] = {
                "title": f"{short(name)}\n{largest}",
                "row": str(model) if len(models) > 1 else "",
            }
            bounds = ("moved_lo", "moved_hi")
            panels.append(head_panel(part, scale, of="moved", bounds=bounds, most=(8, 6), **about))
    single = f", {models[0]}" if len(models) == 1 else ""
    first = table.iloc[0]
    return Chart(
        title=f"How far inserted tokens move each head{single}",
        note=f"{first['task']}, n = {first['n']} prompts; above each map: its largest",
        panels=panels,
        caption="Of the attention on the original tokens, against no insertion.",
        size=(2.5 * len(names) + 1.6, 3.0 * len(models) + 0.8),
        columns=len(names),
        page_columns=3,
        height=300,
    )


def _interval(row: pd.Series) -> str:
    lo, hi = row["moved_lo"], row["moved_hi"]
    return "" if np.isnan(lo) else f" [{lo:.2f}, {hi:.2f}]"


def affine_panels(table: pd.DataFrame) -> Chart:
    """By layer: λ of new output ≈ λ · old + shift, and how much of the new output's spread that explains."""
    columns = [("slope", "λ", 1.0, ""), ("r2", "R²", 1.0, "r2_unchanged")]
    return _by_layer(table, columns, "Attention output as λ · old + shift", "dashed: R² with λ = 1")


def activation_panels(table: pd.DataFrame) -> Chart:
    """By layer: how a condition changes the share of MLP activations near zero, and the weight of their tails."""
    against = _baseline(table)
    columns = [
        ("near_zero_change", "Change of the share near zero", 0.0, ""),
        ("kurtosis_change", "Change of the excess kurtosis", 0.0, ""),
    ]
    title = f"MLP activations after the inserted tokens, against {short(against)}"
    return _by_layer(table[table["condition"] != against], columns, title)


def _baseline(table: pd.DataFrame) -> str:
    """The condition that the others are compared with: it differs from itself by nothing, everywhere."""
    still = table.groupby("condition", sort=False)["near_zero_change"].apply(
        lambda change: (change == 0).all()
    )
    return str(still.index[still.to_numpy()][0]) if still.any() else "none"


def _by_layer(
    table: pd.DataFrame, columns: list[tuple[str, str, float, str]], title: str, note: str = ""
) -> Chart:
    """A row of panels per model, a line with its band per condition; columns are (name, label, rule, dashed)."""
    models = list(dict.fromkeys(table["model"]))
    panels = [
        _layers(table[table["model"] == model], column, label, rule, dashed)
        for model in models
        for column, label, rule, dashed in columns
    ]
    first = table.iloc[0]
    about = f"{first['task']}, n = {first['n']} prompts, 95 % bands"
    return Chart(
        title=title,
        note=f"{about}; {note}" if note else about,
        panels=panels,
        size=(8.4, 2.7 * len(models) + 0.8),
        columns=len(columns),
        least=340,
        height=280,
    )


def _layers(own: pd.DataFrame, column: str, label: str, rule: float, dashed: str) -> Panel:
    names = list(dict.fromkeys(own["condition"]))
    palette = colours(names, LINES)
    lines: list[Line] = []
    for name in names:
        part = own[own["condition"] == name].sort_values("layer")
        look: dict[str, Any] = {"name": short(name), "colour": palette[name], "band": 0.15}
        bounds = {"lo": part[f"{column}_lo"], "hi": part[f"{column}_hi"]}
        lines.append(Line(x=part["layer"], y=part[column], width=1.2, **look, **bounds))
        if dashed:
            look |= {"name": f"{short(name)}, λ = 1", "dash": "dash", "common": True}
            lines.append(Line(x=part["layer"], y=part[dashed], width=0.8, **look))
    drawn = [values for line in lines for values in (line.y, line.lo, line.hi) if values is not None]
    limits = axis_range(*drawn, [rule])
    if dashed and limits:  # "no change" may explain less than nothing, far below what is of interest
        limits = (max(-0.5, limits[0]), 1.05)
    return Panel(
        title=str(own["model"].iloc[0]),
        marks=[Rule(at=rule, colour="#bfbfbf"), *lines],
        x=Axis(label="Layer", ticks=whole_ticks(int(own["layer"].max()) + 1, 8)),
        y=Axis(label=label, limits=limits),
    )


def length_curves(table: pd.DataFrame) -> Chart:
    """Share of right answers against the number of copies of the filler, one panel per model."""
    models = list(dict.fromkeys(table["model"]))
    names = [name for name in dict.fromkeys(table["series"]) if name not in ("none", "arm")]
    palette = colours(names, LINES)
    panels = []
    for model in models:
        own = table[table["model"] == model]
        lines = []
        for name in names:
            part = pd.concat([own[own["series"] == "none"], own[own["series"] == name]]).sort_values("k")
            share = {
                axis: 100 * part[column] for axis, column in (("y", "value"), ("lo", "lo"), ("hi", "hi"))
            }
            look: dict[str, Any] = {
                "name": short(name),
                "colour": palette[name],
                "marker": "circle",
                "size": 3.5,
            }
            lines.append(Line(x=part["k"], **share, **look, band=0.12))
        highest = axis_range(table[["value", "hi"]].to_numpy(), [0.0], room=0)
        limits = (0.0, 105 * highest[1]) if highest and highest[1] else None
        y = Axis(label="Right answers, % (95 % bands)", limits=limits)
        panels.append(Panel(title=str(model), marks=lines, x=Axis(label="Copies inserted"), y=y))
    return Chart(
        title=f"Right answers against copies inserted, {table['task'].iloc[0]}, n = {table['n'].iloc[0]}",
        panels=panels,
        size=(2.2 + 3.2 * len(models), 3.4),
        columns=len(models),
        legend="right",
        least=340,
        height=280,
        table=table,
    )
