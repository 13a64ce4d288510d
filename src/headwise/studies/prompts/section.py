"""The charts of the study `prompts`, from tables alone: answers under each condition, and a head's attention; what
conditions do inside the model is in `inside.py`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import (
    Axis,
    Bars,
    Chart,
    Label,
    Mark,
    Panel,
    Span,
    axis_range,
    count_axis,
    curve,
    names_axis,
    whole_ticks,
)
from headwise.charts.section import SECTIONS, Section
from headwise.charts.style import file_name
from headwise.charts.words import span
from headwise.display import joined_tokens
from headwise.studies.prompts.findings import LEVEL, answers, explained, findings, headline, heads, short
from headwise.studies.prompts.inside import activation_panels, affine_panels, moved_maps
from headwise.tables.frames import Tables, columns_of, distinct, groups, table_of

_CAPTION = (
    "The same problems in every condition; bars carry 95 % intervals, a star where the difference is significant. "
    "Cut-off answers and answers without a result count as wrong and are in the numbers below. "
)
_ATTENTION = (
    "For each token, the mean attention of all later ones to it; the first and last tokens are left out. "
)
_COLOURS = {"none": "#1f77b4", "meaningless": "#e8502f", "meaningful": "#2e9e4f", "arm": "#b8860b"}
_OTHERS = ("#c26da5", "#8c6d46", "#6f7f8f", "#a3b549", "#7a70e0", "#d1495b", "#3f8f94", "#c9a0dc")
_LEAD = 24
"""Tokens drawn before the insertion where a long beginning (solved examples) would fill the panel."""


def condition_colours(conditions: Iterable[str]) -> dict[str, str]:
    """A colour for each condition: the usual one where there is one, else the next that is free.

    Every chart of a task is given the colours of all its conditions, so that a condition has one colour in all.
    """
    names = list(dict.fromkeys([*conditions, *_COLOURS]))
    others = [name for name in names if name not in _COLOURS]
    free = dict(zip(others, _OTHERS * (1 + len(others) // len(_OTHERS)), strict=False))
    return {name: _COLOURS.get(name) or free[name] for name in names}


def charts(tables: Tables) -> list[Chart]:
    """For each set of problems the answers with each head's attention, then what conditions do inside the model."""
    inside = {"moved": moved_maps, "affine": affine_panels, "activations": activation_panels}
    names = ("accuracy", "comparisons", "profiles", "curves", *inside)
    drawn = []
    for task in distinct(tables["accuracy"]["task"]):
        of_task = {name: tables[name][tables[name]["task"] == task] for name in names if name in tables}
        conditions = distinct(of_task["accuracy"]["condition"])
        palette, of_study = condition_colours(conditions), _results(of_task, file_name("prompts", task))
        for name, draw in inside.items():
            if len(of_task.get(name, ())) and "comparisons" in of_task:  # one condition alone changes nothing
                of_study.append(replace(draw(of_task[name], palette), name=file_name(name, task)))
        curves = table_of(of_task, "curves")
        if len(curves) and curves.groupby("series")["k"].nunique().max() > 1:
            of_study.append(replace(length_curves(curves, palette), name=file_name("lengths", task)))
        meaning = explained(conditions)
        drawn += [replace(chart, caption=f"{chart.caption} {meaning}".strip()) for chart in of_study]
    return drawn


def _results(tables: Tables, name: str) -> list[Chart]:
    """A chart for each head; on the page the bars, which are the same in all, are in the first only."""
    accuracy, comparisons = tables["accuracy"], table_of(tables, "comparisons")
    drawn: list[Chart] = []
    for (model, layer, head), part in groups(table_of(tables, "profiles"), "model", "layer", "head"):
        chart = prompt_chart(accuracy, comparisons, part)
        chart = replace(chart, name=file_name(name, model, f"L{layer}H{head}"))
        if drawn:
            chart = replace(chart, page=chart.page_panels[1:], caption=_ATTENTION, table=None)
        drawn.append(chart)
    return drawn or [replace(prompt_chart(accuracy, comparisons, None), name=name)]


def prompt_chart(accuracy: pd.DataFrame, comparisons: pd.DataFrame, profiles: pd.DataFrame | None) -> Chart:
    """Left, the share of right answers by model and condition with intervals; right, one head's profile.

    `accuracy` and `comparisons` hold the rows of one set of problems, `profiles` those of one head of one model.
    The heading says whether any difference is significant.
    """
    palette = condition_colours(distinct(accuracy["condition"]))
    bars = accuracy["model"].nunique() * (accuracy["condition"].nunique() + 1)  # and a gap after each model
    width = max(3.0, 1.2 + 0.34 * bars)
    panels = [_bars(accuracy, comparisons, palette)]
    title, caption = f"Answers under each condition, {accuracy['task'].iloc[0]}", _CAPTION
    widths: tuple[float, ...] = (width,)
    if profiles is not None:
        panels += [aligned_profile(profiles, palette), full_profile(profiles, palette)]
        first = profiles.iloc[0]
        title += f", and where L{first['layer']}H{first['head']} of {first['model']} attends"
        caption += _ATTENTION
        widths = (width, 5.6)
    lines = textwrap.wrap(headline(comparisons), int(13 * sum(widths)), break_on_hyphens=False)
    return Chart(
        title=title,
        heading="\n".join(lines),
        panels=panels,
        caption=caption.strip(),
        prompt=prompt_text(profiles) if profiles is not None else "",
        size=(sum(widths), 4.6),
        places=[[0, 1], [0, 2]] if profiles is not None else None,
        widths=widths,
        columns=1,
        page_columns=3,
        table=_percents(accuracy),
    )


