"""Layer × head maps, matrices with named rows and columns, the chart of a score with its largest heads, and the map of
heads × token positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import (
    INK,
    PAPER,
    Axis,
    Bars,
    Cells,
    Chart,
    Label,
    Mark,
    Panel,
    Rule,
    Scale,
    names_axis,
    points,
    whole_ticks,
)
from headwise.charts.words import method_title, minus, span
from headwise.names import KV
from headwise.tables.frames import (
    LEVEL,
    SKEWED,
    by_size,
    check_map,
    column_numbers,
    columns_of,
    grid,
    head_names,
    map_shape,
    significant,
    too_few,
)

SATURATION = 99.0
"""Percentile of the absolute scores at which colours end: a few large heads would hide all others."""
HELPS, HINDERS, UNSIGNED = "#2166ac", "#b2182b", "#35608d"
_DOT: dict[str, Any] = {"size": 2.2, "colour": INK, "edge": PAPER}
_MOST_TOKENS = 48
"""Positions up to which every token has a label."""
Ranked = Callable[[pd.DataFrame], pd.DataFrame]
"""Puts the rows of a table of scores in order."""
SCORED = ("model", "task", "method")
"""The columns that tell whose per-example values a map shows."""


def head_panel(
    table: pd.DataFrame,
    scale: Scale,
    *,
    of: str = "score",
    bounds: tuple[str, str] = ("lo", "hi"),
    dots: pd.DataFrame | None = None,
    shape: tuple[int, int] | None = None,
    most: tuple[int, int] = (7, 5),
    **fields: Any,
) -> Panel:
    """The map of the column `of` of a table; the heads in the table `dots` are marked with a dot.

    shape: layers and heads, where other panels have more. most: the largest number of ticks along layers and heads.
    fields: the panel's other fields, such as its title, or its row and column.
    """
    layers, heads = shape = shape or map_shape(table)
    values, absent = grid(table, of, shape), np.full(shape, np.nan)
    values[~np.isfinite(values)] = np.nan
    details = [
        grid(table, name, shape) if name in table else absent
        for name in (*bounds, "n", "q" if of == "score" else "")
    ]
    groups, others = bool((table["head"] <= KV).any()), bool((column_numbers(table) < 0).any())
    cells = Cells(values=values, scale=scale, details=np.stack(details, axis=-1), heads=True)
    if groups or others:  # a click on such a map chooses no head
        cells = Cells(values=values, scale=scale, hover="layer %{{y}}: {value}")
    elif of == "score":
        cells = replace(cells, examples=columns_of(table, *SCORED))
    marks: list[Mark] = [cells]
    if dots is not None and len(dots):
        marks.append(points(column_numbers(dots) % heads, dots["layer"], **_DOT))
    return Panel(
        marks=marks,
        x=_head_axis(heads, most[1], "Key/value head" if groups else "Head", others=others),
        y=Axis(label="Layer", limits=(layers - 0.5, -0.5), ticks=whole_ticks(layers, most[0])),
        model=str(table["model"].iloc[0]) if "model" in table else "",
        **fields,
    )


def _head_axis(columns: int, most: int, label: str, *, others: bool) -> Axis:
    """The axis of heads; with MLPs or the input the last two columns have names."""
    limits = (-0.5, columns - 0.5)
    if not others:
        return Axis(label=label, limits=limits, ticks=whole_ticks(columns, most))
    ticks = whole_ticks(columns - 2, most)
    names = [*map(str, ticks), "input", "MLP"]
    return Axis(label=label, limits=limits, ticks=[*ticks, columns - 2, columns - 1], names=names, angle=45)


def matrix_panel(
    table: pd.DataFrame,
    scale: Scale,
    word: Callable[[float], str],
    *,
    title: str = "",
    labels: tuple[str, str] = ("", ""),
    **cells: Any,
) -> Panel:
    """A table as a matrix with named rows and columns; `word` writes a cell's number, `labels` name x and y."""
    values = table.to_numpy(dtype=float)
    words = np.array([[word(value) for value in row] for row in values])
    return Panel(
        title=title,
        marks=[Cells(values=values, scale=scale, words=words, **cells)],
        x=names_axis(table.columns, angle=45, label=labels[0]),
        y=names_axis(table.index, down=True, label=labels[1]),
    )


def score_unit(table: pd.DataFrame) -> str:
    """The metric of a table of scores, in brackets."""
    return f" ({table['metric'].iloc[0]})" if "metric" in table else ""


def importance_scale(scores: pd.Series, signed: bool, label: str) -> Scale:
    """The scale of a score, ending at a round number near the 99th percentile; its end says if it saturates."""
    finite = scores.to_numpy(dtype=float)
    finite = finite[np.isfinite(finite)]
    top, step = saturation(finite)
    above = bool(finite.max(initial=0) > top)
    ticks = np.arange(round(top / step) + 1) * step
    if signed:
        ticks = np.unique(np.round(np.concatenate([-ticks[::2], ticks[::2], [-top, top]]), 12) + 0.0)
        # Next to the end a tick of the coarser step would run into it.
        ticks = np.array([t for t in ticks if abs(t) in (0, top) or top - abs(t) > 1.5 * step])
    two_digits = f"{step:.1e}"[2] != "0"  # 0.0025, not 0.002
    digits = max(0, two_digits - math.floor(math.log10(step) + 1e-9))
    names = [minus(f"{tick:.{digits}f}") for tick in ticks]
    if above:
        names[-1] = f"≥ {names[-1]}" if signed else f"{names[-1]}+"
    if signed and finite.min(initial=0) < -top:
        names[0] = f"≤ {names[0]}"
    ends = (tuple(float(tick) for tick in ticks), tuple(names), above)
    if signed:
        return Scale("RdBu", -top, top, f"{label}; blue helps, red hinders", *ends)
    return Scale("viridis", 0.0, top, label, *ends)


