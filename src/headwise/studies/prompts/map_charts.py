"""What conditions do inside a model: how far each head moves, outputs and activations by layer, attention profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import (
    Axis,
    Chart,
    Panel,
    Rule,
    Scale,
    Span,
    axis_range,
    count_axis,
    curve,
    distinct,
    whole_ticks,
)
from headwise.charts.heatmap import head_panel, saturation
from headwise.charts.section import groups
from headwise.display import joined_tokens
from headwise.studies.prompts.condition_style import colours, short

LEAD = 24
"""Tokens drawn before the insertion where a long beginning (solved examples) would fill the panel."""


def moved_maps(table: pd.DataFrame, palette: Mapping[str, str] | None = None) -> Chart:
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
        least=230,
    )


def _moved(part: pd.DataFrame, scale: Scale, several_models: bool) -> Panel:
    best = part.iloc[int(part["moved"].argmax())]
    lo, hi = best["moved_lo"], best["moved_hi"]
    interval = "" if np.isnan(lo) else f" [{lo:.2f}, {hi:.2f}]"
    title = f"{short(best['condition'])}\nL{best['layer']}H{best['head']} {best['moved']:.2f}{interval}"
    about: dict[str, Any] = {"title": title, "row": str(best["model"]) if several_models else ""}
    return head_panel(part, scale, of="moved", bounds=("moved_lo", "moved_hi"), most=(8, 6), **about)


def affine_panels(table: pd.DataFrame, palette: Mapping[str, str] | None = None) -> Chart:
    """By layer: λ of new output ≈ λ · old + shift, and how much of the new output's spread that explains."""
    columns = {"slope": "λ", "r2": "R²"}
    chart = _by_layer(table, columns, 1.0, "Attention output as λ · old + shift", palette)
    return replace(chart, note=f"{chart.note}; dashed: R² with λ = 1")


def activation_panels(table: pd.DataFrame, palette: Mapping[str, str] | None = None) -> Chart:
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
    palette: Mapping[str, str] | None,
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


def _layers(
    rows: pd.DataFrame, column: str, label: str, rule: float, palette: Mapping[str, str] | None
) -> Panel:
    palette = palette or colours(distinct(rows["condition"]))
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


def length_curves(table: pd.DataFrame, palette: Mapping[str, str] | None = None) -> Chart:
    """Share of right answers against the number of copies of the filler, one panel per model."""
    names = [name for name in distinct(table["series"]) if name not in ("none", "arm")]
    palette = {**colours(names), **(palette or {})}  # a series has all numbers of copies of a filler
    percents = table.assign(**{name: 100 * table[name] for name in ("value", "lo", "hi")})
    highest = axis_range(percents[["value", "hi"]].to_numpy(), [0.0], room=0)
    limits = (0.0, 1.05 * highest[1]) if highest and highest[1] else None
    panels = []
    for model, rows in groups(percents, "model"):
        lines = []
        for name in names:
            part = rows[rows["series"].isin(["none", name])].sort_values("k")
            look: dict[str, Any] = {"name": short(name), "colour": palette[name], "marker": "circle"}
            lines.append(curve(part, size=3.5, band=0.12, **look))
        y = Axis(label="Right answers, % (95 % bands)", limits=limits)
        x = count_axis("Copies inserted", int(rows["k"].max()))
        panels.append(Panel(title=str(model), marks=lines, x=x, y=y))
    return Chart(
        title=f"Right answers against copies inserted, {table['task'].iloc[0]}, n = {table['n'].iloc[0]}",
        panels=panels,
        size=(2.2 + 3.2 * len(panels), 3.4),
        columns=len(panels),
        legend="right",
        table=percents.rename(columns={name: f"{name}, %" for name in ("value", "lo", "hi")}),
    )


def aligned_profile(profiles: pd.DataFrame, palette: Mapping[str, str]) -> Panel:
    """Original tokens only, so that all conditions share the axis."""
    first = profiles.iloc[0]
    head = f"L{first['layer']}H{first['head']}"
    prompts = "one prompt" if first["n"] == 1 else f"mean of {first['n']} prompts"
    title = f"Average attention on {head},{chr(10) if len(first['model']) > 24 else ' '}{first['model']}, {prompts}"
    panel = _attention(profiles, "aligned", palette, "Original tokens", filled=True)
    return replace(panel, title=title)


def full_profile(profiles: pd.DataFrame, palette: Mapping[str, str]) -> Panel:
    """The full sequence of the conditions that insert something, with the inserted tokens shaded."""
    inserted = profiles[profiles["inserted"]]
    drawn = profiles[profiles["condition"].isin(inserted["condition"])] if len(inserted) else profiles
    shaded: set[tuple[int, int]] = set()
    for _, part in groups(inserted, "condition"):
        positions = np.sort(part["position"].to_numpy())
        runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
        shaded |= {(int(run[0]), int(run[-1])) for run in runs}
    panel = _attention(drawn, "position", palette, "Full sequence")
    note = "shaded: inserted" if shaded else "nothing is inserted"
    spans = [Span(low=first - 0.5, high=last + 0.5) for first, last in sorted(shaded)]
    return replace(panel, marks=[*spans, *panel.marks], x=replace(panel.x, label=f"{panel.x.label} ({note})"))


def _attention(
    profiles: pd.DataFrame, x: str, palette: Mapping[str, str], label: str, filled: bool = False
) -> Panel:
    """The attention to each token under each condition, along the positions in the column `x`."""
    begin, first = first_shown(profiles), profiles.iloc[0]
    rows = profiles[profiles[x].notna() & (profiles[x] >= begin)].sort_values(x)
    lines = []
    for condition in distinct(profiles["condition"]):
        part, colour = rows[rows["condition"] == condition], palette[condition]
        look: dict[str, Any] = {"name": short(condition), "colour": colour, "filled": filled, "band": 0.12}
        lines.append(curve(part, x, "attention", width=0.9, words=[*map(str, part["token"])], **look))
    heights = axis_range(rows["attention"], room=0)
    _, last = axis_range(rows[x], room=0) or (0.0, 1.0)
    room = 0.01 * max(1.0, last - begin)
    return Panel(
        marks=lines,
        x=Axis(
            label=f"{label}{f' from {begin} on' if begin else ''}",
            limits=(begin - room, last + room),
            ticks=[begin + tick for tick in whole_ticks(int(last - begin) + 1, 10)],
        ),
        y=Axis(label="Attention", limits=(0, 1.24 * heights[1]) if heights else None),  # room for the legend
        legend="upper left",
        model=str(first["model"]),
        attention=f"L{first['layer']}H{first['head']}",
    )


def first_shown(profiles: pd.DataFrame) -> int:
    """The first token drawn: of a long beginning before the insertion only the end is shown."""
    positions = profiles.loc[profiles["inserted"], "position"]
    return max(int(positions.min()) - LEAD, 0) if len(positions) and positions.min() > 4 * LEAD else 0


def prompt_text(profiles: pd.DataFrame) -> str:
    """The prompt without insertions from the first token drawn, where the profile is of one prompt."""
    if (profiles["n"] != 1).any():
        return ""
    begin, first = first_shown(profiles), profiles[profiles["condition"] == profiles["condition"].iloc[0]]
    shown = first[~first["inserted"] & (first["aligned"] >= begin)].sort_values("position")
    return ("…" if begin else "") + joined_tokens(shown["token"])
