"""Which heads need to see far, and how much of the KV cache can go? In sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.section import Finding
from headwise.charts.style import file_name
from headwise.charts.words import joined, minus, percent
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
    needed, budgets = table_of(tables, "needed"), table_of(tables, "budgets")
    found = [one for names, rows in groups(needed, "model", "task") for one in _needed(rows, *names)]
    for names, rows in groups(budgets, "model", "task"):
        found += [*_budget(rows, *names), *_elsewhere(rows, *names)]
    for names, rows in groups(table_of(tables, "families"), "model", "task", "facet"):
        told = rows[rows["lo"].notna() & (rows["n"] >= FEWEST_OF_LEVEL)]
        found += [_families(told, *names)] if len(told) else []
    for names, rows in groups(table_of(tables, "text"), "model", "task"):
        found += [_text(rows, *names)]
    return found


def _needed(rows: pd.DataFrame, model: str, task: str) -> Iterator[Finding]:
    """How many key/value heads the first ranking needs, beside the others."""
    first = rows.iloc[0]
    chart = "-".join(map(file_name, (model, task, "reach")))
    if first["full_accuracy"] < ANSWERS:
        yield Finding(
            sentence=f"{model} answers {percent(first['full_accuracy'])} of {task} at {first['tokens']:.0f} tokens "
            f"(n = {first['n']}); what its heads need is clearer on prompts that it answers.",
            weight=0.35,
            chart=chart,
        )
    if not first["defined"]:
        yield Finding(
            sentence=f"On {task}, {model} loses nothing that is clear of 0 when every head sees the window only "
            f"({_number(first['effect'])} {first['metric']} [{_number(first['effect_lo'])}, "
            f"{_number(first['effect_hi'])}], n = {first['n']}), so no head needs to see far.",
            chart=chart,
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
        chart=chart,
        plain=f"{size} of {model} must see the whole text for {percent(first['threshold'])} of what all heads do on "
        f"{task}; the others need the first and last tokens only.",
    )


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
        sentence=f"With {kept}, {model} keeps {percent(first['explained'])} "
        f"[{percent(first['lo'])}, {percent(first['hi'])}] of the effect on {task} and answers "
        f"{percent(first['accuracy'])} (all heads {percent(first['full_accuracy'])}, window alone "
        f"{percent(first['none_accuracy'])}; n = {first['n']}) by {series_name(first['series'])}; the paired "
        f"difference of {first['metric']} to {'; '.join(each)}.",
        weight=0.5,
        chart="-".join(map(file_name, (model, task, "reach"))),
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
            f"{percent(first['explained'])} [{percent(first['lo'])}, {percent(first['hi'])}] of the effect on {where}"
            f"{answered}, with {percent(first['share'])} of the cache (n = {first['n']}).",
            weight=0.4,
            chart="-".join(map(file_name, (model, task, "reach"))),
        )


def _families(rows: pd.DataFrame, model: str, task: str, facet: str) -> Finding:
    """The effect by depth."""
    each = [
        f"{row['level']} {percent(row['explained'])} [{percent(row['lo'])}, {percent(row['hi'])}] (n = {row['n']})"
        for row in rows.to_dict("records")
    ]
    return Finding(
        sentence=f"By {facet}, {rows['far'].iloc[0]} key/value heads of {model} keep of the effect on {task}: "
        f"{joined(each)}.",
        weight=0.2,
        chart="-".join(map(file_name, (model, task, "reach"))),
    )


def _text(rows: pd.DataFrame, model: str, task: str) -> Finding:
    """The rise of the cross-entropy at the last position."""
    last = rows[rows["position"] == rows["position"].max()].set_index("series")
    first = last.iloc[0]
    return Finding(
        sentence=f"On plain text at token {first['position']}, the cross-entropy of {model} rises by "
        f"{_interval(first, 'rise')} nats per token when only the {first['far']} key/value heads for {task} see "
        f"everything, and by {_interval(last.loc['window alone'], 'rise')} when none does (n = {first['n']} texts).",
        weight=0.3,
        chart="-".join(map(file_name, (model, task, "text"))),
    )


def _interval(row: Mapping[Any, Any] | pd.Series, name: str, digits: int = 3) -> str:
    prefix = f"{name}_" if f"{name}_lo" in row else ""
    lo, hi = (_number(row[f"{prefix}{end}"], digits) for end in ("lo", "hi"))
    return f"{_number(row[name], digits)} [{lo}, {hi}]"


def _number(value: float, digits: int = 3) -> str:
    return minus(f"{value:+.{digits}g}") if value == value else "–"


def _count(number: float) -> str:
    """Key/value heads; the threshold may not be reached."""
    return "never" if number != number else f"{number:.0f}"
