"""Interaction matrices, effects with and without the primary set, joint removal, freezing."""

from __future__ import annotations

import pandas as pd

from headwise.charts.chart import Chart
from headwise.charts.interactions import (
    effects_chart,
    freezing_chart,
    interaction_scale,
    pairs_panel,
    removal_chart,
)
from headwise.charts.section import SECTIONS, Section
from headwise.charts.style import file_name
from headwise.charts.words import joined, span, under
from headwise.studies.backups.findings import findings
from headwise.tables.frames import HEAD_COLUMNS, Tables, groups, head_names, head_rows, table_of


def charts(tables: Tables) -> list[Chart]:
    """For each task: effects given the primary set, freezing, joint removal, and each model's matrix."""
    made: list[Chart] = []
    primary, order = table_of(tables, "primary"), table_of(tables, "curves")
    tasks = [task for task, _ in groups(order, "task")]
    for task in tasks:
        part = {
            name: _of(table_of(tables, name), task)
            for name in ("backups", "freezing", "curves", "interactions")
        }
        if len(part["backups"]):
            sets = {
                m: joined(head_names(rows[rows["accepted"]]))
                for m, rows in groups(_of(primary, task), "model")
            }
            made.append(effects_chart(part["backups"], sets, name=f"effects-{file_name(task)}"))
        if len(part["freezing"]):
            made.append(freezing_chart(part["freezing"], name=f"freezing-{file_name(task)}"))
        made.append(removal_chart(part["curves"], name=f"removal-{file_name(task)}"))
        for model, rows in groups(part["interactions"], "model"):
            made.append(_matrix(rows.reset_index(drop=True), str(model), str(task)))
    return made


def _of(table: pd.DataFrame, task: str) -> pd.DataFrame:
    return table[table["task"] == task].reset_index(drop=True) if len(table) else table


def _matrix(rows: pd.DataFrame, model: str, task: str) -> Chart:
    scale = interaction_scale(rows)
    panels = [pairs_panel(rows, scale, order, model=model) for order in ("layer", "cluster")]
    side = 2.2 + 0.13 * len(panels[0].y.names or ())
    return Chart(
        name=f"interactions-{file_name(model)}-{file_name(task)}",
        title=f"Interaction of every two heads, {task}, {model}, n = {span(rows['n'])}{under(rows)}",
        panels=panels,
        size=(2 * side + 1.4, side),
        columns=2,
        height=560,
        min_panel_width=420,
        caption="Blue: removing both heads costs more than the sum of their single effects; they can replace one "
        "another. Red: it costs less; they need one another. By cluster, heads that back each other up stand together.",
    )


def heads(tables: Tables) -> pd.DataFrame | None:
    """The single effects, then each head's difference given the primary set."""
    backups = table_of(tables, "backups")
    if not len(backups):
        return head_rows(tables)
    named = backups.assign(measure="backup", score=backups["difference"], unit=backups["metric"])
    return pd.concat([head_rows(tables), named.reindex(columns=HEAD_COLUMNS)], ignore_index=True)


section = Section(charts=charts, findings=findings, heads=heads, docs="backups")
SECTIONS.add("backups", section)
