"""Which heads serve which ability? A map per ability on one scale, and how far the abilities share heads."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headwise.charts.chart import Chart, Scale, grid_shape
from headwise.charts.heatmap import head_panel, importance_scale, matrix_panel, score_unit
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.charts.style import file_name
from headwise.charts.words import method_title, percent, shortened, span, wrapped
from headwise.tables.frames import LEVEL, Tables, distinct, groups, map_shape, significant, table_of

READABLE = "a probe shows what is readable from a head, not what the head does"


def findings(tables: Tables) -> list[Finding]:
    elbows, overlap, scores = (table_of(tables, name) for name in ("elbows", "overlap", "scores"))
    return [*_abilities(elbows, overlap, scores), *_probe(table_of(tables, "probe"))]


def _abilities(elbows: pd.DataFrame, overlap: pd.DataFrame, scores: pd.DataFrame) -> list[Finding]:
    """Heads per ability, by the elbow and by test, and how far abilities share heads, by method."""
    sentences: list[Finding] = []
    pairs = overlap[overlap["task"] != overlap["other"]] if len(overlap) else overlap
    by_score, by_pairs = (dict(groups(table, "model", "method")) for table in (scores, pairs))
    for (model, method), rows in groups(elbows, "model", "method"):
        if method == "probe":
            continue
        in_order = rows.sort_values("heads", kind="stable")
        least, most = in_order.iloc[0], in_order.iloc[-1]
        if len(rows) == 1:
            sentence = f"{model}, {method}: {most['task']} has {most['heads']} of {most['of']} heads before the elbow"
            tested = _significant(by_score[model, method])
            sentences.append(Finding(sentence=f"{sentence}{tested}.", weight=0.5))
            continue
        sentence = (
            f"{model}, {method}: {_tested(by_score[model, method], most['of'])}; {least['heads']} ({least['task']}) to "
            f"{most['heads']} ({most['task']}) of {most['of']} heads are before the elbow"
        )
        if (model, method) in by_pairs:
            shared = by_pairs[model, method]
            sentence += (
                f"; two abilities share {percent(shared['jaccard'].mean())} of their heads before the elbow on average "
                f"(by chance {percent(shared['by_chance'].mean())})"
            )
        chart = file_name("functions", model, method)
        plain = _plain(model, by_score[model, method], by_pairs.get((model, method)))
        found = bool((by_score[model, method]["q"] < LEVEL).any())
        sentences.append(Finding(sentence=sentence + ".", weight=0.5, chart=chart, plain=plain, found=found))
    return sentences


def _significant(scores: pd.DataFrame) -> str:
    """How many heads of the one ability differ significantly from 0, where the method has a test."""
    return "" if scores["q"].isna().all() else f"; {(scores['q'] < LEVEL).sum()} have q < .05"


def _tested(scores: pd.DataFrame, total: int) -> str:
    """How many heads are significant: a head before the elbow need not be."""
    if scores["q"].isna().all():
        return "the method has no significance test"
    counts = (scores["q"] < LEVEL).groupby(scores["task"], sort=False).sum().sort_values(kind="stable")
    without = int((counts == 0).sum())
    none = f", none in {without} of {len(counts)} abilities" if without else ""
    return (
        f"an ability has {counts.iloc[0]} ({counts.index[0]}) to {counts.iloc[-1]} ({counts.index[-1]}) of {total} "
        f"heads with q < .05{none}"
    )


def _plain(model: str, scores: pd.DataFrame, shared: pd.DataFrame | None) -> str:
    """In how many abilities some head is shown to matter, and whether abilities share their important heads."""
    if scores["q"].isna().all():
        return ""
    tested = (scores["q"] < LEVEL).groupby(scores["task"], sort=False).any()
    some = f"In {tested.sum()} of {len(tested)} abilities, some heads of {model} clearly matter"
    if not tested.any():
        some = f"In none of {len(tested)} abilities does a head of {model} clearly matter"
    if shared is None:
        return f"{some}."
    return (
        f"{some}; two abilities share {percent(shared['jaccard'].mean())} of their most important heads (by chance "
        f"{percent(shared['by_chance'].mean())})."
    )


def _probe(table: pd.DataFrame) -> list[Finding]:
    rows = table[table["task"] == "all"].to_dict("records") if len(table) else []
    return [
        Finding(
            sentence=f"A probe of {row['model']} predicts the ability of "
            f"{percent(row['accuracy'], row['lo'], row['hi'])} of {row['n']} held-out examples (chance "
            f"{percent(row['chance'])}, shuffled labels {percent(row['shuffled'])}, bag of words "
            f"{percent(row['bag_of_words'])}); {READABLE}.",
            weight=0.3,
        )
        for row in rows
    ]


def charts(tables: Tables) -> list[Chart]:
    """A chart of maps for each model and method, a grid of abilities and models for each method if there are several
    models, and a matrix of shared heads for each model with several abilities."""
    scores = table_of(tables, "scores")
    maps = [ability_maps(part) for _, part in groups(scores, "model", "method")]
    if scores["model"].nunique() > 1:
        maps += [model_grid(part) for _, part in groups(scores, "method")]
    overlaps = groups(table_of(tables, "overlap"), "model")
    return maps + [overlap_matrix(part) for _, part in overlaps if part["task"].nunique() > 1]


def ability_maps(table: pd.DataFrame) -> Chart:
    """A layer × head map for each ability of one model and method, four in a row, all on one scale.

    `table` holds the rows of `scores` of one model and one method; `task` is the ability. A signed score
    (column `signed`) gets a diverging scale centred at 0, any other viridis from 0. The scale ends at the 99th
    percentile, and its end says so.
    """
    first, shape = table.iloc[0], map_shape(table)
    scale = importance_scale(table["score"], bool(first["signed"]), f"Heads Importance{score_unit(table)}")
    panels = [
        head_panel(part, scale, title=str(ability), shape=shape, dots=significant(part))
        for ability, part in groups(table, "task")
    ]
    columns, rows = grid_shape(len(panels))
    notes = ["dot: q < .05"] if len(significant(table)) else []
    notes += [READABLE] if first["method"] == "probe" else []
    return Chart(
        name=file_name("functions", first["model"], first["method"]),
        title=f"{method_title(table)}, {first['model']}, n = {span(table['n'])} per ability",
        note="; ".join(notes),
        panels=panels,
        size=(2.3 * columns + 1.3, 2.5 * rows + 0.6),
        min_panel_width=230,
    )


def model_grid(table: pd.DataFrame) -> Chart:
    """The maps of one method on one scale: a row per ability, a column per model. `table`: its rows of `scores`."""
    first, models = table.iloc[0], distinct(table["model"])
    scale = importance_scale(table["score"], bool(first["signed"]), f"Heads Importance{score_unit(table)}")
    shapes = {model: map_shape(part) for model, part in groups(table, "model")}
    parts = dict(groups(table, "task", "model"))
    abilities = distinct(table["task"])
    panels = [
        None
        if (part := parts.get((ability, model))) is None
        else head_panel(
            part,
            scale,
            row=wrapped(ability, 14),
            column=shortened(model, 20, models),
            shape=shapes[model],
            dots=significant(part),
            most=(4, 5),
        )
        for ability in abilities
        for model in models
    ]
    return Chart(
        name=file_name("functions-models", first["method"]),
        title=f"{method_title(table)}, {len(models)} models, n = {span(table['n'])} per ability",
        note="dot: q < .05" if len(significant(table)) else "",
        panels=panels,
        page=(),  # it has the maps of each model already
        columns=len(models),
        size=(2.0 * len(models) + 1.5, 1.25 * len(abilities) + 0.9),
    )


def overlap_matrix(table: pd.DataFrame) -> Chart:
    """How far the heads of each two abilities are the same, one matrix per method.

    `table` holds the rows of `overlap` of one model. A number is the Jaccard index of the two sets of heads
    before the elbow. In brackets after the ability's name: for a signed score the significant heads (q < .05);
    then the heads before the elbow, which need not be significant.
    """
    abilities, scale = (
        distinct(table["task"]),
        Scale("viridis", 0, 1, "Jaccard index of the heads before the elbow"),
    )
    panels = []
    for method, part in groups(table, "method"):
        matrix = part.pivot(index="task", columns="other", values="jaccard").loc[abilities, abilities]
        counts = _counts(part)
        matrix.index = [f"{ability} ({counts[ability]})" for ability in abilities]
        hover = "{row} and {column}: {value}"
        panels.append(matrix_panel(matrix, scale, _short, title=str(method), hover=hover))
    columns = ["method", "task", "other", "jaccard", "by_chance", "heads", "other_heads", "significant"]
    model, side = table["model"].iloc[0], 0.42 * len(abilities)
    return Chart(
        name=file_name("overlap", model),
        title=f"Overlap of the abilities' heads, {model} (in brackets: significant heads; heads before the elbow)",
        panels=panels,
        caption="Jaccard index of the heads before the elbow: shared heads over heads in either list. The first number "
        "in brackets counts the significant heads (q < .05), the second the heads before the elbow. A head before the "
        "elbow need not be significant.",
        size=(1.9 + (side + 1.6) * len(panels) + 0.8, side + 2.0),
        columns=len(panels),
        page_columns=2,
        min_panel_width=440,
        height=460,
        table=table[[name for name in columns if name in table]],
    )


def _counts(part: pd.DataFrame) -> pd.Series:
    """Of each ability the significant heads, where there is a test, and the heads before the elbow."""
    rows = part.drop_duplicates("task").set_index("task")
    counts = rows["heads"].astype(str)
    if "significant" in rows:
        counts = (rows["significant"].astype(str) + "; ").where(rows["significant"].notna(), "") + counts
    return counts


def _short(value: float) -> str:
    """Two digits without the zero before the point; only the same sets are 1.

    >>> [_short(value) for value in (0.0, 0.256, 0.997, 1.0)]
    ['.00', '.26', '>.99', '1']
    """
    if np.isnan(value):
        return "–"
    return "1" if value == 1 else ">.99" if value > 0.99 else f"{value:.2f}"[1:]


section = SECTIONS.add("functions", Section(charts=charts, findings=findings, docs="functions"))
