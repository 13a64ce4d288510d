"""How few heads explain the behaviour: the curves of all orders, and the attention of the first heads."""

from __future__ import annotations

import pandas as pd

from headwise.charts.attention import kept_heads
from headwise.charts.chart import Chart
from headwise.charts.explained_effect import explained_chart
from headwise.charts.section import SECTIONS, Section
from headwise.charts.style import file_name
from headwise.heads import heads_of, ranked
from headwise.studies.circuits.findings import chart_name, findings
from headwise.tables.frames import Tables, groups, table_of


def charts(tables: Tables) -> list[Chart]:
    """For each ablation type the curves of all orders, the chosen one thick; then the maps of the first heads of each
    task and ablation type."""
    curves, circuits = tables["curves"], tables["circuits"]
    best = circuits[circuits["chosen"]].to_dict("records")
    thick = curves[curves["chosen"] & curves["series"].eq(curves["order"])]
    of_every_order = [
        explained_chart(
            part,
            members=tables["members"],
            ratios=table_of(tables, "ratios"),
            threshold=float(circuits["threshold"].iloc[0]),
            orders=_orders(thick, tables["scores"]),
            chosen={(row["task"], row["model"], row["reference"]): str(row["series"]) for row in best},
            name=chart_name(circuits, str(reference)),
        )
        for reference, part in groups(curves, "reference")
    ]
    maps = groups(table_of(tables, "attention"), "task", "reference")
    return [
        *of_every_order,
        *(kept_heads(part, f"heads-{file_name(t)}-{file_name(of)}") for (t, of), part in maps),
    ]


def _orders(curves: pd.DataFrame, scores: pd.DataFrame) -> dict[tuple[str, str, str], list[str]]:
    """The heads as the study ranked them, by task, model and ablation type; an unsigned score has one ranking."""
    orders: dict[tuple[str, str, str], list[str]] = {}
    by_score = dict(groups(scores, "task", "model", "method", "reference"))
    for (task, model, reference, series, by), _ in groups(
        curves, "task", "model", "reference", "series", "by"
    ):
        rows = by_score.get((task, model, str(series).removesuffix(f" {by}"), reference))
        if rows is not None:
            ranking = ranked(
                heads_of(rows), rows["score"].to_numpy(), "signed" if by == "unsigned" else str(by)
            )
            orders[task, model, reference] = [str(head) for head in ranking]
    return orders


section = Section(charts=charts, findings=findings, docs="circuits")
SECTIONS.add("circuits", section)
