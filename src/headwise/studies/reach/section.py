"""Which heads need to see far, and how much of the KV cache can go? In sentences and curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import GREY, Axis, Chart, Panel, Rule, curve
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.charts.style import file_name
from headwise.charts.words import joined, minus, percent, shortened, under
from headwise.studies.score.section import charts as score_charts
from headwise.tables.frames import Tables, groups, table_of

SERIES = {
    "nested": "learned ranking",
    "ablation": "exact ablation",
    "attribution": "gradient",
    "pattern": "attention mass",
    "random": "random",
    "random_layer": "random, same layers",
}
FEWEST_OF_LEVEL = 5
"""Examples of a level below which its ratio of means says nothing."""
ANSWERS = 0.8
"""Accuracy below which the task says little about what a model needs."""
KINDS = {"kv_heads": "key/value heads", "heads": "key/value heads (some of their query heads)"}


def series_name(series: str) -> str:
    """What a ranking is called."""
    return SERIES.get(series, series)


def findings(tables: Tables) -> list[Finding]:
    found = []
    for name, say in {"needed": _needed, "budgets": _budgets, "families": _families, "text": _text}.items():
        for (model, task), rows in groups(table_of(tables, name), "model", "task"):
            chart = file_name(model, task, "text" if name == "text" else "reach")
            found += [replace(one, chart=chart) for one in say(rows, model, task)]
    return found


def _needed(rows: pd.DataFrame, model: str, task: str) -> Iterator[Finding]:
    """How many key/value heads the first ranking needs, beside the others."""
    first = rows.iloc[0]
    if first["full_accuracy"] < ANSWERS:
        yield Finding(
            sentence=f"{model} answers {percent(first['full_accuracy'])} of {task} at {first['tokens']:.0f} tokens "
            f"(n = {first['n']}); what its heads need is clearer on prompts that it answers.",
            weight=0.35,
        )
    if not first["defined"]:
        yield Finding(
            sentence=f"On {task}, {model} loses nothing that is clear of 0 when every head sees the window only "
            f"({_number(first['effect'])} {first['metric']} [{_number(first['effect_lo'])}, "
            f"{_number(first['effect_hi'])}], n = {first['n']}), so no head needs to see far.",
            found=False,
        )
        return
    each = [
        f"{_count(part['needed'].mean())} by {series_name(series)}"
        for series, part in groups(rows.iloc[1:], "series")
    ]
    size = f"{_count(first['needed'])} of {first['of']} {KINDS[first['unit']]}"
    yield Finding(
        sentence=f"On {task} at {first['tokens']:.0f} tokens (held out, n = {first['n']}), {size} of {model} must see "
        f"everything for {percent(first['threshold'])} of the effect (95 % CI {_count(first['lo'])}–"
        f"{_count(first['hi'])}; {percent(first['share'])} of the KV cache), ranked by {series_name(first['series'])}; "
        f"{joined(each)}.",
        weight=0.6,
        plain=f"{size} of {model} must see the whole text for {percent(first['threshold'])} of what all heads do on "
        f"{task}; the others need the first and last tokens only.",
    )


def _budgets(rows: pd.DataFrame, model: str, task: str) -> Iterator[Finding]:
    yield from _budget(rows, model, task)
    yield from _elsewhere(rows, model, task)


def _budget(rows: pd.DataFrame, model: str, task: str) -> Iterator[Finding]:
    """The first ranking against the others at an equal cache."""
    at = rows[(rows["at"] == "budget") & rows["held_out"]].drop_duplicates("series")
    if not len(at) or not at["defined"].all():
        return
    first = at.iloc[0]
    each = [
        f"{series_name(row['series'])} {_interval(row, 'difference')}"
        + (f" (accuracy {_interval(row, 'accuracy_difference', 2)})" if np.isfinite(row["accuracy"]) else "")
        for row in at.iloc[1:].to_dict("records")
    ]
    kept = f"{first['far']} of {first['of']} key/value heads, {percent(first['share'])} of the cache"
    yield Finding(
        sentence=f"With {kept}, {model} keeps {_explained(first)} of the effect on {task} and answers "
        f"{percent(first['accuracy'])} (all heads {percent(first['full_accuracy'])}, window alone "
        f"{percent(first['none_accuracy'])}; n = {first['n']}) by {series_name(first['series'])}; the paired "
        f"difference of {first['metric']} to {'; '.join(each)}.",
        weight=0.5,
    )


def _elsewhere(rows: pd.DataFrame, model: str, task: str) -> Iterator[Finding]:
    """The same heads at other lengths and on other tasks, without refitting."""
    others = rows[(rows["at"] == "needed") & ~rows["held_out"].astype(bool)]
    for (tested, length), part in groups(others, "tested_on", "length"):
        first, where = part.iloc[0], f"{tested} at {length:,} tokens"
        if not first["defined"]:
            continue
        answered = (
            f" and {percent(first['accuracy'])} of the answers (all heads {percent(first['full_accuracy'])})"
            if np.isfinite(first["accuracy"])
            else ""
        )
        yield Finding(
            sentence=f"Without a new ranking, the same {first['far']} key/value heads of {model} keep "
            f"{_explained(first)} of the effect on {where}"
            f"{answered}, with {percent(first['share'])} of the cache (n = {first['n']}).",
            weight=0.4,
        )


def _families(rows: pd.DataFrame, model: str, task: str) -> Iterator[Finding]:
    """The effect by depth."""
    for facet, levels in groups(rows[rows["lo"].notna() & (rows["n"] >= FEWEST_OF_LEVEL)], "facet"):
        each = [f"{row['level']} {_explained(row)} (n = {row['n']})" for row in levels.to_dict("records")]
        yield Finding(
            sentence=f"By {facet}, {levels['far'].iloc[0]} key/value heads of {model} keep of the effect on {task}: "
            f"{joined(each)}.",
            weight=0.2,
        )


def _text(rows: pd.DataFrame, model: str, task: str) -> Iterator[Finding]:
    """The rise of the cross-entropy at the last position."""
    last = rows[rows["position"] == rows["position"].max()].set_index("series")
    first = last.iloc[0]
    yield Finding(
        sentence=f"On plain text at token {first['position']}, the cross-entropy of {model} rises by "
        f"{_interval(first, 'rise')} nats per token when only the {first['far']} key/value heads for {task} see "
        f"everything, and by {_interval(last.loc['window alone'], 'rise')} when none does (n = {first['n']} texts).",
        weight=0.3,
    )


def _explained(row: Mapping[Any, Any] | pd.Series) -> str:
    """The share of the effect, with its interval."""
    return f"{percent(row['explained'])} [{percent(row['lo'])}, {percent(row['hi'])}]"


def _interval(row: Mapping[Any, Any] | pd.Series, name: str, digits: int = 3) -> str:
    prefix = f"{name}_" if f"{name}_lo" in row else ""
    lo, hi = (_number(row[f"{prefix}{end}"], digits) for end in ("lo", "hi"))
    return f"{_number(row[name], digits)} [{lo}, {hi}]"


def _number(value: float, digits: int = 3) -> str:
    return minus(f"{value:+.{digits}g}") if value == value else "–"


def _count(number: float) -> str:
    """Key/value heads; the threshold may not be reached."""
    return "never" if number != number else f"{number:.0f}"


# ---- charts --------------------------------------------------------------------------------------


COLOURS = dict(zip(SERIES, ("#1f6fb4", "#2a9d4e", "#8a5fb0", "#d1352b", GREY, "#c48a1a"), strict=True))
_DOTS: dict[str, Any] = {"marker": "circle", "size": 3}
OTHERS = ("#0b7a75", "#a0522d", "#5b5b9a")
"""Of rankings by further methods, in turn."""


def charts(tables: Tables) -> list[Chart]:
    """A chart of the curves and one of the text for each model and task; then the map of each ranking."""
    curves = [
        cache_chart(part)
        for _, part in groups(table_of(tables, "reach"), "model", "task")
        if part[["explained", "accuracy"]].notna().any(axis=None)  # an effect to explain, or foils
    ]
    texts = [text_chart(part) for _, part in groups(table_of(tables, "text"), "model", "task")]
    maps = score_charts({"scores": table_of(tables, "scores")})
    return [*curves, *maps, *texts]


def series_colours(series: list[str]) -> dict[str, str]:
    further = [name for name in series if name not in COLOURS]
    return COLOURS | {name: OTHERS[place % len(OTHERS)] for place, name in enumerate(further)}


def cache_chart(table: pd.DataFrame) -> Chart:
    """`table` holds the rows of `reach` of one model and task: left the explained effect, right the accuracy."""
    first, colour = table.iloc[0], series_colours(list(table["series"].unique()))
    panels = []
    for column, label in (("explained", "Explained Effect"), ("accuracy", "Accuracy")):
        if table[column].isna().all():  # no effect to explain, or no foils
            continue
        lines = []
        for series, part in groups(table, "series"):
            if part[column].isna().all():
                continue
            look = {"colour": colour[series], "band": 0.2 if series == first["series"] else 0, **_DOTS}
            look |= {"dash": "dash" if series in ("random", "random_layer") else "solid"}
            name, far = series_name(series), part["far"]
            lines.append(curve(part, "share", column, name=name, hover_x=far, **look))
        ends = [Rule(at=0, width=0.6), Rule(at=1, width=0.6)] if column == "explained" else []
        ticks = [share for share in (0.05, 0.1, 0.2, 0.5, 1) if share >= table["share"].min()]
        x = Axis(
            label="Share of the KV Cache",
            scale="log",
            ticks=ticks,
            names=[f"{t:.0%}" for t in ticks],
            grid=True,
        )
        panels.append(
            Panel(marks=[*ends, *lines], x=x, y=Axis(label=label, grid=True), model=str(first["model"]))
        )
    return Chart(
        name=file_name(first["model"], first["task"], "reach"),
        title=f"What a smaller KV cache keeps: {shortened(str(first['model']), 22)} on {first['task']}{under(table)}",
        panels=panels,
        columns=len(panels),
        size=(9.2, 4.2),
        legend="right",
        caption=f"Key/value heads that see everything are added from left to right ({first['of']} in all; all others "
        f"see the window). Held-out examples, n = {first['n']}; {first['tokens']:.0f} tokens; the band is a "
        "95 % CI over examples.",
        table=table,
    )


def text_chart(table: pd.DataFrame) -> Chart:
    """`table` holds the rows of `text` of one model and task."""
    first, colour = table.iloc[0], series_colours([*table["series"].unique()])
    colour |= {"window alone": "#b5651d"}
    lines = []
    for series, part in groups(table, "series"):
        band = 0.2 if series in (first["series"], "window alone") else 0
        look: dict[str, Any] = {"colour": colour[series], "band": band, **_DOTS}
        lines.append(curve(part, "position", "rise", name=series_name(series), **look))
    return Chart(
        name=file_name(first["model"], first["task"], "text"),
        title=f"Plain text: {shortened(str(first['model']), 22)}, {first['far']} key/value heads see everything",
        panels=[
            Panel(
                marks=[Rule(at=0, width=0.6), *lines],
                x=Axis(label="Position in Tokens", grid=True),
                y=Axis(label="Rise of the Cross-Entropy\n(nats per token)", grid=True),
            )
        ],
        size=(7.2, 4.0),
        legend="right",
        caption=f"Against all heads; the 32 words before each position, n = {first['n']} texts; bands are 95 % CIs.",
        table=table,
    )


section = SECTIONS.add("reach", Section(charts=charts, findings=findings, docs="reach"))
