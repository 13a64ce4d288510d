"""Which heads changed between two models? How many, which most, whether the answers changed; the maps of both."""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.charts.chart import Chart
from headwise.charts.comparison import difference_chart
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.charts.style import file_name
from headwise.charts.words import percent
from headwise.names import component_name
from headwise.tables.frames import HEAD_COLUMNS, Tables, groups, head_rows, significant, table_of


def findings(tables: Tables) -> list[Finding]:
    diff = groups(table_of(tables, "diff"), "task", "method")
    outcomes = table_of(tables, "outcomes").to_dict("records")
    changes = [_changes(rows, str(task), str(method)) for (task, method), rows in diff]
    return [*changes, *(_accuracy(row) if row["metric"] == "accuracy" else _mean(row) for row in outcomes)]


def _changes(rows: pd.DataFrame, task: str, method: str) -> Finding:
    """How many heads changed, and the largest significant change (of all, where none is significant)."""
    changed = len(significant(rows))
    first, which = (
        (significant(rows) if changed else rows).iloc[0],
        "largest of them" if changed else "largest change",
    )
    named = component_name(first["layer"], first["head"])
    interval = f"95 % CI {first['lo']:.3g} to {first['hi']:.3g}, q = {first['q']:.2g}"
    numbers = f"{first['difference']:+.3g} {first['metric']}, {interval}"
    scores = f"{first['base_score']:.3g} to {first['tuned_score']:.3g}"
    total = rows["base_score"].abs().sum() or 1.0
    verb = "differs" if changed == 1 else "differ"
    return Finding(
        sentence=f"On {task}, {changed} of {len(rows)} heads {verb} between {first['base']} and {first['tuned']} at "
        f"q < .05 ({method}, n = {first['n']}, paired). The {which} is {named}: {numbers}, from {scores}.",
        weight=min(1.0, float(abs(first["difference"]) / total)),
    )


def _accuracy(row: dict[Any, Any]) -> Finding:
    points = [f"{100 * row[name]:+.0f}" for name in ("difference", "lo", "hi")]
    return Finding(
        sentence=f"Accuracy on {row['task']}: {percent(row['base_value'])} for {row['base']}, "
        f"{percent(row['tuned_value'])} for {row['tuned']} (difference {points[0]} points, 95 % CI {points[1]} to "
        f"{points[2]}, {row['test']} p = {row['p']:.2g}, n = {row['n']}).",
        weight=abs(float(row["difference"])),
    )


def _mean(row: dict[Any, Any]) -> Finding:
    """The task's metric with all heads, which can change where both accuracies are at their limit."""
    base, tuned = (f"{row[name]:.3g}" for name in ("base_value", "tuned_value"))
    change, lo, hi = (f"{row[name]:+.3g}" for name in ("difference", "lo", "hi"))
    size = abs(row["base_value"]) + abs(row["tuned_value"]) or 1.0
    return Finding(
        sentence=f"Mean {row['metric']} on {row['task']}: {base} for {row['base']}, {tuned} for {row['tuned']} "
        f"(difference {change}, 95 % CI {lo} to {hi}, {row['test']} p = {row['p']:.2g}, n = {row['n']}).",
        weight=abs(float(row["difference"])) / size,
    )


def charts(tables: Tables) -> list[Chart]:
    scores, outcomes = table_of(tables, "scores"), table_of(tables, "outcomes")
    return [
        difference_chart(
            scores[(scores["task"] == task) & (scores["method"] == method)],
            rows.reset_index(drop=True),
            outcomes[outcomes["task"] == task],
            name=file_name("diff", task, method),
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


section = SECTIONS.add("diff", Section(charts=charts, findings=findings, heads=heads, docs="diff"))