def _percents(accuracy: pd.DataFrame) -> pd.DataFrame:
    """The numbers of the bars in the bars' unit."""
    shares = {name: 100 * accuracy[name] for name in ("accuracy", "lo", "hi")}
    named = {"accuracy": "right answers, %", "lo": "lo, %", "hi": "hi, %"}
    return accuracy.assign(**shares).rename(columns=named)


def _bars(accuracy: pd.DataFrame, comparisons: pd.DataFrame, palette: Mapping[str, str]) -> Panel:
    models, conditions = distinct(accuracy["model"]), distinct(accuracy["condition"])
    step, starred = 0.8 / len(conditions), set()
    if len(comparisons):
        significant = comparisons[comparisons["p_holm"] < LEVEL]
        starred = set(zip(significant["model"], significant["condition"], strict=True))
    marks: list[Mark] = []
    for number, name in enumerate(conditions):
        part = accuracy[accuracy["condition"] == name].set_index("model").reindex(models)
        at = np.arange(len(models)) + (number - (len(conditions) - 1) / 2) * step
        share, lo, hi = (100 * part[column].to_numpy(dtype=float) for column in ("accuracy", "lo", "hi"))
        rows = zip(models, share, lo, hi, strict=True)
        hover = [f"{model}: {value:.3g} [{low:.3g}, {high:.3g}]" for model, value, low, high in rows]
        label = "w/o" if name == "none" else f"w/ {short(name)}"
        look: dict[str, Any] = {"name": label, "colours": palette[name], "thickness": 0.92 * step}
        look |= {"examples": columns_of(accuracy, "task") | {"condition": name}, "keys": models}
        marks.append(Bars(at=at, values=share, lo=lo, hi=hi, hover=hover, **look))
        marks += [
            Label(x=x, y=top, text="*", up="bottom", size=11)
            for x, model, top in zip(at, models, hi, strict=True)
            if (model, name) in starred
        ]
    top = float(np.nanmax(100 * accuracy["hi"].fillna(accuracy["accuracy"])))
    ticks = range(0, 101, 20 if top > 40 else 10 if top > 15 else 5)
    return Panel(
        title=f"Results on {accuracy['task'].iloc[0]}{_lost(accuracy)}",
        marks=marks,
        x=replace(names_axis(map(_wrapped, models)), limits=(-0.6, len(models) - 0.4)),
        y=Axis(
            label=f"Right answers, % (n = {span(accuracy['n'])}, 95 % interval)",
            limits=(0, min(max(1.28 * top, 10), 130)),  # room for the legend
            ticks=[tick for tick in ticks if tick < 1.28 * top],
        ),
        legend="upper center",
    )


def _lost(accuracy: pd.DataFrame) -> str:
    """How many answers were cut off or hold no result; in the bars they count as wrong."""
    cut, none = int(accuracy["truncated"].sum()), int(accuracy["unparsed"].sum())
    total = int((accuracy["n"] * accuracy["samples"]).sum())
    return f"\n{cut} of {total} answers cut off, {none} without a result"


def _wrapped(name: str) -> str:
    """A long model name on several lines, broken at its own hyphens and slashes."""
    spaced = name.replace("/", "/ ").replace("-", "- ")
    lines = textwrap.wrap(spaced, 20, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("/ ", "/").replace("- ", "-")


def length_curves(table: pd.DataFrame, palette: Mapping[str, str]) -> Chart:
    """Share of right answers against the number of copies of the filler, one panel per model."""
    names = [name for name in distinct(table["series"]) if name not in ("none", "arm")]
    palette = {**condition_colours(names), **palette}  # a series has all numbers of copies of a filler
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
    return max(int(positions.min()) - _LEAD, 0) if len(positions) and positions.min() > 4 * _LEAD else 0


def prompt_text(profiles: pd.DataFrame) -> str:
    """The prompt without insertions from the first token drawn, where the profile is of one prompt."""
    if (profiles["n"] != 1).any():
        return ""
    begin, first = first_shown(profiles), profiles[profiles["condition"] == profiles["condition"].iloc[0]]
    shown = first[~first["inserted"] & (first["aligned"] >= begin)].sort_values("position")
    return ("…" if begin else "") + joined_tokens(shown["token"])


section = SECTIONS.add(
    "prompts", Section(charts=charts, findings=findings, heads=heads, texts=answers, docs="prompts")
)
