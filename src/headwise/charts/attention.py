"""Attention maps with the tokens on both axes: one head's, or those of the first heads of several orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.style import house_style
from headwise.charts.words import task_title

_MOST_LABELS = 48


def attention_map(weights: np.ndarray, tokens: Sequence[str], *, title: str = "") -> Any:
    """A map `[queries, keys]` as a heatmap: each row shows where one token looks. Returns a matplotlib figure.

    The first token takes most of the attention of most heads; the scale is set by all other keys, and saturates.
    """
    from matplotlib.figure import Figure

    length = len(tokens)
    later = np.triu(np.ones((length, length), dtype=bool), 1)
    shown = np.ma.masked_array(weights, later)  # what no token can reach stays white
    top = float(weights[1:, 1:].max()) if length > 1 else 1.0
    beyond = bool(weights.max() > top)
    with house_style():
        side = float(np.clip(2.2 + 0.17 * length, 3.6, 9.5))
        figure = Figure(figsize=(side + 0.8, side), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shown, cmap="viridis", vmin=0, vmax=top or 1.0, interpolation="nearest")
        every = -(-length // _MOST_LABELS)
        places = list(range(0, length, every))
        names = [_label(tokens[place], place if every > 1 else None) for place in places]
        size = 7 if length > 24 else 8
        axes.set_xticks(places, names, rotation=90, fontsize=size)
        axes.set_yticks(places, names, fontsize=size)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set(xlabel="Key (attended to)", ylabel="Query (attending)", title=title)
        label = "Attention (the first key goes beyond)" if beyond else "Attention"
        figure.colorbar(
            image, ax=axes, label=label, shrink=0.8, aspect=30, extend="max" if beyond else "neither"
        )
    return figure


def kept_heads(table: pd.DataFrame) -> Any:
    """The maps of the first heads that each model keeps on one task, most important first.

    `table` holds the rows of `attention` of one task and one order: a row of panels per model, all panels of a
    model on one scale, set by all keys but the first. Returns a matplotlib figure.
    """
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(table["model"]))
    columns = int(table["rank"].max()) + 1
    longest = int(table["query"].max()) + 1
    side = float(np.clip(0.9 + 0.062 * longest, 2.0, 4.4))
    with house_style():
        figure = Figure(
            figsize=(side * columns + 1.6, (side + 0.55) * len(models) + 0.5), layout="constrained"
        )
        panels = figure.subplots(len(models), columns, squeeze=False)
        same = table.groupby("model")["token"].agg("".join).nunique() == 1  # one prompt, cut alike
        for row, model in zip(panels, models, strict=True):
            own = table[table["model"] == model]
            later = own[own["key"] > 0]
            top = float(later["attention"].max()) if len(later) else 1.0
            beyond = bool(own["attention"].max() > top)
            for rank, panel in enumerate(row):
                part = own[own["rank"] == rank]
                if not len(part):
                    panel.set_visible(False)
                    continue
                length = int(part["query"].max()) + 1
                weights = np.full((length, length), np.nan)  # what no token can reach stays white
                weights[part["query"].to_numpy(), part["key"].to_numpy()] = part["attention"].to_numpy()
                image = panel.imshow(
                    weights, cmap="viridis", vmin=0, vmax=top or 1.0, interpolation="nearest"
                )
                names = [_label(token, None) for token in part[part["query"] == length - 1]["token"]]
                size = float(np.clip(72 * side / (1.25 * length), 3, 7))
                named = range(length) if model == models[-1] or not same else []
                panel.set_xticks(named, names[: len(named)], rotation=90, fontsize=size)
                named = range(length) if rank == 0 else []
                panel.set_yticks(named, names[: len(named)], fontsize=size)
                panel.tick_params(length=0, pad=1)
                panel.spines[:].set_visible(False)
                first = part.iloc[0]
                panel.set_title(f"{rank + 1}. L{first['layer']}H{first['head']}", fontsize=9)
            row[0].set_ylabel(f"{model}\nQuery")
            label = "Attention (first key beyond)" if beyond else "Attention"
            figure.colorbar(
                image, ax=row, label=label, shrink=0.75, aspect=25, extend="max" if beyond else "neither"
            )
        first = table.iloc[0]
        title = f"{task_title(first['task'])}: the first heads of the order {first['series']}"
        figure.suptitle(title, fontsize=10)
    return figure


def _label(token: str, place: int | None) -> str:
    """A token as one short line; a dollar sign would begin a formula."""
    line = token.strip(" ").replace("\n", "↵").replace("\t", "→").replace("$", r"\$") or "␣"
    short = line if len(line) <= 14 else line[:13] + "…"
    return short if place is None else f"{place} {short}"