def score_chart(
    table: pd.DataFrame,
    *,
    signed: bool = True,
    title: str | None = None,
    bars: int = 12,
    scale: Scale | None = None,
    name: str = "",
) -> Chart:
    """Left, every head's score; right, the `bars` largest with their intervals.

    A signed score gets a diverging scale centred at 0 (red hinders, blue helps). Heads whose q-value is below
    .05 carry a dot.
    """
    first, dots = table.iloc[0], significant(table)
    scale = scale or importance_scale(table["score"], signed, f"Score{score_unit(table)}")
    note, few = "dot: q < .05" if len(dots) else "", too_few(table)
    return Chart(
        name=name,
        title=title or f"{method_title(table)} on {first['task']}, {first['model']}, n = {span(table['n'])}",
        panels=[
            head_panel(table, scale, dots=dots, most=(12, 10), title="Score of each head", note=note),
            largest_panel(table, signed, bars),
        ],
        caption=f"{few[:1].upper()}{few[1:]}." if few else "",
        size=(9.2, 5.4),
        columns=2,
        widths=(1.25, 1),
        height=360,
    )


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
            scale=scale or importance_scale(shown["score"], True, f"Score{score_unit(table)}"),
            hover="{row} at {column}: {value}",
        )
    ]
    if len(dots):
        marks.append(points(dots["position"], dots["row"], **_DOT))
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
        caption="A cell is the effect of replacing the head's output at this position only. Positions are counted from "
        "the first token of each prompt; a token is named where all examples have the same one.",
        size=(float(np.clip(2.6 + 0.3 * T, 5, 12)), float(np.clip(2.4 + 0.19 * len(heads), 3, 8))),
        columns=1,
        height=120 + 18 * len(heads),
    )


def position_name(place: int, token: object) -> str:
    """A position and its token; the position alone where examples have different tokens there.

    >>> position_name(3, " to"), position_name(3, " "), position_name(3, "")
    ('3 to', "3 ' '", '3')
    """
    text = str(token)
    return f"{place} {text.strip() or repr(text)}" if text else str(place)


def _token_axis(tokens: list[str]) -> Axis:
    """Positions with their tokens; of a long prompt, some of the positions."""
    places = range(len(tokens)) if len(tokens) <= _MOST_TOKENS else whole_ticks(len(tokens), 12)
    names = [position_name(place, tokens[place]) for place in places]
    limits = (-0.5, len(tokens) - 0.5)
    return Axis(label="Position and token", limits=limits, ticks=places, names=names, angle=60, size=8)


def largest_panel(
    table: pd.DataFrame, signed: bool, bars: int, what: str = "Score", *, ranked: Ranked = by_size
) -> Panel:
    """The first `bars` rows (by default the largest scores), with their intervals; `what`: the name of the score."""
    largest = ranked(table)[:bars]
    names = head_names(largest)
    bounded = bool(np.isfinite(largest[["lo", "hi"]].to_numpy(dtype=float)).all())
    rows = zip(names, largest["score"], largest["lo"], largest["hi"], strict=True)
    heads = Bars(
        at=np.arange(len(largest)),
        values=largest["score"],
        lo=largest["lo"] if bounded else None,
        hi=largest["hi"] if bounded else None,
        colours=[HELPS if score > 0 else HINDERS for score in largest["score"]] if signed else UNSIGNED,
        horizontal=True,
        hover=[f"{name}: {score:.4g} [{lo:.4g}, {hi:.4g}]" for name, score, lo, hi in rows],
        examples=columns_of(table, *SCORED),
        keys=names,
    )
    marks: list[Mark] = [heads, Rule(at=0, of="x", colour="#808080"), *_stars(largest, bounded)]
    return Panel(
        title=f"The {len(largest)} largest"
        + ("; *: q < .05" if len(significant(largest)) else "")
        + ("; †: skewed" if any("†" in mark.text for mark in marks if isinstance(mark, Label)) else ""),
        marks=marks,
        x=Axis(label=f"{what}{score_unit(table)}, 95 % interval"),
        y=names_axis(names, down=True),
    )


def _stars(largest: pd.DataFrame, bounded: bool) -> list[Mark]:
    """A star beside the end of each bar whose head has q < .05."""
    marks: list[Mark] = []
    for number, row in enumerate(largest.to_dict("records")):
        side, direction, end = ("left", 1, "hi") if row["score"] > 0 else ("right", -1, "lo")
        if row.get("q", 1) < LEVEL:
            x = float(row[end] if bounded else row["score"])
            look: dict[str, Any] = {"across": side, "shift": (3 * direction, -1), "size": 10}
            text = "*†" if abs(row.get("skewness", 0)) > SKEWED else "*"
            marks.append(Label(x=x, y=number, text=text, **look))
    return marks


def saturation(scores: np.ndarray) -> tuple[float, float]:
    """Where the colours end, and the step of the ticks: round numbers, at or just above the 99th percentile.

    >>> saturation(np.linspace(0, 0.0038, 101))
    (0.004, 0.0005)
    """
    sizes = np.abs(scores[np.isfinite(scores)])
    high = float(np.percentile(sizes, SATURATION)) if sizes.size else 0.0
    high = high or float(sizes.max(initial=0.0)) or 1.0
    power = 10.0 ** math.floor(math.log10(high / 5))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if high <= 8 * m * power)
    return float(f"{math.ceil(high / step - 1e-9) * step:.6g}"), float(f"{step:.6g}")
