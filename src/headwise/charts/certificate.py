"""A certificate on one page: every check with its state, the explained effect by family, model against circuit."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import INK, Axis, Bars, Chart, Label, Line, Panel, Rule, axis_range, names_axis
from headwise.charts.words import minus
from headwise.names import ablation_name

COLOURS = {
    "pass": "#2e8b57",
    "undecided": "#b8860b",
    "fail": "#c0392b",
    "not tested": "#9e9e9e",
    "reported": "#9e9e9e",
}
_MARKS = ("#35608d", "#d1663f", "#2a8f6c", "#8a5aa3", "#7f7f7f")
_MOST_LEVELS = 16


def certificate_chart(
    lines: pd.DataFrame, levels: pd.DataFrame, examples: pd.DataFrame, sentence: str, *, name: str = ""
) -> Chart:
    """The certificate of one set of heads; `lines`, `levels` and `examples` are the tables of a `Certificate`."""
    first = lines.iloc[0]
    panels = [_checks(lines), _families(levels), _followed(examples, str(first["metric"]))]
    title = f"Certificate: {first['verdict']} ({first['k']} heads, {first['task']}, {first['model']}, "
    title += f"{ablation_name(str(first['reference']))})"
    return Chart(
        name=name,
        title=title,
        heading=f"{title}\n{textwrap.fill(sentence, 130)}",
        note="Brackets: 95 % confidence intervals over examples; those of families hold together.",
        panels=panels,
        caption="A check passes if its whole interval is on the right side of the threshold, fails if the whole "
        "interval is on the wrong side, and is undecided otherwise. In the last panel a point is one example: on the "
        "line the set alone gives what the whole model gives.",
        size=(11.5, 4 + 0.32 * len(lines)),
        places=[[0, 0], [1, 2]],
        widths=(1.0, 1.0),
        columns=2,
        page_columns=1,
        height=420,
        table=lines[["check", "name", "state", "measure", "value", "lo", "hi", "threshold", "n", "note"]],
    )


def _checks(lines: pd.DataFrame) -> Panel:
    """A row per line: what was asked, the number, its interval, the threshold and the state."""
    columns = ("value [95 % CI]", "threshold", "n", "state")
    marks = []
    for y, row in enumerate(lines.to_dict("records")):
        words = (_number(row), _threshold(row), f"{row['n']:,}", row["state"])
        colour = COLOURS[row["state"]]
        for x, text in enumerate(words):
            marks.append(Label(x=x, y=y, text=text, colour=colour if x == len(words) - 1 else INK))
    names = [f"{row['check']} {row['name']}: {row['measure']}" for row in lines.to_dict("records")]
    return Panel(title="Checks", marks=marks, x=names_axis(columns), y=names_axis(names, down=True))


def _number(row: dict[Any, Any]) -> str:
    value, lo, hi = (float(row[name]) for name in ("value", "lo", "hi"))
    if np.isnan(value):
        return "–"
    return minus(f"{value:.3g}" if np.isnan(lo) else f"{value:.2f} [{lo:.2f}, {hi:.2f}]")


def _threshold(row: dict[Any, Any]) -> str:
    """What the check asks for, in signs."""
    at = float(row["threshold"])
    if np.isnan(at):
        return "–"
    about_one = "explained effect" in str(row["measure"])
    at_most = str(row["measure"]).startswith(("p ", "mean |"))
    return f"1 ± {at:g}" if about_one else f"≤ {at:g}" if at_most else f"≥ {at:g}"


def _families(levels: pd.DataFrame) -> Panel:
    """The explained effect at each level of each facet, furthest from 1 first."""
    title = "Explained effect by family"
    tested = levels[levels["state"] != "not tested"] if len(levels) else levels
    if not len(tested):
        return Panel(title=f"{title}: none tested", bare=True)
    order = (tested["value"] - 1).abs().sort_values(ascending=False).index[:_MOST_LEVELS]
    shown = tested.loc[order]
    names = [f"{row.facet} = {row.level} (n = {row.n})" for row in shown.itertuples()]
    bars = Bars(
        at=range(len(shown)), values=shown["value"], lo=shown["lo"], hi=shown["hi"], horizontal=True,
        colours=[COLOURS[state] for state in shown["state"]],
    )  # fmt: skip
    limits = axis_range([0, 1], shown["lo"], shown["hi"])
    axis = Axis(label="Explained effect", limits=limits)
    return Panel(title=title, marks=[bars, Rule(at=1, of="x")], x=axis, y=names_axis(names, down=True))


def _followed(examples: pd.DataFrame, metric: str) -> Panel:
    """The metric with the set alone against that of the whole model, a point per example, coloured by family."""
    limits = axis_range(examples["full"], examples["kept"])
    marks: list[Line | Rule] = [Line(x=limits or (0, 1), y=limits or (0, 1), colour="#999999", width=0.8)]
    first = examples["family"].str.split("; ").str[0].replace("", "examples")
    levels = list(dict.fromkeys(first))
    for level, colour in zip(levels, [*_MARKS, *_MARKS[-1:] * len(levels)], strict=False):
        rows = examples[first == level]
        words = [str(text)[-60:] for text in rows["prompt"]] if "prompt" in rows else None
        look: dict[str, Any] = {
            "dash": "none",
            "marker": "circle",
            "colour": colour,
            "name": str(level),
            "words": words,
        }
        marks.append(Line(x=rows["full"], y=rows["kept"], **look))
    return Panel(
        title="Model against circuit, a point per example",
        marks=marks,
        x=Axis(label=f"{metric}, all heads", limits=limits),
        y=Axis(label=f"{metric}, the set alone", limits=limits),
        legend="lower right",
    )
