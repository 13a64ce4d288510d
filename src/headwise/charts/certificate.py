"""A certificate on one page: claim and verdict, every check with its state, kinds of prompts, single prompts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import (
    GREY,
    INK,
    Axis,
    Bars,
    Chart,
    Label,
    Panel,
    Rule,
    axis_range,
    diagonal,
    names_axis,
    points,
)
from headwise.charts.words import minus, task_title
from headwise.display import counted
from headwise.names import ablation_name

COLOURS = {
    "pass": "#2e8b57",
    "undecided": "#b8860b",
    "fail": "#c0392b",
    "not tested": "#9e9e9e",
    "reported": "#9e9e9e",
}
VERDICTS = {
    "certified": COLOURS["pass"],
    "certified with limits": "#5a7d1e",
    "undecided": COLOURS["undecided"],
    "rejected": COLOURS["fail"],
}
_MARKS = ("#35608d", "#d1663f", "#2a8f6c", "#8a5aa3", "#7f7f7f")
_MOST_LEVELS = 16


QUESTIONS = {
    (1, 0): "Does it do the task alone?",
    (2, 0): "In every kind of prompt?",
    (3, 0): "Prompt by prompt?",
    (3, 1): "With the same answers?",
    (4, 0): "Does the model need it?",
    (4, 1): "More than random heads? (p)",
    (5, 0): "Is nothing missing?",
    (6, 0): "How many heads add nothing?",
}
"""What the lines of checks 1 to 6 ask, by check and part."""
_LAST = 6
"""The last check that the verdict depends on."""
_LEAST_FOLLOWED, _WIDTH = 6, 118
"""Prompts that are listed on paper, and characters of a line there."""
_NAMED = 20
"""Heads of the set that the claim names."""


def certificate_chart(
    lines: pd.DataFrame,
    levels: pd.DataFrame,
    examples: pd.DataFrame,
    sentence: str,
    heads: Sequence[str],
    *,
    name: str = "",
) -> Chart:
    """The certificate of one set of heads; `lines`, `levels` and `examples` are the tables of a `Certificate`."""
    first = lines.iloc[0]
    judged, reported = lines[lines["check"] <= _LAST], lines[lines["check"] > _LAST]
    metric, verdict = str(first["metric"]), str(first["verdict"])
    tested = levels[levels["state"] != "not tested"] if len(levels) else levels
    # The page has the checks and the prompts as tables, which a phone can show.
    page = [*([_families(tested)] if len(tested) else []), _followed(examples, metric)]
    panels = [_checks(judged, verdict), *page, *([_reported(reported)] if len(reported) else [])]
    panels.append(_least_followed(examples, metric))
    # Rows of the figure on paper, in lines of text: checks, then families beside examples, then the rest.
    middle = [1, 2] if len(tested) else [1, 1]
    heights = [len(judged) + 2, 9, *([len(reported)] if len(reported) else []), 2 * _LEAST_FOLLOWED]
    numbers = [[0, 0], middle, *([number, number] for number in range(max(middle) + 1, len(panels)))]
    places = [row for row, height in zip(numbers, heights, strict=True) for _ in range(height)]
    what = f"{task_title(str(first['task']))} in {first['model']}, {ablation_name(str(first['reference']))}"
    claim = f"Claim: {counted(len(heads), 'head')} ({listed(heads)}) are a circuit of {what}"
    return Chart(
        name=name,
        title=f"Certificate of {counted(len(heads), 'head')}, {what}: {verdict}",
        heading=f"{textwrap.fill(claim, 105)}.\n{textwrap.fill(sentence, 105).rstrip('.')}",
        note="1, 2: the share of the effect (metric with all heads minus with none) that the set alone makes; 1: as "
        "the model. 4: the share lost\nwithout the set. 5: mean difference in shares. Brackets: 95 % intervals over "
        "examples; those of families hold together",
        panels=panels,
        page=page,
        caption="A check passes if its whole interval is on the right side of the threshold, fails if the whole "
        "interval is on the wrong side, and is undecided otherwise. A point in the panel of examples is one prompt: on "
        "the line the set alone gives what the whole model gives.",
        size=(8.3, 1.2 + 0.235 * len(places)),
        places=places,
        widths=(1.0, 1.0),
        columns=2,
        page_columns=2,
        height=400,
        table=_table(lines),
        table_shown=True,
    )


def listed(heads: Sequence[str]) -> str:
    """The first of these heads, and how many more there are.

    >>> listed(["L0H1", "L2H3"])
    'L0H1, L2H3'
    """
    more = len(heads) - _NAMED
    return ", ".join(heads[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _text_panel(title: str, marks: list[Label], rows: float) -> Panel:
    """Lines of text, the first at y = 0."""
    none: dict[str, Any] = {"ticks": (), "names": ()}
    x, y = Axis(limits=(0, 1), **none), Axis(limits=(rows - 0.4, -0.6), **none)
    return Panel(title=title, marks=marks, x=x, y=y, bare=True)


def _questions(lines: pd.DataFrame) -> list[str]:
    """What every line asks, or what it measures."""
    rows, parts = lines.to_dict("records"), lines.groupby("check").cumcount()
    return [
        QUESTIONS.get((row["check"], part), row["measure"]) + " (R²)" * row["measure"].startswith("R²")
        for row, part in zip(rows, parts, strict=True)
    ]


def _table(lines: pd.DataFrame) -> pd.DataFrame:
    """Every line in the words of the page on paper."""
    numbers = [_number(row) for row in lines.to_dict("records")]
    words: dict[str, Any] = {
        "question": _questions(lines),
        "result [95 % CI]": numbers,
        "needed": lines["needed"],
    }
    return lines[["check", "state"]].assign(**words, n=lines["n"], note=lines["note"])


def _checks(lines: pd.DataFrame, verdict: str) -> Panel:
    """The verdict in large; then a row per line: state, question, number with interval, and what was asked for."""
    marks = [Label(x=0, y=0.2, text=verdict.upper(), colour=VERDICTS[verdict], across="left", size=17)]
    columns = (("state", 0.0), ("question", 0.16), ("result [95 % CI]", 0.62), ("needed", 0.9))
    marks += [Label(x=x, y=1.4, text=text, colour=GREY, across="left", size=7.5) for text, x in columns]
    for y, (row, question) in enumerate(zip(lines.to_dict("records"), _questions(lines), strict=True), 2):
        words = (row["state"], f"{row['check']} {question}", _number(row), row["needed"] or "–")
        for (_, x), text in zip(columns, words, strict=True):
            colour = INK if x else COLOURS[row["state"]]
            marks.append(Label(x=x, y=y + 0.2, text=text, colour=colour, across="left", size=7.5))
    return _text_panel("Checks that decide", marks, len(lines) + 2)


def _reported(lines: pd.DataFrame) -> Panel:
    """Checks without a verdict: what was measured, and its number."""
    marks = []
    for y, row in enumerate(lines.to_dict("records")):
        number = _number(row) if row["state"] != "not tested" else "not tested"
        marks.append(Label(x=0, y=y, text=f"{row['check']} {row['measure']}", across="left", size=7))
        marks.append(Label(x=1, y=y, text=number, across="right", size=7))
    return _text_panel("Reported without a verdict", marks, len(lines))


def _least_followed(examples: pd.DataFrame, metric: str) -> Panel:
    """The prompts with the largest error, each with its family and both numbers."""
    marks = []
    for y, row in enumerate(least_followed(examples, _LEAST_FOLLOWED).to_dict("records")):
        numbers = minus(f"{metric} {row['full']:.2f} with all heads, {row['kept']:.2f} with the set alone")
        words = f"{y + 1}. {numbers}" + (f" ({row['family']})" if row["family"] else "")
        text = textwrap.shorten(str(row.get("prompt", ""))[-400:], _WIDTH, placeholder=" …")
        marks.append(Label(x=0, y=2 * y, text=words, across="left", size=7))
        marks.append(Label(x=0.02, y=2 * y + 0.85, text=f"“{text}”", across="left", size=7, colour=GREY))
    title = f"The {len(marks) // 2} prompts that the set follows least"
    return _text_panel(title, marks, 2 * _LEAST_FOLLOWED)


def least_followed(examples: pd.DataFrame, most: int) -> pd.DataFrame:
    """The examples on which the set alone is furthest from the whole model, largest error first."""
    error = (examples["kept"] - examples["full"]).abs()
    return examples.assign(error=error).sort_values("error", ascending=False).head(most)


def _number(row: dict[Any, Any]) -> str:
    value, lo, hi = (float(row[name]) for name in ("value", "lo", "hi"))
    if np.isnan(value):
        return "–"
    return minus(f"{value:.3g}" if np.isnan(lo) else f"{value:.2f} [{lo:.2f}, {hi:.2f}]")


def _families(tested: pd.DataFrame) -> Panel:
    """The explained effect at each level of each facet, furthest from 1 first."""
    order = (tested["value"] - 1).abs().sort_values(ascending=False).index[:_MOST_LEVELS]
    shown = tested.loc[order]
    names = [f"{row.facet} = {row.level} (n = {row.n})" for row in shown.itertuples()]
    bars = Bars(
        at=range(len(shown)), values=shown["value"], lo=shown["lo"], hi=shown["hi"], horizontal=True,
        colours=[COLOURS[state] for state in shown["state"]],
    )  # fmt: skip
    limits = axis_range([0, 1], shown["lo"], shown["hi"])
    axis = Axis(label="Explained effect (1: as the model)", limits=limits)
    y = names_axis(names, down=True, size=7)
    return Panel(title="Kinds of prompts", marks=[bars, Rule(at=1, of="x")], x=axis, y=y)


def _followed(examples: pd.DataFrame, metric: str) -> Panel:
    """The metric with the set alone against that of the whole model, a point per example, coloured by family."""
    limits = axis_range(examples["full"], examples["kept"])
    marks = [diagonal(limits or (0, 1), width=0.8)]
    first = examples["family"].str.split("; ").str[0].replace("", "examples")
    levels = list(dict.fromkeys(first))
    for level, colour in zip(levels, [*_MARKS, *_MARKS[-1:] * len(levels)], strict=False):
        rows = examples[first == level]
        words = [str(text)[-60:] for text in rows["prompt"]] if "prompt" in rows else None
        marks.append(points(rows["full"], rows["kept"], colour=colour, name=str(level), words=words))
    return Panel(
        title="Prompt by prompt: model against set",
        marks=marks,
        x=Axis(label=f"{metric}, all heads", limits=limits),
        y=Axis(label=f"{metric}, the set alone", limits=limits),
        legend="upper left",
    )
