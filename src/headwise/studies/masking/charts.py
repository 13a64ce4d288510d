"""What masking does to a model's texts: curves per ability, the cross table, and what amplifying does.

The layout of the curves on paper follows Cognitive Mirrors (arXiv 2512.10978): two scales in one panel. The page
has a panel for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Cells, Chart, Line, Panel, Scale
from headwise.charts.section import SECTIONS, Section, Tables, by_model, head_names, table_of
from headwise.charts.style import file_name
from headwise.charts.words import plus, span, wrapped
from headwise.studies.masking.findings import findings, samples

COLUMNS = 4
BLUE, RED, GREY = "#1f5fbf", "#d62728", "#737373"
NAMES = {
    "chrf": "chrF",
    "bleu": "BLEU",
    "rouge1": "ROUGE-1",
    "cosine": "Cosine",
    "comet": "Comet",
    "agreement": "Agreement",
    "accuracy": "Accuracy",
}
_BESIDE = (1.1, 1.21)
"""Layer-matched points stand a little to the right of their K, so that they hide neither lines nor one another."""
_STRONGER = "task kind series strength before after change change_lo change_hi n".split()


def charts(tables: Tables) -> list[Chart]:
    """For each model its curves, its cross table and its interventions."""
    orders = table_of(tables, "orders")
    made = [masking_curves(part, _first_heads(orders, model)) for model, part in by_model(tables["curves"])]
    made += [cross_table(part) for _, part in by_model(table_of(tables, "cross"))]
    return made + [intervention_curves(part) for _, part in by_model(table_of(tables, "interventions"))]


def _first_heads(orders: pd.DataFrame, model: str) -> dict[str, list[str]]:
    """The heads that were masked, by ability, in the order in which they went."""
    if orders.empty:
        return {}
    own = orders[(orders["model"] == model) & (orders["series"] == "top")]
    return {
        str(task): head_names(part[part["k"] == part["k"].max()].sort_values("place"))
        for task, part in own.groupby("task", sort=False)
    }


def masking_curves(table: pd.DataFrame, orders: Mapping[str, Sequence[str]] | None = None) -> Chart:
    """Score against the number of masked heads, a panel per ability of one model.

    `table` holds the rows of `curves`; those of single draws are left out. Accuracy is blue and the similarity
    with the full model's texts red (right-hand axis); the order's first heads solid, random ones dashed,
    layer-matched ones open diamonds. Bands are bootstrap intervals over examples and draws. A dotted line
    carries the accuracy with no head masked.
    """
    table = table[table["draw"].isna()] if "draw" in table else table
    abilities = list(dict.fromkeys(table["task"]))
    metrics = sorted(dict.fromkeys(table["metric"]), key=lambda name: name != "accuracy")[:2]
    low = min(0.0, math.floor(10 * float(table["lo"].min(skipna=True))) / 10)
    score = Axis(label="Score", limits=(low - 0.03, 1.03), ticks=(0, 0.2, 0.4, 0.6, 0.8, 1), grid=True)
    paper, page = [], []
    for ability in abilities:
        part = table[table["task"] == ability]
        own = [_lines(part, metric, number) for number, metric in enumerate(metrics)]
        right = [[replace(line, right=True) for line in lines] for lines in own[1:]]
        about: dict[str, Any] = {"x": _masked(part), "model": str(part["model"].iloc[0])}
        about["orders"] = {"top": (orders or {}).get(str(ability), ())}
        similarity = (
            replace(score, label=_name(metrics[1]), colour=RED, grid=False) if len(metrics) > 1 else None
        )
        marks = sorted((line for lines in (own[0], *right) for line in lines), key=_rank)
        paper.append(Panel(title=wrapped(ability), marks=marks, y=score, y2=similarity, **about))
        for metric, lines in zip(metrics, own, strict=True):
            y = replace(score, label=_name(metric))
            page.append(Panel(title=f"{wrapped(ability)}, {_name(metric)}", marks=lines, y=y, **about))
    columns = min(COLUMNS, len(abilities))
    model = str(table["model"].iloc[0])
    return Chart(
        name=f"masking-{file_name(model)}",
        title=f"Masking the heads of {model}",
        heading="",
        note=f"{model}, n = {span(table['n'])} per ability, 95 % bands",
        panels=paper,
        page=page,
        caption="Accuracy (blue) and similarity with the unmasked model's text (red) against the number of masked "
        "heads: the ability's first heads, as many random ones, as many random ones of the same layers. "
        "Bands are 95 % over examples and draws.",
        size=(max(5.2, 2.6 * columns + 0.9), 2.5 * math.ceil(len(abilities) / columns) + 0.9),
        columns=columns,
        page_columns=2,
        legend_columns=2 if len(abilities) < 3 else 6,
        least=340,
        height=280,
        table=table[["model", "task", "series", "k", "metric", "value", "lo", "hi", "n"]],
    )


def _rank(line: Line) -> int:
    """Lines stand before single points in the legend, and what is common to all last."""
    return (line.marker == "diamond") + 2 * (not line.marker)


def _masked(part: pd.DataFrame) -> Axis:
    ks = sorted({int(k) for k in part["k"] if k > 0})
    limits = (min(ks) / 1.25, max(ks) * 1.3)
    return Axis(label="# Masked Heads", scale="log", ticks=ks, names=[str(k) for k in ks], limits=limits)


def _lines(part: pd.DataFrame, metric: str, number: int) -> list[Line]:
    """The curves of one metric of one ability, with what is measured when no head is masked."""
    own = part[part["metric"] == metric]
    look: dict[str, Any] = {"colour": (BLUE, RED)[number], "marker": "circle"}
    about: dict[str, Any]
    lines = []
    for series, word, dash in (("top", "TopK", "solid"), ("random", "RandomK", "dash")):
        line = own[own["series"] == series].sort_values("k")
        about = {"lo": line["lo"], "hi": line["hi"], "dash": dash, "hollow": series == "random", **look}
        about |= {"name": f"{word} {_name(metric)}", "band": 0.13 if series == "top" else 0.08}
        lines.append(Line(x=line["k"], y=line["value"], width=1.4, **about))
    matched = own[own["series"] == "random_layer"]
    if len(matched):
        about = {
            "lo": matched["lo"],
            "hi": matched["hi"],
            "hover_x": matched["k"],
            "dash": "none",
            "hollow": True,
        }
        about |= {
            "name": "RandomK, same layers",
            "hover_prefix": _name(metric),
            **look,
            "marker": "diamond",
            "size": 4.5,
        }
        lines.append(Line(x=matched["k"] * _BESIDE[number], y=matched["value"], **about))
    whole = own[own["k"] == 0]
    if metric == "accuracy" and len(whole):
        first = whole.iloc[0]
        about = {
            "name": "Accuracy, none masked",
            "hover_x": [0, 0],
            "dash": "dot",
            "colour": GREY,
            "width": 1,
        }
        about |= {"lo": [first["lo"]] * 2, "hi": [first["hi"]] * 2, "band": 0}
        lines.append(Line(x=_masked(part).limits or (0, 1), y=[first["value"]] * 2, **about))
    return lines


def cross_table(table: pd.DataFrame, metric: str = "accuracy") -> Chart:
    """How much of each ability is left when another's heads are masked.

    `table` holds the rows of `cross` of one model. A number is the change of accuracy, masked minus full; in
    bold where its interval leaves out 0. Rows are whose heads were masked, columns what was measured.
    """
    own = table[table["metric"] == metric]
    owners, measured = list(dict.fromkeys(own["heads_of"])), list(dict.fromkeys(own["task"]))
    own = own.assign(clear=(own["change_lo"] > 0) | (own["change_hi"] < 0))
    change, clear = (
        own.pivot(index="heads_of", columns="task", values=name).loc[owners, measured].to_numpy()
        for name in ("change", "clear")
    )
    full = own.drop_duplicates("task").set_index("task")["full"]
    cells = Cells(
        values=change.astype(float),
        scale=Scale("RdBu", -1, 1, f"Change of {_name(metric)}"),
        words=np.array([[plus(value, 2) for value in line] for line in change]),
        bold=clear.astype(bool),
        hover="heads of {row} masked, {column} measured: {value}",
    )
    names = [f"{wrapped(name)} ({full[name]:.2f})" for name in measured]
    axes = (
        Axis(label="Measured (accuracy with every head)", names=names, angle=40),
        Axis(label="Whose heads are masked", names=[wrapped(name) for name in owners]),
    )
    x, y = (replace(axis, ticks=range(len(axis.names or ()))) for axis in axes)
    panel = Panel(
        marks=[cells],
        x=replace(x, limits=(-0.5, len(measured) - 0.5)),
        y=replace(y, limits=(len(owners) - 0.5, -0.5)),
    )
    first = own.iloc[0]
    columns = ["heads_of", "task", "k", "value", "lo", "hi", "full", "change", "change_lo", "change_hi", "n"]
    return Chart(
        name=f"masking-cross-{file_name(first['model'])}",
        title=f"Mask one ability's heads, measure another, {first['model']}",
        heading=f"{first['k']} heads masked, {first['model']}, n = {span(own['n'])}; bold: interval without 0",
        panels=[panel],
        size=(3.6 + 0.62 * len(measured), 2.6 + 0.62 * len(owners)),
        columns=1,
        height=max(300, 60 + 44 * len(owners)),
        table=own[[name for name in columns if name in own]],
    )


def intervention_curves(table: pd.DataFrame) -> Chart:
    """Accuracy against the strength of an intervention, a panel per ability and kind.

    `table` holds the rows of `interventions` of one model. The first point of a line is the accuracy before.
    """
    kinds, abilities = list(dict.fromkeys(table["kind"])), list(dict.fromkeys(table["task"]))
    panels: list[Panel | None] = []
    for kind in kinds:
        for ability in abilities:
            part = table[(table["kind"] == kind) & (table["task"] == ability)]
            panels.append(_strengths(part, kind, ability) if len(part) else None)
    first = table.iloc[0]
    return Chart(
        name=f"interventions-{file_name(first['model'])}",
        title=f"Making heads stronger, {first['model']}",
        heading="",
        note=f"K = {first['k']}, {first['model']}, n = {span(table['n'])} per ability",
        panels=panels,
        size=(max(4.6, 2.3 * len(abilities) + 0.8), 2.3 * len(kinds) + 0.8),
        columns=len(abilities),
        page_columns=3,
        least=280,
        table=table[[name for name in _STRONGER if name in table]],
    )


def _strengths(part: pd.DataFrame, kind: str, ability: str) -> Panel:
    name, start = ("Gate", 1.0) if kind == "amplify" else ("α", 0.0)
    lines = []
    for series, colour, dash, word in (
        ("top", BLUE, "solid", "first heads of the order"),
        ("random", GREY, "dash", "random heads"),
    ):
        line = part[part["series"] == series].sort_values("strength")
        if line.empty:
            continue
        before = line.iloc[0]
        about: dict[str, Any] = {
            "lo": [before["before_lo"], *line["lo"]],
            "hi": [before["before_hi"], *line["hi"]],
        }
        about |= {"name": word, "colour": colour, "dash": dash, "marker": "circle", "band": 0.12}
        lines.append(Line(x=[start, *line["strength"]], y=[before["before"], *line["after"]], **about))
    y = Axis(label="Accuracy", limits=(-0.03, 1.03))
    return Panel(row=kind, column=wrapped(ability), marks=lines, x=Axis(label=name), y=y)


def _name(metric: str) -> str:
    return NAMES.get(metric, metric)


section = Section(charts=charts, findings=findings, texts=samples)
SECTIONS.add("masking", section)
