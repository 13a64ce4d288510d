"""Which heads serve which ability?"""

from __future__ import annotations

import pandas as pd

from headwise.charts.interactive import matrix
from headwise.charts.section import Chart, Finding, Panel, Section, head_rows, register
from headwise.runs.gather import Run, by_model
from headwise.studies.functions.charts import READABLE
from headwise.studies.score.findings import maps


@register("functions")
def section(run: Run) -> Section:
    scores, overlap = run.table("scores"), run.table("overlap")
    charts = [
        maps(
            part,
            title=f"{str(method).capitalize()} of {model}, by ability",
            caption=f"{READABLE[0].upper()}{READABLE[1:]}." if method == "probe" else "",
        )
        for (model, method), part in scores.groupby(["model", "method"], sort=False)
    ]
    charts += [_shared(model, part) for model, part in by_model(overlap)]
    findings = [*_abilities(run.table("elbows"), overlap, scores), *_probe(run.table("probe"))]
    return Section(findings=findings, charts=charts, heads=head_rows(scores))


def _abilities(elbows: pd.DataFrame, overlap: pd.DataFrame, scores: pd.DataFrame) -> list[Finding]:
    """How many heads each ability takes, by the elbow and by test, and how far abilities share them, by method."""
    found = []
    for (model, method), rows in elbows.groupby(["model", "method"], sort=False):
        if method == "probe":
            continue
        in_order = rows.sort_values("heads", kind="stable")
        least, most = in_order.iloc[0], in_order.iloc[-1]
        sentence = (
            f"By {method}, the elbow of an ability of {model} comes after {least['heads']} ({least['task']}) to "
            f"{most['heads']} ({most['task']}) of {most['of']} heads; "
            + _tested(scores[(scores["model"] == model) & (scores["method"] == method)])
        )
        pairs = overlap[
            (overlap["model"] == model)
            & (overlap["method"] == method)
            & (overlap["task"] != overlap["other"])
        ]
        if len(pairs):
            shared, chance = pairs["jaccard"].mean(), pairs["by_chance"].mean()
            sentence += (
                f"; two abilities share {shared:.0%} of the heads before their elbows on average, where chance gives "
                f"{chance:.0%}"
            )
        found.append(Finding(sentence=sentence + ".", weight=0.5))
    return found


def _tested(scores: pd.DataFrame) -> str:
    """How many heads are told from 0: a head before the elbow need not be."""
    if scores["q"].isna().all():
        return "the method has no test of single heads"
    counts = (scores["q"] < 0.05).groupby(scores["task"], sort=False).sum().sort_values(kind="stable")
    without = int((counts == 0).sum())
    said = f"{counts.iloc[0]} ({counts.index[0]}) to {counts.iloc[-1]} ({counts.index[-1]}) have q < .05"
    return said + (f", none in {without} of {len(counts)} abilities" if without else "")


def _probe(table: pd.DataFrame) -> list[Finding]:
    if table.empty:
        return []
    return [
        Finding(
            sentence=f"A probe tells the abilities of {row['model']} apart on {row['accuracy']:.0%} "
            f"[{row['lo']:.0%}, {row['hi']:.0%}] of {row['n']} held-out examples (chance {row['chance']:.0%}, shuffled "
            f"labels {row['shuffled']:.0%}, bag of words {row['bag_of_words']:.0%}); {READABLE}.",
            weight=0.3,
        )
        for row in table[table["task"] == "all"].to_dict("records")
    ]


def _shared(model: str, overlap: pd.DataFrame) -> Chart:
    """How far the heads of each two abilities are the same, a matrix per method."""
    panels: list[Panel] = []
    for method, rows in overlap.groupby("method", sort=False):
        names = list(dict.fromkeys(rows["task"]))
        square = rows.pivot(index="task", columns="other", values="jaccard").loc[names, names]
        panels.append(
            Panel(
                title=str(method),
                traces=[
                    matrix(
                        square, unit="Jaccard index", hover="%{y} and %{x}: %{z:.2f}", low=0, bar=not panels
                    )
                ],
                x={"tickangle": -40},
                y={"autorange": "reversed"},
            )
        )
    return Chart(
        title=f"Heads that abilities share, {model}",
        panels=panels,
        caption="Of the heads before the elbow: shared ones over all in either list. A head before the elbow need not "
        "be told from 0; `significant` counts those with q < .05.",
        columns=2,
        least=440,
        height=460,
        gap=160,
        table=overlap[
            [
                name
                for name in (
                    "method",
                    "task",
                    "other",
                    "jaccard",
                    "by_chance",
                    "heads",
                    "other_heads",
                    "significant",
                )
                if name in overlap
            ]
        ],
    )
