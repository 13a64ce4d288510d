"""Attention maps with the tokens on both axes: one head's, or those of the first heads of several orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Cells, Chart, Panel, Scale
from headwise.charts.words import joined, task_title
from headwise.display import joined_tokens
from headwise.tables.frames import attention_grid, distinct, groups, head_names

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
    labels = ("Key (attended to)", "Query (attending)")
    panel = _map(shown, tokens, _scale(top, float(weights.max())), labels, 7 if length > 24 else 8)
    panel = replace(panel, title=title)
    return Chart(title=title, heading="", panels=[panel], size=(side + 0.8, side), columns=1, height=460)


def kept_heads(table: pd.DataFrame, name: str = "") -> Chart:
    """The maps of the first heads that each model keeps on one task, most important first.

    `table` holds the rows of `attention` of one task, and one order of each model: a row of panels per model, all
    panels of a model on one scale, set by all keys but the first.
    """
    models, columns = groups(table, "model"), int(table["rank"].max()) + 1
    side = float(np.clip(0.9 + 0.062 * (int(table["query"].max()) + 1), 2.0, 4.4))
    panels: list[Panel | None] = []
    for model, rows in models:
        later = rows[rows["key"] > 0]
        top = float(later["attention"].max()) if len(later) else 1.0
        row = model if len(models) > 1 else ""
        scale = _scale(top, float(rows["attention"].max()), row)
        maps = {rank: replace(_kept(part, scale, side), row=row) for rank, part in groups(rows, "rank")}
        panels += [maps.get(rank) for rank in range(columns)]
    first, orders = table.iloc[0], joined(distinct(table["series"]))
    where = f", {first['reference']}" if "reference" in table else ""
    where += f", {first['model']}" if len(models) == 1 else ""
    return Chart(
        name=name,
        title=f"{task_title(first['task'])}: attention of the top heads, ranked by {orders}{where}",
        panels=panels,
        prompt=_prompt(table),
        caption="Each row shows where one token of the prompt attends. Colours end at the largest attention to any "
        "token but the first.",
        size=(side * columns + 1.6, (side + 0.55) * len(models) + 0.5),
        columns=columns,
        page_columns=2,
        min_panel_width=330,
        height=400,
    )


def _prompt(table: pd.DataFrame) -> str:
    """The text whose tokens the first map has."""
    _, part = groups(table, "model", "rank")[0]
    last = part[part["query"] == part["query"].max()].sort_values("key")
    return joined_tokens(last["token"])


def _kept(part: pd.DataFrame, scale: Scale, side: float) -> Panel:
    weights = attention_grid(part)  # what no token can reach is NaN, and stays white
    length = len(weights)
    tokens = part[part["query"] == length - 1].sort_values("key")["token"].astype(str).tolist()
    size = float(np.clip(72 * side / (1.25 * length), 3, 7))
    first, (head, *_) = part.iloc[0], head_names(part)
    panel = _map(weights, tokens, scale, ("Key", "Query"), size)
    return replace(panel, title=f"{first['rank'] + 1}. {head}", model=str(first["model"]), attention=head)


def _map(
    weights: np.ndarray, tokens: Sequence[str], scale: Scale, labels: tuple[str, str], size: float
) -> Panel:
    cells = Cells(values=weights, scale=scale, hover=_HOVER, empty="#ffffff", square=True)
    x, y = _tokens(tokens, labels[0], size, turned=True), _tokens(tokens, labels[1], size)
    return Panel(marks=[cells], x=x, y=y)


def _scale(top: float, largest: float, whose: str = "") -> Scale:
    """Ends at `top`; of several scales the label says `whose`, and must not be longer than the bar."""
    beyond = largest > top
    label = f"Attention, {whose}" if whose else f"Attention{' (first key beyond)' if beyond else ''}"
    return Scale("viridis", 0, top or 1.0, label, above=beyond)


def _tokens(tokens: Sequence[str], label: str, size: float, turned: bool = False) -> Axis:
    """The tokens along an axis; of a long prompt every few, with their positions."""
    length = len(tokens)
    every = -(-length // _MOST_LABELS)
    positions = list(range(0, length, every))
    names = [f"{position} " * (every > 1) + _label(tokens[position]) for position in positions]
    limits = (-0.5, length - 0.5) if turned else (length - 0.5, -0.5)
    return Axis(
        label=label, limits=limits, ticks=positions, names=names, angle=90 if turned else 0, size=size
    )


def _label(token: str) -> str:
    """A token as one short line."""
    line = token.strip(" ").replace("\n", "↵").replace("\t", "→") or "␣"
    return line if len(line) <= 14 else line[:13] + "…"
