"""The circuit of each model and task as a layered graph, and the explained effect against edges kept."""

from __future__ import annotations

from headwise.charts.chart import Chart
from headwise.charts.section import SECTIONS, Section
from headwise.charts.style import file_name
from headwise.charts.wiring import edge_curve_chart, wiring_chart
from headwise.charts.words import task_title, under
from headwise.studies.wiring.findings import findings
from headwise.tables.frames import Tables, groups, table_of


def charts(tables: Tables) -> list[Chart]:
    made = [
        wiring_chart(rows.reset_index(drop=True), name=f"wiring-{file_name(model)}-{file_name(task)}")
        for (model, task), rows in groups(table_of(tables, "edges"), "model", "task")
    ]
    for (model, task), rows in groups(table_of(tables, "gradient"), "model", "task"):
        of, method = rows["of"].iloc[0], rows["method"].iloc[0]
        title = (
            f"The largest of all {of:,} edges of {model} on {task_title(str(task))} ({method}){under(rows)}"
        )
        name = f"wiring-all-{file_name(model)}-{file_name(task)}"
        made.append(wiring_chart(rows.reset_index(drop=True), most=40, name=name, title=title))
    curves = table_of(tables, "curves")
    if len(curves):
        members, ratios = (table_of(tables, name) for name in ("members", "ratios"))
        threshold = float(tables["circuits"]["threshold"].iloc[0])
        made.append(
            edge_curve_chart(
                curves,
                members=members if len(members) else None,
                ratios=ratios,
                threshold=threshold,
                name="wiring-curves",
            )
        )
    return made


section = Section(charts=charts, findings=findings, docs="wiring")
SECTIONS.add("wiring", section)
