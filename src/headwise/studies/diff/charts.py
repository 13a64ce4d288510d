"""The maps of two models and their paired difference, for each task and method."""

from __future__ import annotations

import pandas as pd

from headwise.charts.chart import Chart
from headwise.charts.comparison import difference_chart
from headwise.charts.section import SECTIONS, Section
from headwise.charts.style import file_name
from headwise.studies.diff.findings import findings
from headwise.tables.frames import HEAD_COLUMNS, Tables, groups, head_rows, table_of


def charts(tables: Tables) -> list[Chart]:
    scores, outcomes = table_of(tables, "scores"), table_of(tables, "outcomes")
    return [
        difference_chart(
            scores[(scores["task"] == task) & (scores["method"] == method)],
            rows.reset_index(drop=True),
            outcomes[outcomes["task"] == task],
            name=f"diff-{file_name(task)}-{file_name(method)}",
        )
        for (task, method), rows in groups(table_of(tables, "diff"), "task", "method")
    ]


def heads(tables: Tables) -> pd.DataFrame | None:
    """The scores of both models, then the change of each head."""
    diff = table_of(tables, "diff")
    if not len(diff):
        return head_rows(tables)
    change = diff.assign(model=diff["tuned"], measure="change of " + diff["method"], score=diff["difference"])
    return pd.concat([head_rows(tables), change.reindex(columns=HEAD_COLUMNS)], ignore_index=True)


section = Section(charts=charts, findings=findings, heads=heads, docs="diff")
SECTIONS.add("diff", section)
