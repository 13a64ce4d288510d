"""The map of every score, beside the heads that stand out."""

from __future__ import annotations

from headwise.charts.chart import Chart
from headwise.charts.heatmap import importance, score_chart
from headwise.charts.section import SECTIONS, Section, Tables, table_of
from headwise.charts.style import file_name
from headwise.studies.score.findings import findings


def charts(tables: Tables) -> list[Chart]:
    """One chart for each model, task and method; the tasks of a model and method share one scale."""
    made: list[Chart] = []
    scores = table_of(tables, "scores")
    if scores.empty:
        return made
    for (_, _), part in scores.groupby(["model", "method"], sort=False):
        signed = bool(part["signed"].iloc[0]) if "signed" in part else True
        unit = f" ({part['metric'].iloc[0]})" if "metric" in part else ""
        scale = importance(part["score"], signed, f"Score{unit}")
        for (model, task, method), own in part.groupby(["model", "task", "method"], sort=False):
            name = "-".join(map(file_name, (model, task, method)))
            made.append(score_chart(own.reset_index(drop=True), signed=signed, scale=scale, name=name))
    return made


section = Section(charts=charts, findings=findings)
SECTIONS.add("score", section)
