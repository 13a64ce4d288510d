"""What masking does to a model's texts: curves per ability, the cross table, and what amplifying does.

The layout of the curves follows Cognitive Mirrors (arXiv 2512.10978).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.style import house_style
from headwise.charts.words import span

COLUMNS = 4
BLUE, RED, GREY = "#1f5fbf", "#d62728", "0.45"
NAMES = {
    "chrf": "chrF",
    "bleu": "BLEU",
    "rouge1": "ROUGE-1",
    "cosine": "Cosine",
    "comet": "Comet",
    "agreement": "Agreement",
    "accuracy": "Accuracy",
}
_LINES = {"top": ("TopK", "-"), "random": ("RandomK", "--")}
_BESIDE = (1.1, 1.21)
"""Layer-matched points stand a little to the right of their K, so that they hide neither lines nor one another."""


def masking_curves(table: pd.DataFrame) -> Any:
    """Score against the number of masked heads, a panel per ability of one model. Returns a matplotlib figure.

    `table` holds the rows of `curves`; those of single draws are left out. Accuracy is blue and the similarity
    with the full model's texts red (right-hand axis); the order's first heads solid, random ones dashed,
    layer-matched ones open diamonds. Bands are bootstrap intervals over examples and draws. A dotted line
    carries the accuracy with no head masked.
    """
    from matplotlib.figure import Figure

    table = table[table["draw"].isna()]
    abilities = list(dict.fromkeys(table["task"]))
    metrics = sorted(dict.fromkeys(table["metric"]), key=lambda name: name != "accuracy")
    columns = min(COLUMNS, len(abilities))
    rows = math.ceil(len(abilities) / columns)
    with house_style():
        figure = Figure(figsize=(max(5.2, 2.6 * columns + 0.9), 2.5 * rows + 0.75), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for number, (panel, ability) in enumerate(zip(panels.flat, abilities, strict=False)):
            part = table[table["task"] == ability]
            twin = panel.twinx()
            _panel(panel, twin, part, metrics)
            panel.set_title(_wrapped(ability))
            lowest = number + columns >= len(abilities)
            panel.set_xlabel("# Masked Heads" if lowest else "")
            if number % columns == 0:
                panel.set_ylabel("Score")
            last = number % columns == columns - 1 or number == len(abilities) - 1
            twin.tick_params(labelright=last)
            if last and len(metrics) > 1:
                twin.set_ylabel(_name(metrics[1]), color=RED)
        for panel in panels.flat[len(abilities) :]:
            panel.set_visible(False)
        _legend(figure, table, metrics)
        first = table.iloc[0]
        figure.supxlabel(f"{first['model']}, n = {span(table['n'])} per ability, 95 % bands", fontsize=8)
    return figure


def _panel(panel: Any, twin: Any, part: pd.DataFrame, metrics: list[str]) -> None:
    for metric, axes, colour, beside in zip(metrics, (panel, twin), (BLUE, RED), _BESIDE, strict=False):
        own = part[part["metric"] == metric]
        whole = own[own["k"] == 0]
        if metric == "accuracy" and len(whole):
            axes.axhline(whole["value"].iloc[0], color=GREY, linestyle=":", linewidth=1, zorder=1)
        for series, (_, style) in _LINES.items():
            line = own[own["series"] == series].sort_values("k")
            look = {"color": colour, "marker": "o", "markersize": 4, "zorder": 3}
            look["markerfacecolor"] = colour if series == "top" else "white"
            lows, highs = (line[name].to_numpy(float) for name in ("lo", "hi"))
            axes.plot(line["k"], line["value"], style, linewidth=1.4, **look)
            if len(line) == 1:  # a band has no width there
                axes.vlines(line["k"], lows, highs, color=colour, linestyle=style, linewidth=0.9, zorder=2)
            alpha = 0.13 if style == "-" else 0.08
            axes.fill_between(line["k"].astype(float), lows, highs, color=colour, alpha=alpha, linewidth=0)
        matched = own[own["series"] == "random_layer"]
        if len(matched):
            error = np.abs(matched[["lo", "hi"]].to_numpy(float).T - matched["value"].to_numpy(float))
            axes.errorbar(
                matched["k"] * beside,
                matched["value"],
                yerr=error,
                fmt="D",
                color=colour,
                markerfacecolor="white",
                markersize=4.5,
                elinewidth=0.9,
                capsize=2,
                zorder=4,
            )
    ks = sorted({int(k) for k in part["k"] if k > 0})
    panel.set_xscale("log", base=2)
    panel.set_xticks(ks, [str(k) for k in ks])
    panel.set_xlim(min(ks) / 1.25, max(ks) * 1.3)
    panel.minorticks_off()
    low = min(0.0, math.floor(10 * float(part["lo"].min(skipna=True))) / 10)
    for axes in (panel, twin):
        axes.set_ylim(low - 0.03, 1.03)
        axes.set_yticks(np.arange(0, 1.01, 0.2))
    twin.tick_params(axis="y", colors=RED, length=3)
    twin.spines["right"].set_visible(True)
    twin.spines["right"].set_color(RED)
    panel.grid(axis="y", color="0.93", linewidth=0.8)
    panel.set_axisbelow(True)


def _legend(figure: Any, table: pd.DataFrame, metrics: list[str]) -> None:
    from matplotlib.lines import Line2D

    entries = []
    for metric, colour in zip(metrics, (BLUE, RED), strict=False):
        for name, style in _LINES.values():
            entries.append(
                Line2D(
                    [],
                    [],
                    markerfacecolor=colour if style == "-" else "white",
                    color=colour,
                    linestyle=style,
                    marker="o",
                    markersize=4,
                    label=f"{name} {_name(metric)}",
                )
            )
    if (table["series"] == "random_layer").any():
        entries.append(
            Line2D(
                [],
                [],
                color="0.3",
                linestyle="",
                marker="D",
                markerfacecolor="white",
                label="RandomK, same layers",
            )
        )
    if (table["k"] == 0).any():
        entries.append(Line2D([], [], color=GREY, linestyle=":", label="Accuracy, none masked"))
    few = len(dict.fromkeys(table["task"])) < 3
    figure.legend(
        handles=entries,
        loc="outside upper center",
        ncols=2 if few else min(6, len(entries)),
        frameon=False,
        fontsize=8,
        columnspacing=1.2,
        handlelength=2.4,
    )


def cross_table(table: pd.DataFrame, metric: str = "accuracy") -> Any:
    """How much of each ability is left when another's heads are masked. Returns a matplotlib figure.

    `table` holds the rows of `cross` of one model. A number is the change of accuracy, masked minus full; in
    bold where its interval leaves out 0. Rows are whose heads were masked, columns what was measured.
    """
    from matplotlib.figure import Figure

    own = table[table["metric"] == metric]
    owners, measured = list(dict.fromkeys(own["heads_of"])), list(dict.fromkeys(own["task"]))
    change = own.pivot(index="heads_of", columns="task", values="change").loc[owners, measured]
    clear = own.assign(clear=(own["change_lo"] > 0) | (own["change_hi"] < 0))
    clear = clear.pivot(index="heads_of", columns="task", values="clear").loc[owners, measured]
    full = own.drop_duplicates("task").set_index("task")["full"]
    size = 0.62
    with house_style():
        figure = Figure(figsize=(3.6 + size * len(measured), 2.6 + size * len(owners)), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(change.to_numpy(float), cmap="RdBu", vmin=-1, vmax=1, interpolation="nearest")
        axes.set_xticks(
            range(len(measured)),
            [f"{_wrapped(name)} ({full[name]:.2f})" for name in measured],
            rotation=40,
            ha="right",
            rotation_mode="anchor",
        )
        axes.set_yticks(range(len(owners)), [_wrapped(name) for name in owners])
        axes.set(xlabel="Measured (accuracy with every head)", ylabel="Whose heads are masked")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for (row, column), value in np.ndenumerate(change.to_numpy(float)):
            axes.text(
                column,
                row,
                f"{value:+.2f}".replace("-", "−"),
                ha="center",
                va="center",
                fontsize=8,
                fontweight="bold" if bool(clear.iloc[row, column]) else "normal",
                color="white" if abs(value) > 0.6 else "black",
            )
        figure.colorbar(image, ax=axes, label=f"Change of {_name(metric)}", shrink=0.85)
        first = own.iloc[0]
        figure.suptitle(
            f"{first['k']} heads masked, {first['model']}, n = {span(own['n'])}; bold: interval without 0"
        )
    return figure


def intervention_curves(table: pd.DataFrame) -> Any:
    """Accuracy against the strength of an intervention, a panel per ability and kind. Returns a matplotlib figure.

    `table` holds the rows of `interventions` of one model. The first point of a line is the accuracy before.
    """
    from matplotlib.figure import Figure

    kinds, abilities = list(dict.fromkeys(table["kind"])), list(dict.fromkeys(table["task"]))
    axis = {"amplify": ("Gate", 1.0), "shift": ("α", 0.0)}
    with house_style():
        figure = Figure(
            figsize=(max(4.6, 2.3 * len(abilities) + 0.8), 2.3 * len(kinds) + 0.8), layout="constrained"
        )
        panels = figure.subplots(len(kinds), len(abilities), squeeze=False, sharey=True, sharex="row")
        for row, kind in enumerate(kinds):
            for column, ability in enumerate(abilities):
                panel, part = panels[row, column], table[(table["kind"] == kind) & (table["task"] == ability)]
                for series, colour, style, name in (
                    ("top", BLUE, "-", "first heads of the order"),
                    ("random", GREY, "--", "random heads"),
                ):
                    line = part[part["series"] == series].sort_values("strength")
                    x = [axis[kind][1], *line["strength"]]
                    start = line.iloc[0]
                    panel.plot(
                        x,
                        [start["before"], *line["after"]],
                        style,
                        color=colour,
                        marker="o",
                        markersize=4,
                        label=name,
                    )
                    panel.fill_between(
                        x,
                        [start["before_lo"], *line["lo"]],
                        [start["before_hi"], *line["hi"]],
                        color=colour,
                        alpha=0.12,
                        linewidth=0,
                    )
                panel.set(ylim=(-0.03, 1.03), xlabel=axis[kind][0])
                if row == 0:
                    panel.set_title(_wrapped(ability))
                if column == 0:
                    panel.set_ylabel(f"Accuracy, {kind}")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=8)
        first = table.iloc[0]
        figure.supxlabel(
            f"K = {first['k']}, {first['model']}, n = {span(table['n'])} per ability", fontsize=8
        )
    return figure


def _name(metric: str) -> str:
    return NAMES.get(metric, metric)


def _wrapped(name: str, width: int = 26) -> str:
    """A long name on several lines, so that neighbours do not touch."""
    import textwrap

    return "\n".join(textwrap.wrap(str(name), width, max_lines=2, placeholder="…")) or str(name)
