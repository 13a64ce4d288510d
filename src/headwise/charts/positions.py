"""The map of heads × token positions: the heads with the largest scores, the tokens of one prompt below."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Cells, Chart, Line, Mark, Panel, Scale, names_axis, whole_ticks
from headwise.charts.heatmap import DOT, check_map, importance, score_unit, significant
from headwise.charts.section import head_names
from headwise.charts.words import method_title, span

_MOST_TOKENS = 48
"""Positions up to which every token has a label."""


def position_chart(
    table: pd.DataFrame,
    *,
    most: int = 24,
    title: str | None = None,
    scale: Scale | None = None,
    name: str = "",
) -> Chart:
    """The `most` heads with the largest absolute score at any position, layer by layer, against positions.

    Cells whose q-value is below .05 carry a dot.
    """
    table = table.assign(named=head_names(table))
    largest = table.assign(size=table["score"].abs()).groupby("named", sort=False)["size"].max()
    chosen = set(largest.sort_values(ascending=False, kind="stable").index[:most])
    shown = table[table["named"].isin(chosen)]
    heads, T = shown["named"].unique().tolist(), int(table["position"].max()) + 1
    check_map((len(heads), T))
    rows = shown["named"].map({name: row for row, name in enumerate(heads)}).to_numpy()
    columns = shown["position"].to_numpy()
    values = np.full((len(heads), T), np.nan)
    values[rows, columns] = shown["score"]
    dots = significant(shown.assign(row=rows))
    marks: list[Mark] = [
        Cells(
            values=values,
            scale=scale or importance(shown["score"], True, f"Score{score_unit(table)}"),
            hover="{row} at {column}: {value}",
        )
    ]
    if len(dots):
        marks.append(Line(x=dots["position"], y=dots["row"], **DOT))
    first = table.iloc[0]
    tokens = table.drop_duplicates("position").sort_values("position")["token"].astype(str).tolist()
    of = f"The {len(heads)} heads with the largest scores" if len(largest) > len(heads) else "Scores"
    return Chart(
        name=name,
        title=title
        or f"{method_title(table)} at each position on {first['task']}, {first['model']}, "
        f"n = {span(table['n'])}",
        panels=[
            Panel(
                title=f"{of} at each position",
                note="dot: q < .05" if len(dots) else "",
                marks=marks,
                x=_token_axis(tokens),
                y=names_axis(heads, down=True, size=8),
                model=str(first["model"]) if "model" in table else "",
            )
        ],
        caption="A cell is the effect of replacing the head's output at this position only. The tokens are those of "
        "one of the longest prompts; positions are counted from its first token.",
        size=(float(np.clip(2.6 + 0.3 * T, 5, 12)), float(np.clip(2.4 + 0.19 * len(heads), 3, 8))),
        columns=1,
        height=120 + 18 * len(heads),
    )


def _token_axis(tokens: list[str]) -> Axis:
    """Positions with their tokens; of a long prompt, some of the positions."""
    places = range(len(tokens)) if len(tokens) <= _MOST_TOKENS else whole_ticks(len(tokens), 12)
    names = [f"{place} {tokens[place].strip() or repr(tokens[place])}" for place in places]
    limits = (-0.5, len(tokens) - 0.5)
    return Axis(label="Position and token", limits=limits, ticks=places, names=names, angle=60, size=8)
