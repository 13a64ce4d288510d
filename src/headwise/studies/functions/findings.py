"""Which heads serve which ability?"""

from __future__ import annotations

import pandas as pd

from headwise.charts.section import Finding, Tables, table_of

READABLE = "a probe shows what is readable from a head, not what the head does"


def findings(tables: Tables) -> list[Finding]:
    elbows, overlap, scores = (table_of(tables, name) for name in ("elbows", "overlap", "scores"))
    return [*_abilities(elbows, overlap, scores), *_probe(table_of(tables, "probe"))]


def _abilities(elbows: pd.DataFrame, overlap: pd.DataFrame, scores: pd.DataFrame) -> list[Finding]:
    """How many heads each ability takes, by the elbow and by test, and how far abilities share them, by method."""
    found: list[Finding] = []
    if elbows.empty:
        return found
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
