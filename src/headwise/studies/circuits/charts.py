"""How few heads explain the behaviour: the curves of each order, and the attention of its first heads."""

from __future__ import annotations

import pandas as pd

from headwise.charts.attention import kept_heads
from headwise.charts.chart import Chart
from headwise.charts.explained_effect import explained_chart
from headwise.charts.section import SECTIONS, Section, Tables, table_of
from headwise.charts.style import file_name
from headwise.heads import heads_of, ranked
from headwise.studies.circuits.findings import findings


def charts(tables: Tables) -> list[Chart]:
    """The curves of each order, then the maps of the first heads of each task and order."""
    curves, sizes, ratios = tables["curves"], tables["circuits"], table_of(tables, "ratios")
    made = []
    for series in dict.fromkeys(sizes["series"]):
        made.append(
            explained_chart(
                curves[curves["order"] == series],
                members=tables["members"],
                ratios=ratios[ratios["series"] == series] if len(ratios) else None,
                threshold=float(sizes["threshold"].iloc[0]),
                orders=_orders(curves[curves["series"] == series], table_of(tables, "scores")),
                name=f"circuits-{file_name(series)}",
            )
        )
    attention = table_of(tables, "attention")
    if len(attention):
        for (task, series), part in attention.groupby(["task", "series"], sort=False):
            made.append(kept_heads(part, f"heads-{file_name(task)}-{file_name(series)}"))
    return made


def _orders(curves: pd.DataFrame, scores: pd.DataFrame) -> dict[tuple[str, str], list[str]]:
    """The heads as the study ranked them, by task and model; a score without a sign has one ranking."""
    orders: dict[tuple[str, str], list[str]] = {}
    if scores.empty:
        return orders
    for (task, model, series, by), _ in curves.groupby(["task", "model", "series", "by"], sort=False):
        own = scores[(scores["task"] == task) & (scores["model"] == model)]
        own = own[own["method"] == str(series).removesuffix(f" {by}")]
        ranking = ranked(heads_of(own), own["score"].to_numpy(), "signed" if by == "unsigned" else str(by))
        orders[str(task), str(model)] = [str(head) for head in ranking]
    return orders


section = Section(charts=charts, findings=findings)
SECTIONS.add("circuits", section)
