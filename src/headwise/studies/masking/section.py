"""Does the model fail when its important heads are ablated, and not when random heads are?

Curves per ability, the cross table, and what amplifying does. The layout of the curves on paper follows Cognitive
Mirrors (arXiv 2512.10978): two scales in one panel. The page has a panel for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd

from headwise.charts.chart import GREY, Axis, Chart, Line, Panel, Scale, curve, grid_shape
from headwise.charts.heatmap import matrix_panel
from headwise.charts.random_controls import CONTROLS, better_than_all
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.charts.style import file_name
from headwise.charts.words import joined, percent, plus, span, under, wrapped
from headwise.tables.frames import Tables, columns_of, distinct, groups, head_names, table_of

LOW = 0.5
"""Below this share of right answers with no head masked there is little that masking could take away."""


def findings(tables: Tables) -> list[Finding]:
    """Top-k against random heads at the k where they differ most, for each ability; and which start low."""
    curves = mean_curves(tables["curves"])
    accuracy = curves[curves["metric"] == "accuracy"]
    by_ability = groups(accuracy, "model", "task")
    found = [one for (model, task), rows in by_ability if (one := _largest_gap(model, task, rows))]
    few = accuracy[(accuracy["k"] == 0) & (accuracy["value"] < LOW)]
    return found + [_low_start(model, rows) for model, rows in groups(few, "model")]


def _largest_gap(model: str, task: str, accuracy: pd.DataFrame) -> Finding | None:
    by_series = {series: rows.set_index("k") for series, rows in groups(accuracy, "series")}
    if not {"full", "top", "random"} <= set(by_series):
        return None
    top, random = by_series["top"], by_series["random"]
    gaps = (random["value"] - top["value"]).dropna()
    k: Any = gaps.idxmax()
    full, ablated, control = by_series["full"].iloc[0], top.loc[k], random.loc[k]
    apart = bool(ablated["hi"] < control["lo"])
    overlap = "" if apart else "; the intervals overlap"
    with_top, with_random = (percent(row["value"], row["lo"], row["hi"]) for row in (ablated, control))
    least = f"{percent(ablated['value'])} right answers"
    others = f"{percent(full['value'])}, without {k} random heads {percent(control['value'])}"
    plain = f"{model} gives {least} in {task} without its {k} most important heads; with all heads it gives {others}."
    if not apart:
        plain = (
            f"A clear loss of {model} in {task}: it gives {least} without its {k} most important heads, with all "
            f"heads {others}; so few examples cannot tell these apart."
        )
    return Finding(
        sentence=f"{task}, {model}: accuracy {percent(full['value'])} with all heads, {with_top} when its top {k} "
        f"heads are ablated, {with_random} when {k} random heads are ablated{overlap}.",
        weight=max(0.0, float(gaps.max())),
        chart=file_name("masking", model),
        plain=plain,
        found=apart,
    )


def _low_start(model: str, full: pd.DataFrame) -> Finding:
    """That there is little to lose, from the rows of the full model on the abilities where this is so."""
    shares = joined(
        [f"{task} {percent(value)}" for task, value in zip(full["task"], full["value"], strict=True)]
    )
    sentence = (
        f"{model} answers few examples correctly with all heads ({shares}), so masking has little to remove there; "
        "give easier examples, examples in the prompt (shots) or another accuracy metric."
    )
    return Finding(sentence=sentence, chart=file_name("masking", model), found=False)


def mean_curves(curves: pd.DataFrame) -> pd.DataFrame:
    """The curves without those of single random draws."""
    return curves[curves["draw"].isna()] if "draw" in curves else curves


def samples(tables: Tables) -> pd.DataFrame | None:
    return table_of(tables, "samples")


# ---- charts --------------------------------------------------------------------------------------


BLUE, RED = "#1f5fbf", "#d62728"
NAMES = {"chrf": "chrF", "bleu": "BLEU", "rouge1": "ROUGE-1"}
NAMES |= {name: name.capitalize() for name in ("cosine", "comet", "agreement", "accuracy")}
_BESIDE = (1.1, 1.21)
"""Layer-matched points are drawn a little to the right of their k, so that they hide neither lines nor one another."""
_SERIES: dict[str, dict[str, Any]] = {
    "top": {"name": "top heads of the order", "colour": BLUE},
    "random": {"name": "random heads", "colour": GREY, "dash": "dash"},
}
_MEASURED = ("model", "task", "series", "metric")
_CROSS = "heads_of task k value lo hi full change change_lo change_hi n".split()
_STRENGTHS = "task kind series strength before after change change_lo change_hi n".split()


def charts(tables: Tables) -> list[Chart]:
    """For each model its curves, its cross table and its interventions."""
    orders = dict(groups(table_of(tables, "orders"), "model"))
    curves = groups(tables["curves"], "model")
    return [
        *(masking_curves(part, _orders(orders.get(model))) for model, part in curves),
        *(cross_table(part) for _, part in groups(table_of(tables, "cross"), "model")),
        *(intervention_curves(part) for _, part in groups(table_of(tables, "interventions"), "model")),
    ]


def _orders(orders: pd.DataFrame | None) -> dict[str, list[str]]:
    """The heads that were masked, by ability, in the order in which they were masked."""
    if orders is None:
        return {}
    return {
        str(task): head_names(part[part["k"] == part["k"].max()].sort_values("place"))
        for task, part in groups(orders[orders["series"] == "top"], "task")
    }


def masking_curves(table: pd.DataFrame, orders: Mapping[str, Sequence[str]] | None = None) -> Chart:
    """Score against the number of masked heads, a panel per ability of one model.

    `table` holds the rows of `curves`; those of single draws are left out. Accuracy is blue and the similarity
    with the full model's texts red (right-hand axis); the order's first heads solid, random ones dashed,
    layer-matched ones open diamonds. Bands are 95 % intervals over examples and draws. A dotted line
    carries the accuracy with no head masked.
    """
    table = mean_curves(table)
    model, abilities = str(table["model"].iloc[0]), groups(table, "task")
    metrics = sorted(distinct(table["metric"]), key=lambda metric: metric != "accuracy")[:2]
    low = min(0.0, math.floor(10 * float(table["lo"].min(skipna=True))) / 10)
    score = Axis(label="Score", limits=(low - 0.03, 1.03), ticks=(0, 0.2, 0.4, 0.6, 0.8, 1), grid=True)
    similarity = replace(score, label=_name(metrics[1]), colour=RED, grid=False) if len(metrics) > 1 else None
    paper, page = [], []
    for ability, part in abilities:
        lines = [_lines(part, metric, number) for number, metric in enumerate(metrics)]
        right = [replace(line, right=True) for others in lines[1:] for line in others]
        order = {"top": (orders or {}).get(str(ability), ())}
        shared: dict[str, Any] = {"x": _masked(part), "model": model, "orders": order}
        title, marks = wrapped(ability), sorted([*lines[0], *right], key=_rank)
        paper.append(Panel(title=title, marks=marks, y=score, y2=similarity, **shared))
        for metric, marks in zip(metrics, lines, strict=True):
            y = replace(score, label=_name(metric))
            page.append(Panel(title=f"{title}, {_name(metric)}", marks=marks, y=y, **shared))
    columns, rows = grid_shape(len(abilities))
    return Chart(
        name=file_name("masking", model),
        title=f"Masking the heads of {model}{under(table)}",
        heading="",
        note=f"{model}{under(table)}, n = {span(table['n'])} per ability, 95 % bands",
        panels=paper,
        page=page,
        caption="Accuracy (blue) and similarity to the full model's text (red) against the number of masked heads: "
        "the ability's top heads (TopK), as many random heads (RandomK), as many random heads of the same layers. "
        "Bands are 95 % CIs over examples and draws. "
        + "".join(_better_controls(str(ability), part) for ability, part in abilities),
        size=(max(5.2, 2.6 * columns + 0.9), 2.5 * rows + 0.9),
        page_columns=2,
        legend_columns=2 if len(abilities) < 3 else 6,
        table=_side_by_side(table, metrics),
    )


def _side_by_side(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """A row for each point; each metric has columns of its own, since metrics differ in unit."""
    keys = ["model", "task", "series", "k", "n"]
    wide = table[table["metric"].isin(metrics)].pivot(
        index=keys, columns="metric", values=["value", "lo", "hi"]
    )
    named = {metric: {"value": _name(metric)} for metric in metrics}
    columns = [(part, metric) for metric in metrics for part in ("value", "lo", "hi")]
    wide = wide.loc[list(dict.fromkeys(map(tuple, table[keys].to_numpy()))), columns]
    names = [named[metric].get(part, f"{_name(metric)} {part}") for part, metric in columns]
    return wide.set_axis(names, axis=1).reset_index()


def _rank(line: Line) -> int:
    """Order in the legend: lines, then single points, then the accuracy with no head masked."""
    return (line.marker == "diamond") + 2 * (not line.marker)


def _masked(part: pd.DataFrame) -> Axis:
    ks = sorted({int(k) for k in part["k"] if k > 0})
    limits = (min(ks) / 1.25, max(ks) * 1.3)
    return Axis(label="# Masked Heads", scale="log", ticks=ks, names=[str(k) for k in ks], limits=limits)


def _lines(part: pd.DataFrame, metric: str, number: int) -> list[Line]:
    """The curves of one metric of one ability, and the accuracy with no head masked."""
    rows = part[part["metric"] == metric]
    top, random, matched = (rows[rows["series"] == name] for name in ("top", "random", "random_layer"))
    word, look = _name(metric), {"colour": (BLUE, RED)[number]}
    solid: dict[str, Any] = {**look, "name": f"TopK {word}", "marker": "circle", "width": 1.4, "band": 0.13}
    dashed = solid | {"name": f"RandomK {word}", "dash": "dash", "hollow": True, "band": 0.08}
    lines = [
        curve(points.sort_values("k"), examples=columns_of(points, *_MEASURED), **style)
        for points, style in ((top, solid), (random, dashed))
    ]
    if len(matched):
        points: dict[str, Any] = {"dash": "none", "marker": "diamond", "size": 4.5, "hollow": True, **look}
        points |= {"name": "RandomK, same layers", "hover_prefix": word, "hover_x": matched["k"]}
        points["examples"] = columns_of(matched, *_MEASURED)
        lines.append(curve(matched.assign(k=matched["k"] * _BESIDE[number]), **points))
    full = rows[rows["k"] == 0][:1]
    if metric == "accuracy" and len(full):
        flat: dict[str, Any] = {"name": "Accuracy, none masked", "colour": GREY, "dash": "dot", "width": 1}
        ends = pd.concat([full, full]).assign(k=_masked(part).limits)
        lines.append(curve(ends, hover_x=[0, 0], band=0, examples=columns_of(full, *_MEASURED), **flat))
    return lines


def cross_table(table: pd.DataFrame) -> Chart:
    """How much of each ability is left when another's heads are masked.

    `table` holds the rows of `cross` of one model. A number is the change of accuracy, masked minus full; in
    bold where its interval excludes 0. Rows are the ability whose heads were masked, columns what was measured.
    """
    rows = table[table["metric"] == "accuracy"]
    owners, measured = distinct(rows["heads_of"]), distinct(rows["task"])
    rows = rows.assign(clear=(rows["change_lo"] > 0) | (rows["change_hi"] < 0))
    change, clear = (
        rows.pivot(index="heads_of", columns="task", values=name).loc[owners, measured]
        for name in ("change", "clear")
    )
    full = rows.drop_duplicates("task").set_index("task")["full"]
    names = [f"{wrapped(name)} ({full[name]:.2f})" for name in measured]
    panel = matrix_panel(
        change.set_axis(names, axis=1).set_axis([wrapped(name) for name in owners]),
        Scale("RdBu", -1, 1, "Change of Accuracy"),
        lambda value: plus(value, 2),
        labels=("Measured ability (accuracy with all heads)", "Ability whose heads are masked"),
        bold=clear.to_numpy(dtype=bool),
        hover="heads of {row} masked, {column} measured: {value}",
    )
    first = rows.iloc[0]
    return Chart(
        name=file_name("masking-cross", first["model"]),
        title=f"Accuracy on each ability when another ability's heads are masked, {first['model']}{under(rows)}",
        heading=f"{first['k']} heads masked, {first['model']}, n = {span(rows['n'])}; bold: 95 % CI excludes 0",
        panels=[panel],
        size=(3.6 + 0.62 * len(measured), 2.6 + 0.62 * len(owners)),
        columns=1,
        height=max(300, 60 + 44 * len(owners)),
        table=rows[[name for name in _CROSS if name in rows]],
    )


def intervention_curves(table: pd.DataFrame) -> Chart:
    """Accuracy against the strength of an intervention, a panel per ability and kind.

    `table` holds the rows of `interventions` of one model. The first point of a line is the accuracy before.
    """
    parts = dict(groups(table, "kind", "task"))
    kinds, abilities = distinct(table["kind"]), distinct(table["task"])
    first = table.iloc[0]
    return Chart(
        name=file_name("interventions", first["model"]),
        title=f"Accuracy against the strength of an intervention on heads, {first['model']}",
        heading="",
        note=f"K = {first['k']}, {first['model']}, n = {span(table['n'])} per ability",
        panels=[_strengths(parts[cell]) if cell in parts else None for cell in product(kinds, abilities)],
        size=(max(4.6, 2.3 * len(abilities) + 0.8), 2.3 * len(kinds) + 0.8),
        columns=len(abilities),
        page_columns=3,
        table=table[[name for name in _STRENGTHS if name in table]],
    )


def _strengths(part: pd.DataFrame) -> Panel:
    kind, ability = part[["kind", "task"]].iloc[0]
    label, start = ("Gate", 1.0) if kind == "amplify" else ("α", 0.0)
    lines = []
    for series, rows in groups(part, "series"):
        after = rows.sort_values("strength")
        before = after[:1].assign(
            strength=start, after=after["before"], lo=after["before_lo"], hi=after["before_hi"]
        )
        points = pd.concat([before, after])
        lines.append(curve(points, "strength", "after", marker="circle", band=0.12, **_SERIES[series]))
    y = Axis(label="Accuracy", limits=(-0.03, 1.03))
    return Panel(row=kind, column=wrapped(ability), marks=lines, x=Axis(label=label), y=y)


def _better_controls(ability: str, table: pd.DataFrame) -> str:
    """That the model answers better without some random heads than with all, where it does."""
    accuracy = table[table["metric"] == "accuracy"]
    full = accuracy[accuracy["series"] == "full"]
    if full.empty:
        return ""
    with_all = (float(full["value"].iloc[0]), float(full["hi"].iloc[0]))
    what = "without {k} random heads accuracy rises from"
    return better_than_all(accuracy[accuracy["series"].isin(CONTROLS)], with_all, ability, what, percent)


def _name(metric: str) -> str:
    return NAMES.get(metric, metric)


section = SECTIONS.add("masking", Section(charts=charts, findings=findings, texts=samples, docs="masking"))
