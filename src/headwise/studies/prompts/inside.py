"""The charts of what a condition does inside the model: how far each head moves, outputs and activations by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Chart, Panel, Rule, Scale, axis_range, curve, whole_ticks
from headwise.charts.heatmap import head_panel, saturation
from headwise.studies.prompts.findings import short
from headwise.tables.frames import distinct, groups


def moved_maps(table: pd.DataFrame, palette: Mapping[str, str]) -> Chart:
    """Layer × head: the share of its attention that a token spends elsewhere. Rows models, columns conditions.

    One scale for all, ending at the 99th percentile. Above each map is its largest head with its interval.
    """
    models, conditions = distinct(table["model"]), distinct(table["condition"])
    top, _ = saturation(table["moved"].to_numpy(dtype=float))
    above = bool(table["moved"].max() > top)
    label = f"Share of attention moved{' (some beyond)' if above else ''}"
    scale = Scale("viridis", 0, top, label, above=above)
    parts = dict(groups(table, "model", "condition"))
    cells = [parts.get(cell) for cell in product(models, conditions)]
    first = table.iloc[0]
    single = f", {models[0]}" if len(models) == 1 else ""
    return Chart(
        title=f"Share of each head's attention that inserted tokens move{single}",
        note=f"{first['task']}, n = {first['n']} prompts; above each map: its largest",
        panels=[_moved(part, scale, len(models) > 1) if part is not None else None for part in cells],
        caption="Of the attention on the original tokens, against no insertion.",
        size=(2.5 * len(conditions) + 1.6, 3.0 * len(models) + 0.8),
        columns=len(conditions),
        page_columns=3,
        min_panel_width=230,
    )


def _moved(part: pd.DataFrame, scale: Scale, several_models: bool) -> Panel:
    best = part.iloc[int(part["moved"].argmax())]
    lo, hi = best["moved_lo"], best["moved_hi"]
    interval = "" if np.isnan(lo) else f" [{lo:.2f}, {hi:.2f}]"
    title = f"{short(best['condition'])}\nL{best['layer']}H{best['head']} {best['moved']:.2f}{interval}"
    row = str(best["model"]) if several_models else ""
    bounds = ("moved_lo", "moved_hi")
    return head_panel(part, scale, of="moved", bounds=bounds, most=(8, 6), title=title, row=row)


def affine_panels(table: pd.DataFrame, palette: Mapping[str, str]) -> Chart:
    """By layer: λ of new output ≈ λ · old + shift, and how much of the new output's spread that explains."""
    columns = {"slope": "λ", "r2": "R²"}
    chart = _by_layer(table, columns, 1.0, "Attention output as λ · old + shift", palette)
    return replace(chart, note=f"{chart.note}; dashed: R² with λ = 1")


def activation_panels(table: pd.DataFrame, palette: Mapping[str, str]) -> Chart:
    """By layer: how a condition changes the share of MLP activations near zero, and the weight of their tails."""
    # The baseline differs from itself by nothing, in every layer.
    changed = table["near_zero_change"].ne(0).groupby(table["condition"], sort=False).any()
    baseline = next(iter(changed.index[~changed]), "none")
    columns = {
        "near_zero_change": "Change of the share near zero",
        "kurtosis_change": "Change of the excess kurtosis",
    }
    title = f"MLP activations after the inserted tokens, against {short(baseline)}"
    return _by_layer(table[table["condition"] != baseline], columns, 0.0, title, palette)


def _by_layer(
    table: pd.DataFrame,
    columns: dict[str, str],
    rule: float,
    title: str,
    palette: Mapping[str, str],
) -> Chart:
    """A row of panels per model, a panel per column with its label, a line with its band per condition."""
    models = groups(table, "model")
    first = table.iloc[0]
    return Chart(
        title=title,
        note=f"{first['task']}, n = {first['n']} prompts, 95 % bands",
        panels=[
            _layers(rows, column, columns[column], rule, palette) for _, rows in models for column in columns
        ],
        size=(8.4, 2.7 * len(models) + 0.8),
        columns=len(columns),
    )


def _layers(rows: pd.DataFrame, column: str, label: str, rule: float, palette: Mapping[str, str]) -> Panel:
    unchanged = column == "r2"  # beside it the R² with λ = 1
    lines = []
    for condition, part in groups(rows.sort_values("layer", kind="stable"), "condition"):
        look: dict[str, Any] = {"name": short(condition), "colour": palette[condition], "band": 0.15}
        lines.append(curve(part, "layer", column, width=1.2, **look))
        if unchanged:
            look |= {"name": f"{short(condition)}, λ = 1", "dash": "dash", "common": True, "width": 0.8}
            lines.append(curve(part, "layer", "r2_unchanged", **look))
    drawn = [values for line in lines for values in (line.y, line.lo, line.hi) if values is not None]
    limits = axis_range(*drawn, [rule])
    if unchanged and limits:  # R² with λ = 1 may be negative, far below the range of interest
        limits = (max(-0.5, limits[0]), 1.05)
    return Panel(
        title=str(rows["model"].iloc[0]),
        marks=[Rule(at=rule, colour="#bfbfbf"), *lines],
        x=Axis(label="Layer", ticks=whole_ticks(int(rows["layer"].max()) + 1, 8)),
        y=Axis(label=label, limits=limits),
    )
