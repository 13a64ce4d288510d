"""Which heads help, hinder or do nothing: the ablation curves, the maps of the roles, how many heads have each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.heatmap import grid
from headwise.charts.style import house_style
from headwise.charts.words import shortened, span, task_title

ROLES = ("facilitation", "irrelevance", "interference")
COLOURS = {"facilitation": "#2a9d4e", "irrelevance": "#2f6fc4", "interference": "#d1352b"}
_SCALES = {"facilitation": "Greens", "irrelevance": "Blues", "interference": "Reds"}
_LABELS = {
    "facilitating": COLOURS["facilitation"],
    "irrelevant": COLOURS["irrelevance"],
    "interfering": COLOURS["interference"],
    "undecided": "0.75",
    "anomalous": "#8a5fb0",
}


def role_curves(table: pd.DataFrame) -> Any:
    """Grid of tasks (rows) × models (columns): what ablating the first k heads of each role does.

    `table` is `curves`. The band is `lo` to `hi`; one y scale per row. Returns a matplotlib figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    models, tasks = (list(dict.fromkeys(table[name])) for name in ("model", "task"))
    with house_style():
        figure = Figure(figsize=(2.1 + 2.35 * len(models), 0.9 + 1.75 * len(tasks)), layout="constrained")
        panels = figure.subplots(len(tasks), len(models), squeeze=False, sharex=True, sharey="row")
        for row, task in enumerate(tasks):
            for column, model in enumerate(models):
                panel = panels[row, column]
                own = table[(table["model"] == model) & (table["task"] == task)]
                for role in ROLES:
                    part = own[own["series"] == role].sort_values("k")
                    panel.fill_between(
                        part["k"], part["lo"], part["hi"], color=COLOURS[role], alpha=0.2, lw=0
                    )
                    panel.plot(part["k"], part["value"], color=COLOURS[role], lw=1.5, label=role.capitalize())
                panel.axhline(0, color="0.6", lw=0.6, zorder=0)
                panel.set_xlim(0, max(1, int(table["k"].max())))
                panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
                panel.yaxis.set_major_locator(MaxNLocator(4))
                if row == 0:
                    panel.set_title(shortened(model))
                if column == len(models) - 1:
                    panel.text(
                        1.04,
                        0.5,
                        shortened(task_title(task), 22),
                        transform=panel.transAxes,
                        rotation=-90,
                        va="center",
                        ha="left",
                        fontsize=10,
                    )
        _axis_names(figure, panels)
        lines, names = panels[0, 0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside right center", frameon=False)
    return figure


def _axis_names(figure: Any, panels: Any) -> None:
    """Once for the whole grid where it is large enough for a sentence, else on the panel itself."""
    figure.supxlabel("Number of Ablated Heads", fontsize=9)
    tall = len(panels) > 1
    figure.supylabel(
        "Δ Log Probability of Target Response" if tall else "Δ Log Probability\nof Target Response",
        fontsize=9,
        ha="center",
    )


def role_maps(table: pd.DataFrame) -> Any:
    """Layer × head maps of one model: a row per task, a column per role, mean over seeds, from 0 to 1.

    `table` is `scores` with the columns of the three roles; a dot marks heads whose every seed gave the role's
    label. Returns a matplotlib figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    tasks = list(dict.fromkeys(table["task"]))
    layers, heads = int(table["layer"].max()) + 1, int(table["head"].max()) + 1
    width = float(np.clip(0.5 + 0.16 * heads, 1.6, 4.5))
    height = float(np.clip(0.4 + 0.075 * layers, 1.4, 5.0))
    labels = dict(zip(ROLES, _LABELS, strict=False))
    with house_style():
        figure = Figure(figsize=(3 * width + 1.4, height * len(tasks) + 1.0), layout="constrained")
        panels = figure.subplots(len(tasks), 3, squeeze=False, sharex=True, sharey=True)
        for column, role in enumerate(ROLES):
            for row, task in enumerate(tasks):
                panel, part = panels[row, column], table[table["task"] == task]
                panel.set_facecolor("0.85")  # a head that does not exist
                image = panel.imshow(
                    grid(part, role),
                    aspect="auto",
                    interpolation="nearest",
                    cmap=_SCALES[role],
                    vmin=0,
                    vmax=1,
                )
                sure = part[(part["label"] == labels[role]) & (part["agreement"] == 1) & (part["n"] > 1)]
                panel.scatter(
                    sure["head"], sure["layer"], s=4, color="white", edgecolors="black", linewidths=0.4
                )
                panel.spines[:].set_visible(False)
                panel.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
                panel.yaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
                if row == 0:
                    panel.set_title(role.capitalize())
                if column == 0:
                    panel.set_ylabel(f"{shortened(task_title(task), 22)}\nLayer")
                if row == len(tasks) - 1:
                    panel.set_xlabel("Head")
            bar = figure.colorbar(
                image, ax=panels[:, column].tolist(), location="bottom", shrink=0.8, aspect=18, pad=0.02
            )
            bar.set_ticks([0, 0.5, 1], labels=["0", ".5", "1"])
            bar.outline.set_visible(False)
        seeds = table["n"].max()
        note = "dot: every seed" if seeds > 1 else "one seed"
        figure.suptitle(
            f"Roles of heads, {shortened(table['model'].iloc[0])}, mean of {seeds} seeds ({note})"
        )
    return figure


def role_shares(table: pd.DataFrame) -> Any:
    """Share of heads with each label per model and task, and how many have it always and ever over the seeds.

    `table` is `shares`. Returns a matplotlib figure: bars at the left, the counts in a table at the right.
    """
    from matplotlib.figure import Figure

    pairs = list(dict.fromkeys(zip(table["model"], table["task"], strict=True)))
    several = table["model"].nunique() > 1
    names = [
        f"{shortened(task_title(t), 20)}\n{shortened(m, 20)}" if several else shortened(task_title(t))
        for m, t in pairs
    ]
    shares = table.pivot_table(index=["model", "task"], columns="label", values="share", sort=False)
    counts = table.set_index(["model", "task", "label"])
    label_width = 0.075 * max(len(line) for name in names for line in name.split("\n"))
    with house_style():
        figure = Figure(
            figsize=(8.2 + label_width, 1.2 + (0.55 if several else 0.42) * len(pairs)), layout="constrained"
        )
        bars, text = figure.subplots(1, 2, width_ratios=(1, 1.25))
        where = np.arange(len(pairs))
        left = np.zeros(len(pairs))
        for label, colour in _LABELS.items():
            width = np.array([shares.loc[pair, label] for pair in pairs])
            bars.barh(where, width, left=left, color=colour, height=0.7, label=label.capitalize())
            for place, (start, share) in enumerate(zip(left, width, strict=True)):
                if share > 0.07:
                    ink = "black" if label == "undecided" else "white"
                    bars.text(
                        start + share / 2,
                        place,
                        f"{share:.0%}",
                        ha="center",
                        va="center",
                        color=ink,
                        fontsize=7,
                    )
            left += width
        bars.set_yticks(where, names)
        bars.set(xlim=(0, 1), ylim=(len(pairs) - 0.5, -0.5), xlabel="Share of heads, mean over seeds")
        bars.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
        bars.tick_params(axis="y", length=0)
        figure.legend(*bars.get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
        _always_and_ever(text, counts, pairs)
    return figure


def _always_and_ever(axes: Any, counts: pd.DataFrame, pairs: list[tuple[str, str]]) -> None:
    """Rows in line with the bars; always / ever for each label."""
    axes.set(xlim=(0, len(_LABELS)), ylim=(len(pairs) - 0.5, -0.5))
    axes.axis("off")
    for column, label in enumerate(_LABELS):
        axes.text(column + 0.5, -0.55, label, ha="center", va="bottom", fontsize=8, color=_LABELS[label])
        for row, pair in enumerate(pairs):
            model, task = pair
            one = counts.loc[(model, task, label), :]
            axes.text(
                column + 0.5,
                row,
                f"{one['always']:.0f} / {one['ever']:.0f}",
                ha="center",
                va="center",
                fontsize=8,
            )
    first = counts.iloc[0]
    axes.text(
        len(_LABELS) / 2,
        len(pairs) - 0.4,
        f"always / ever: heads in all / in any of {first['seeds']:.0f} seeds, of {span(counts['heads'])}",
        ha="center",
        va="top",
        fontsize=8,
    )
