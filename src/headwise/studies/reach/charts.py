"""Effect and accuracy against the share of the KV cache; the maps of the rankings; plain text by position."""

from __future__ import annotations

import pandas as pd

from headwise.charts.chart import GREY, Axis, Chart, Line, Panel, Rule
from headwise.charts.section import SECTIONS, Section
from headwise.charts.style import file_name
from headwise.charts.words import shortened, under
from headwise.studies.reach.findings import SERIES, findings, series_name
from headwise.studies.score.charts import charts as score_charts
from headwise.tables.frames import Tables, groups, table_of

COLOURS = dict(zip(SERIES, ("#1f6fb4", "#2a9d4e", "#8a5fb0", "#d1352b", GREY, "#c48a1a"), strict=True))
OTHERS = ("#0b7a75", "#a0522d", "#5b5b9a")
"""Of rankings by further methods, in turn."""


def charts(tables: Tables) -> list[Chart]:
    """A chart of the curves and one of the text for each model and task; then the map of each ranking."""
    curves = [cache_chart(part) for _, part in groups(table_of(tables, "reach"), "model", "task")]
    texts = [text_chart(part) for _, part in groups(table_of(tables, "text"), "model", "task")]
    maps = score_charts({"scores": table_of(tables, "scores")})
    return [*curves, *maps, *texts]


def colours(series: list[str]) -> dict[str, str]:
    """The colour of each series."""
    further = [name for name in series if name not in COLOURS]
    return COLOURS | {name: OTHERS[place % len(OTHERS)] for place, name in enumerate(further)}


def cache_chart(table: pd.DataFrame) -> Chart:
    """`table` holds the rows of `reach` of one model and task: left the explained effect, right the accuracy."""
    first, colour = table.iloc[0], colours(list(table["series"].unique()))
    panels = []
    for column, lo, hi, label in (
        ("explained", "lo", "hi", "Explained Effect"),
        ("accuracy", "accuracy_lo", "accuracy_hi", "Accuracy"),
    ):
        if table[column].isna().all():  # no effect to explain, or no foils
            continue
        lines = [
            Line(
                x=part["share"],
                y=part[column],
                lo=part[lo],
                hi=part[hi],
                name=series_name(series),
                colour=colour[series],
                band=0.2 if series == first["series"] else 0,
                marker="circle",
                size=3,
                dash="dash" if series in ("random", "random_layer") else "solid",
                hover_x=part["far"],
            )
            for series, part in groups(table, "series")
            if part[column].notna().any()
        ]
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
        name="-".join(map(file_name, (first["model"], first["task"], "reach"))),
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
    first, colour = table.iloc[0], colours([*table["series"].unique()])
    lines = [
        Line(
            x=part["position"],
            y=part["rise"],
            lo=part["lo"],
            hi=part["hi"],
            name=series_name(series),
            colour="#b5651d" if series == "window alone" else colour[series],
            band=0.2 if series in (first["series"], "window alone") else 0,
            marker="circle",
            size=3,
        )
        for series, part in groups(table, "series")
    ]
    return Chart(
        name="-".join(map(file_name, (first["model"], first["task"], "text"))),
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


section = Section(charts=charts, findings=findings, docs="reach")
SECTIONS.add("reach", section)
