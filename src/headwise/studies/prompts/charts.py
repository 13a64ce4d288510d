"""The charts of the study `prompts`: answers under each condition, and a head's attention. From tables alone."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Bars, Chart, Mark, Panel, Text, columns_of, distinct, names_axis
from headwise.charts.section import SECTIONS, Section, Tables, groups, table_of
from headwise.charts.style import file_name
from headwise.charts.words import span
from headwise.studies.prompts import map_charts
from headwise.studies.prompts.condition_style import bar_label, colours, explained
from headwise.studies.prompts.findings import LEVEL, answers, findings, headline, heads

_CAPTION = (
    "The same problems in every condition; bars carry 95 % intervals, a star where the difference is significant. "
    "Cut-off answers and answers without a result count as wrong and are in the numbers below. "
)
_ATTENTION = (
    "For each token, the mean attention of all later ones to it; the first and last tokens are left out. "
)


_USED = ("accuracy", "comparisons", "profiles", "moved", "affine", "activations", "curves")
_INSIDE = {
    "moved": map_charts.moved_maps,
    "affine": map_charts.affine_panels,
    "activations": map_charts.activation_panels,
}


def charts(tables: Tables) -> list[Chart]:
    """For each set of problems the answers with each head's attention, then what conditions do inside the model."""
    made = []
    for task in distinct(tables["accuracy"]["task"]):
        of_task = {name: tables[name][tables[name]["task"] == task] for name in _USED if name in tables}
        conditions = distinct(of_task["accuracy"]["condition"])
        drawn = _results(of_task, f"prompts-{file_name(task)}")
        for name, draw in _INSIDE.items():
            if len(of_task.get(name, ())) and "comparisons" in of_task:  # one condition alone changes nothing
                chart = draw(of_task[name], colours(conditions))
                drawn.append(replace(chart, name=f"{name}-{file_name(task)}"))
        curves = table_of(of_task, "curves")
        if len(curves) and curves.groupby("series")["k"].nunique().max() > 1:
            chart = map_charts.length_curves(curves, colours(conditions))
            drawn.append(replace(chart, name=f"lengths-{file_name(task)}"))
        meaning = explained(conditions)
        made += [replace(chart, caption=f"{chart.caption} {meaning}".strip()) for chart in drawn]
    return made


def _results(tables: Tables, name: str) -> list[Chart]:
    """A chart for each head; on the page the bars, which are the same in all, are in the first only."""
    accuracy, comparisons = tables["accuracy"], tables.get("comparisons")
    made: list[Chart] = []
    for (model, layer, head), part in groups(table_of(tables, "profiles"), "model", "layer", "head"):
        chart = prompt_chart(accuracy, comparisons, part)
        chart = replace(chart, name=f"{name}-{file_name(model)}-L{layer}H{head}")
        if made:
            chart = replace(chart, page=chart.page_panels[1:], caption=_ATTENTION, table=None)
        made.append(chart)
    return made or [replace(prompt_chart(accuracy, comparisons, None), name=name)]


def prompt_chart(
    accuracy: pd.DataFrame, comparisons: pd.DataFrame | None, profiles: pd.DataFrame | None
) -> Chart:
    """Left, the share of right answers by model and condition with intervals; right, one head's profile.

    `accuracy` and `comparisons` hold the rows of one set of problems, `profiles` those of one head of one model.
    The heading says whether any difference is significant.
    """
    conditions = accuracy["condition"].nunique()
    width = max(3.0, 1.2 + 0.34 * accuracy["model"].nunique() * (conditions + 1))
    panels = [_bars(accuracy, comparisons)]
    palette = colours(distinct(accuracy["condition"]))
    title, caption = f"Answers under each condition, {accuracy['task'].iloc[0]}", _CAPTION
    widths: tuple[float, ...] = (width,)
    if profiles is not None:
        panels += [map_charts.aligned_profile(profiles, palette), map_charts.full_profile(profiles, palette)]
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
        prompt=map_charts.prompt_text(profiles) if profiles is not None else "",
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


def _bars(accuracy: pd.DataFrame, comparisons: pd.DataFrame | None) -> Panel:
    models, conditions = distinct(accuracy["model"]), distinct(accuracy["condition"])
    palette, step = colours(conditions), 0.8 / len(conditions)
    starred = set()
    if comparisons is not None:
        significant = comparisons[comparisons["p_holm"] < LEVEL]
        starred = set(zip(significant["model"], significant["condition"], strict=True))
    marks: list[Mark] = []
    for number, name in enumerate(conditions):
        part = accuracy[accuracy["condition"] == name].set_index("model").reindex(models)
        at = np.arange(len(models)) + (number - (len(conditions) - 1) / 2) * step
        share, lo, hi = (100 * part[column].to_numpy(dtype=float) for column in ("accuracy", "lo", "hi"))
        rows = zip(models, share, lo, hi, strict=True)
        hover = [f"{model}: {value:.3g} [{low:.3g}, {high:.3g}]" for model, value, low, high in rows]
        look: dict[str, Any] = {"name": bar_label(name), "colours": palette[name], "thickness": 0.92 * step}
        look |= {"examples": columns_of(accuracy, "task") | {"condition": name}, "keys": models}
        marks.append(Bars(at=at, values=share, lo=lo, hi=hi, hover=hover, **look))
        marks += [
            Text(x=x, y=top, text="*", up="bottom", size=11)
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


section = Section(charts=charts, findings=findings, heads=heads, texts=answers, docs="prompts")
SECTIONS.add("prompts", section)
