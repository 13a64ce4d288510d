"""The map of every score, beside the heads with the largest scores."""

from __future__ import annotations

from headwise.charts.chart import Chart
from headwise.charts.heatmap import importance, position_chart, score_chart, score_unit
from headwise.charts.section import SECTIONS, Section
from headwise.charts.style import file_name
from headwise.studies.score.findings import findings
from headwise.tables.frames import Tables, groups, table_of


def charts(tables: Tables) -> list[Chart]:
    """One chart for each model, task and method; the tasks of a model and method share one scale."""
    made: list[Chart] = []
    for _, part in groups(table_of(tables, "scores"), "model", "method"):
        signed = bool(part["signed"].iloc[0]) if "signed" in part else True
        scale = importance(part["score"], signed, f"Score{score_unit(part)}")
        for names, rows in groups(part, "model", "task", "method"):
            name = "-".join(map(file_name, names))
            made.append(score_chart(rows.reset_index(drop=True), signed=signed, scale=scale, name=name))
    for names, rows in groups(table_of(tables, "positions"), "model", "task", "method"):
        made.append(position_chart(rows, name="-".join(map(file_name, (*names, "positions")))))
    return made


section = Section(charts=charts, findings=findings)
SECTIONS.add("score", section)
