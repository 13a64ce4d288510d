"""Attention maps with the tokens on both axes: one head's, or those of the first heads of several orders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Cells, Chart, Panel, Scale
from headwise.charts.words import task_title

_MOST_LABELS = 48
_HOVER = "from “{row}” to “{column}”: {value}"


def attention_chart(weights: np.ndarray, tokens: Sequence[str], *, title: str = "") -> Chart:
    """A map `[queries, keys]`: each row shows where one token looks.

    The first token takes most of the attention of most heads; the scale is set by all other keys, and saturates.
    """
    length = len(tokens)
    shown = np.where(np.tri(length, dtype=bool), weights, np.nan)  # what no token can reach stays white
    top = float(weights[1:, 1:].max()) if length > 1 else 1.0
    side = float(np.clip(2.2 + 0.17 * length, 3.6, 9.5))
    panel = Panel(
        title=title,
        marks=[_cells(shown, _scale(top, float(weights.max())))],
        x=_tokens(tokens, "Key (attended to)", 7 if length > 24 else 8, turned=True),
        y=_tokens(tokens, "Query (attending)", 7 if length > 24 else 8),
    )
    return Chart(title=title, heading="", panels=[panel], size=(side + 0.8, side), columns=1, height=460)


def kept_heads(table: pd.DataFrame, name: str = "") -> Chart:
    """The maps of the first heads that each model keeps on one task, most important first.

    `table` holds the rows of `attention` of one task and one order: a row of panels per model, all panels of a
    model on one scale, set by all keys but the first.
    """
    models = list(dict.fromkeys(table["model"]))
    columns = int(table["rank"].max()) + 1
    side = float(np.clip(0.9 + 0.062 * (int(table["query"].max()) + 1), 2.0, 4.4))
    panels: list[Panel | None] = []
    for model in models:
        own = table[table["model"] == model]
        later = own[own["key"] > 0]
        top = float(later["attention"].max()) if len(later) else 1.0
        scale = _scale(top, float(own["attention"].max()), f", {model}" if len(models) > 1 else "")
        for rank in range(columns):
            part = own[own["rank"] == rank]
            panels.append(_kept(part, scale, side, model if len(models) > 1 else "") if len(part) else None)
    first = table.iloc[0]
    where = f", {models[0]}" if len(models) == 1 else ""
    return Chart(
        name=name,
        title=f"{task_title(first['task'])}: the first heads of the order {first['series']}{where}",
        panels=panels,
        caption="Each row shows where one token of a test prompt looks. Colours end at the most attention to any token "
        "but the first.",
        size=(side * columns + 1.6, (side + 0.55) * len(models) + 0.5),
        columns=columns,
        least=240,
        height=300,
    )


def _kept(part: pd.DataFrame, scale: Scale, side: float, row: str) -> Panel:
    length = int(part["query"].max()) + 1
    weights = np.full((length, length), np.nan)  # what no token can reach stays white
    weights[part["query"].to_numpy(), part["key"].to_numpy()] = part["attention"].to_numpy()
    tokens = part[part["query"] == length - 1].sort_values("key")["token"].astype(str).tolist()
    size = float(np.clip(72 * side / (1.25 * length), 3, 7))
    first = part.iloc[0]
    head = f"L{first['layer']}H{first['head']}"
    return Panel(
        title=f"{first['rank'] + 1}. {head}",
        row=row,
        marks=[_cells(weights, scale)],
        x=_tokens(tokens, "Key", size, turned=True),
        y=_tokens(tokens, "Query", size),
        model=str(first["model"]),
        attention=head,
    )


def _cells(weights: np.ndarray, scale: Scale) -> Cells:
    return Cells(values=weights, scale=scale, hover=_HOVER, empty="#ffffff", square=True)


def _scale(top: float, largest: float, whose: str = "") -> Scale:
    """Ends at `top`; of several scales the label says `whose`, and must not be longer than the bar."""
    beyond = largest > top
    label = f"Attention{whose}" if whose else f"Attention{' (first key beyond)' if beyond else ''}"
    return Scale("viridis", 0, top or 1.0, label, above=beyond)


def _tokens(tokens: Sequence[str], label: str, size: float, turned: bool = False) -> Axis:
    """The tokens along an axis; of a long prompt every few, with their places."""
    length = len(tokens)
    every = -(-length // _MOST_LABELS)
    places = list(range(0, length, every))
    names = [_label(tokens[place], place if every > 1 else None) for place in places]
    limits = (-0.5, length - 0.5) if turned else (length - 0.5, -0.5)
    return Axis(label=label, limits=limits, ticks=places, names=names, angle=90 if turned else 0, size=size)


def _label(token: str, place: int | None) -> str:
    """A token as one short line."""
    line = token.strip(" ").replace("\n", "↵").replace("\t", "→") or "␣"
    short = line if len(line) <= 14 else line[:13] + "…"
    return short if place is None else f"{place} {short}"
