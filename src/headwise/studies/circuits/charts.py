"""How few heads explain the behaviour: the curves of all orders, and the attention of the first heads."""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.charts.attention import kept_heads
from headwise.charts.chart import Chart
from headwise.charts.explained_effect import explained_chart
from headwise.charts.section import SECTIONS, Section, Tables, groups, table_of
from headwise.charts.style import file_name
from headwise.heads import heads_of, ranked
from headwise.studies.circuits.findings import findings

NAME = "circuits"
"""File name of the figure with all orders; runs before the choice of an order have one figure per order."""


def charts(tables: Tables) -> list[Chart]:
    """The curves, then the maps of the first heads of each task and ablation type."""
    curves, threshold = tables["curves"], float(tables["circuits"]["threshold"].iloc[0])
    made = []
    if "choices" in tables:
        made.append(_all_orders(tables, threshold))
        maps = groups(table_of(tables, "attention"), "task", "reference")
    else:
        ratios = dict(groups(table_of(tables, "ratios"), "series"))
        for series in tables["circuits"]["series"].unique():
            part = curves[curves["order"] == series]
            about: dict[str, Any] = {
                "members": tables["members"],
                "ratios": ratios.get(series),
                "threshold": threshold,
            }
            orders = _orders(part[part["series"] == series], table_of(tables, "scores"))
            made.append(explained_chart(part, orders=orders, name=f"{NAME}-{file_name(series)}", **about))
        maps = groups(table_of(tables, "attention"), "task", "series")
    return made + [kept_heads(part, f"heads-{file_name(t)}-{file_name(of)}") for (t, of), part in maps]


def _all_orders(tables: Tables, threshold: float) -> Chart:
    """One figure: a row of panels per ablation type, the chosen order thick."""
    curves, circuits = tables["curves"], tables["circuits"]
    best = circuits[circuits["chosen"]]
    chosen = {(r["task"], r["model"], r["reference"]): str(r["series"]) for r in best.to_dict("records")}
    thick = curves[curves["chosen"] & curves["series"].eq(curves["order"])]
    return explained_chart(
        curves,
        members=tables["members"],
        ratios=table_of(tables, "ratios"),
        threshold=threshold,
        orders=_orders(thick, table_of(tables, "scores")),
        chosen=chosen,
        name=NAME,
    )


def _orders(curves: pd.DataFrame, scores: pd.DataFrame) -> dict[tuple[str, str, str], list[str]]:
    """The heads as the study ranked them, by task, model and ablation type; an unsigned score has one ranking."""
    orders: dict[tuple[str, str, str], list[str]] = {}
    columns = ["task", "model", "method", *(["reference"] if "reference" in scores else [])]
    by_score = dict(groups(scores, *columns))
    curves = curves if "reference" in curves else curves.assign(reference="")
    for (task, model, reference, series, by), _ in groups(
        curves, "task", "model", "reference", "series", "by"
    ):
        key = (task, model, str(series).removesuffix(f" {by}"))
        rows = by_score.get((*key, reference) if "reference" in scores else key)
        if rows is not None:
            kind = "signed" if by == "unsigned" else str(by)
            ranking = ranked(heads_of(rows), rows["score"].to_numpy(), kind)
            orders[task, model, reference] = [str(head) for head in ranking]
    return orders


section = Section(charts=charts, findings=findings, docs="circuits")
SECTIONS.add("circuits", section)
