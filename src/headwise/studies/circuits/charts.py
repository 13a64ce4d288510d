"""How few heads explain the behaviour: the curves of each order, and the attention of its first heads."""

from __future__ import annotations

import pandas as pd

from headwise.charts.attention import kept_heads
from headwise.charts.chart import Chart
from headwise.charts.explained_effect import explained_chart
from headwise.charts.section import SECTIONS, Section, Tables, groups, table_of
from headwise.charts.style import file_name
from headwise.heads import heads_of, ranked
from headwise.studies.circuits.findings import findings


def charts(tables: Tables) -> list[Chart]:
    """The curves of each order, then the maps of the first heads of each task and order."""
    curves, sizes = tables["curves"], tables["circuits"]
    ratios = dict(groups(table_of(tables, "ratios"), "series"))
    made = [
        explained_chart(
            curves[curves["order"] == series],
            members=tables["members"],
            ratios=ratios.get(series),
            threshold=float(sizes["threshold"].iloc[0]),
            orders=_orders(curves[curves["series"] == series], table_of(tables, "scores")),
            name=f"circuits-{file_name(series)}",
        )
        for series in sizes["series"].unique()
    ]
    for (task, series), part in groups(table_of(tables, "attention"), "task", "series"):
        made.append(kept_heads(part, f"heads-{file_name(task)}-{file_name(series)}"))
    return made


def _orders(curves: pd.DataFrame, scores: pd.DataFrame) -> dict[tuple[str, str], list[str]]:
    """The heads as the study ranked them, by task and model; an unsigned score has one ranking."""
    orders: dict[tuple[str, str], list[str]] = {}
    by_score = dict(groups(scores, "task", "model", "method"))
    for (task, model, series, by), _ in groups(curves, "task", "model", "series", "by"):
        rows = by_score.get((task, model, str(series).removesuffix(f" {by}")))
        if rows is not None:
            key = "signed" if by == "unsigned" else str(by)
            ranking = ranked(heads_of(rows), rows["score"].to_numpy(), key)
            orders[task, model] = [str(head) for head in ranking]
    return orders


section = Section(charts=charts, findings=findings, docs="circuits")
SECTIONS.add("circuits", section)
