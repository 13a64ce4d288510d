"""Which edges are largest, how many are significant, how few explain the effect; the circuit as a layered graph."""

from __future__ import annotations

import pandas as pd

from headwise.charts.chart import Chart
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.charts.style import file_name
from headwise.charts.wiring import edge_curve_chart, wiring_chart
from headwise.charts.words import joined, percent, task_title, under
from headwise.tables.frames import Tables, by_size, groups, table_of, too_few


def findings(tables: Tables) -> list[Finding]:
    edges = dict(groups(table_of(tables, "edges"), "model", "task"))
    found = [_largest(rows, *names) for names, rows in edges.items()]
    circuits = table_of(tables, "circuits").to_dict("records")
    found += [_size(row) for row in circuits if row["defined"]]
    found += [_ratio(row) for row in table_of(tables, "ratios").to_dict("records")]
    defined = {(row["model"], row["task"]) for row in circuits}
    curves = groups(table_of(tables, "curve_examples"), "model", "task")
    return found + [
        _undefined(rows, edges[names]["metric"].iloc[0], *names)
        for names, rows in curves
        if names not in defined
    ]


def _largest(rows: pd.DataFrame, model: str, task: str) -> Finding:
    largest = by_size(rows)[:3]
    named = [
        f"{r['sender']} → {r['receiver']} ({r['score']:+.3g} [{r['lo']:.3g}, {r['hi']:.3g}])"
        for r in largest.to_dict("records")
    ]
    significant = int((rows["q"] < 0.05).sum())
    few = too_few(rows, "edge")
    total = float(rows["score"].abs().sum()) or 1.0
    return Finding(
        sentence=f"On {task}, the largest edges of {model} by {rows['method'].iloc[0]} are {joined(named)} "
        f"{rows['metric'].iloc[0]}; {significant} of {len(rows)} edges differ from 0 at q < .05 on held-out examples"
        f"{f' ({few})' if few else ''}.",
        weight=float(largest["score"].abs().sum()) / total,
        chart=file_name("wiring", model, task),
    )


def _size(row: dict[object, object]) -> Finding:
    sentence = (
        f"Circuit size at {percent(float(str(row['threshold'])))} faithfulness, {row['model']} on {row['task']}: "
        f"{row['k']:.0f} of {row['of']} edges [{row['k_lo']:.0f}, {row['k_hi']:.0f}]."
    )
    return Finding(sentence=sentence, weight=0.4, chart="wiring-curves")


def _ratio(row: dict[object, object]) -> Finding:
    sentence = (
        f"On {row['task']}, {row['model']} needs {row['k']:.0f} edges and {row['other']} {row['other_k']:.0f} for "
        f"{percent(float(str(row['threshold'])))} of the effect (ratio {row['ratio']:.1f}, 95 % CI {row['lo']:.1f} to "
        f"{row['hi']:.1f})."
    )
    return Finding(sentence=sentence, weight=0.5, chart="wiring-curves")


def _undefined(rows: pd.DataFrame, metric: str, model: str, task: str) -> Finding:
    """Where the edges together have no effect that some of them could explain."""
    none, every = (rows.loc[rows["k"] == k, "value"].mean() for k in (0, rows["k"].max()))
    sentence = (
        f"On {task}, {model}: the explained effect is undefined, because {metric} with all of the edges minus with "
        f"none of them is {every - none:+.3g} and may be 0."
    )
    return Finding(sentence=sentence, chart="wiring-curves", found=False)


def charts(tables: Tables) -> list[Chart]:
    drawn = [
        wiring_chart(rows.reset_index(drop=True), name=file_name("wiring", model, task))
        for (model, task), rows in groups(table_of(tables, "edges"), "model", "task")
    ]
    for (model, task), rows in groups(table_of(tables, "gradient"), "model", "task"):
        of, method = rows["of"].iloc[0], rows["method"].iloc[0]
        title = (
            f"The largest of all {of:,} edges of {model} on {task_title(str(task))} ({method}){under(rows)}"
        )
        name = file_name("wiring-all", model, task)
        drawn.append(wiring_chart(rows.reset_index(drop=True), most=40, name=name, title=title))
    curves = table_of(tables, "curves")
    if len(curves):
        members, ratios = (table_of(tables, name) for name in ("members", "ratios"))
        threshold = float(tables["circuits"]["threshold"].iloc[0])
        drawn.append(
            edge_curve_chart(
                curves,
                members=members if len(members) else None,
                ratios=ratios,
                threshold=threshold,
                name="wiring-curves",
            )
        )
    return drawn


section = SECTIONS.add("wiring", Section(charts=charts, findings=findings, docs="wiring"))
