"""What conditions do inside a model: how far each head moves, outputs and activations by layer. From tables alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.heatmap import grid, saturation
from headwise.charts.style import house_style
from headwise.studies.prompts.condition_style import LINES, colours, short


def moved_maps(table: pd.DataFrame) -> Any:
    """Layer × head: the share of its attention that a token spends elsewhere. Rows models, columns conditions.

    One scale for all, ending at the 99th percentile. Above each map stands its largest head with its interval.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    models, names = (list(dict.fromkeys(table[column])) for column in ("model", "condition"))
    top, _ = saturation(table["moved"].to_numpy(dtype=float))
    beyond = bool(table["moved"].max() > top)
    with house_style():
        size = (2.5 * len(names) + 1.6, 3.0 * len(models) + 0.7)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(models), len(names), squeeze=False)
        for row, model in enumerate(models):
            for column, name in enumerate(names):
                panel = panels[row, column]
                part = table[(table["model"] == model) & (table["condition"] == name)]
                if not len(part):
                    panel.set_visible(False)
                    continue
                panel.set_facecolor("0.85")  # a head that does not exist
                image = panel.imshow(
                    grid(part, "moved"),
                    aspect="auto",
                    interpolation="nearest",
                    cmap="viridis",
                    vmin=0,
                    vmax=top,
                )
                best = part.loc[part["moved"].idxmax()]
                panel.set_title(
                    f"{short(name)}\nL{best['layer']}H{best['head']} {best['moved']:.2f}{_interval(best)}",
                    fontsize=8,
                )
                panel.spines[:].set_visible(False)
                panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
                panel.yaxis.set_major_locator(MaxNLocator(8, integer=True))
                panel.set_xlabel("Head" if row == len(models) - 1 else "")
                panel.set_ylabel((f"{model}\n" if len(models) > 1 else "") + "Layer" if column == 0 else "")
        bar = figure.colorbar(image, ax=panels, extend="max" if beyond else "neither", aspect=35)
        bar.set_label("Share of attention moved")
        bar.outline.set_visible(False)
        single = f", {models[0]}" if len(models) == 1 else ""
        figure.suptitle(
            f"How far inserted tokens move each head{single}\n{table['task'].iloc[0]}, n = {table['n'].iloc[0]} prompts"
            "; above each map: its largest",
            fontsize=9,
        )
    return figure


def _interval(row: pd.Series) -> str:
    lo, hi = row["moved_lo"], row["moved_hi"]
    return "" if np.isnan(lo) else f" [{lo:.2f}, {hi:.2f}]"


def affine_panels(table: pd.DataFrame) -> Any:
    """By layer: λ of new output ≈ λ · old + shift, and how much of the new output's spread that explains."""
    figure = _by_layer(
        table,
        [
            ("slope", "λ", {"reference": 1.0}),
            ("r2", "R²", {"reference": 1.0, "dashed": "r2_unchanged"}),
        ],
    )
    figure.suptitle(
        f"Attention output as λ · old + shift, {table['task'].iloc[0]}, n = {table['n'].iloc[0]} prompts, 95 % "
        "bands\n(dashed: R² with λ = 1)",
        fontsize=9,
    )
    return figure


def activation_panels(table: pd.DataFrame) -> Any:
    """By layer: how a condition changes the share of MLP activations near zero, and the weight of their tails."""
    figure = _by_layer(
        table[table["condition"] != _baseline(table)],
        [
            ("near_zero_change", "Change of the share near zero", {"reference": 0.0}),
            ("kurtosis_change", "Change of the excess kurtosis", {"reference": 0.0}),
        ],
    )
    figure.suptitle(
        f"MLP activations after the inserted tokens, against {short(_baseline(table))}, {table['task'].iloc[0]},\n"
        f"n = {table['n'].iloc[0]} prompts, 95 % bands",
        fontsize=9,
    )
    return figure


def _baseline(table: pd.DataFrame) -> str:
    """The condition that the others are compared with: it differs from itself by nothing, everywhere."""
    still = table.groupby("condition", sort=False)["near_zero_change"].apply(
        lambda change: (change == 0).all()
    )
    return str(still.index[still.to_numpy()][0]) if still.any() else "none"


def length_curves(table: pd.DataFrame) -> Any:
    """Share of right answers against the number of copies of the filler, one panel per model."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(table["model"]))
    names = [name for name in dict.fromkeys(table["series"]) if name not in ("none", "arm")]
    palette = colours(names, LINES)
    with house_style():
        figure = Figure(figsize=(1.4 + 3.2 * len(models), 3.2), layout="constrained")
        panels = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
        for panel, model in zip(panels, models, strict=True):
            own = table[table["model"] == model]
            ground = own[own["series"] == "none"]
            for name in names:
                part = pd.concat([ground, own[own["series"] == name]]).sort_values("k")
                panel.plot(
                    part["k"],
                    100 * part["value"],
                    "o-",
                    markersize=3.5,
                    color=palette[name],
                    label=short(name),
                )
                panel.fill_between(
                    part["k"],
                    100 * part["lo"],
                    100 * part["hi"],
                    color=palette[name],
                    alpha=0.12,
                    linewidth=0,
                )
            panel.set(xlabel="Copies inserted", title=model, ylim=(0, None))
        panels[0].set_ylabel("Right answers, % (95 % bands)")
        panels[-1].legend(frameon=False, fontsize=8)
        figure.suptitle(f"{table['task'].iloc[0]}, n = {table['n'].iloc[0]}", fontsize=9)
    return figure


def _by_layer(table: pd.DataFrame, columns: list[tuple[str, str, dict[str, Any]]]) -> Any:
    """A row of panels per model, a line with its band per condition."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    models, names = (list(dict.fromkeys(table[column])) for column in ("model", "condition"))
    palette = colours(names, LINES)
    with house_style():
        figure = Figure(figsize=(8.4, 2.7 * len(models) + 0.5), layout="constrained")
        panels = figure.subplots(len(models), len(columns), squeeze=False)
        for row, model in zip(panels, models, strict=True):
            for panel, (column, label, options) in zip(row, columns, strict=True):
                if "reference" in options:
                    panel.axhline(options["reference"], color="0.75", linewidth=0.8)
                for name in names:
                    part = table[(table["model"] == model) & (table["condition"] == name)].sort_values(
                        "layer"
                    )
                    panel.plot(
                        part["layer"], part[column], color=palette[name], linewidth=1.2, label=short(name)
                    )
                    panel.fill_between(
                        part["layer"],
                        part[f"{column}_lo"],
                        part[f"{column}_hi"],
                        color=palette[name],
                        alpha=0.15,
                        linewidth=0,
                    )
                    if "dashed" in options:
                        other = part[options["dashed"]]
                        panel.plot(part["layer"], other, "--", color=palette[name], linewidth=0.8)
                if (
                    "dashed" in options
                ):  # "no change" may explain less than nothing, far below what is of interest
                    panel.set_ylim(max(-0.5, panel.get_ylim()[0]), 1.05)
                panel.set(ylabel=label, xlabel="Layer")
                panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
            if len(models) > 1:
                row[0].set_title(model, loc="left", fontsize=9)
        panels[0, -1].legend(frameon=False, fontsize=8)
        if len(models) == 1:
            panels[0, 0].set_title(models[0], loc="left", fontsize=9)
    return figure
