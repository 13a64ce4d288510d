"""Which heads serve which ability?"""

from __future__ import annotations

import pandas as pd

from headwise.charts.section import Finding, Tables, table_of

READABLE = "a probe shows what is readable from a head, not what the head does"


def findings(tables: Tables) -> list[Finding]:
    return [
        *_abilities(table_of(tables, "elbows"), table_of(tables, "overlap")),
        *_probe(table_of(tables, "probe")),
    ]


def _abilities(elbows: pd.DataFrame, overlap: pd.DataFrame) -> list[Finding]:
    """How many heads each ability takes, and how far abilities share them, by each causal method."""
    found: list[Finding] = []
    if elbows.empty:
        return found
    for (model, method), rows in elbows.groupby(["model", "method"], sort=False):
        if method == "probe":
            continue
        in_order = rows.sort_values("heads", kind="stable")
        least, most = in_order.iloc[0], in_order.iloc[-1]
        sentence = (
            f"By {method}, an ability of {model} rests on {least['heads']} ({least['task']}) to {most['heads']} "
            f"({most['task']}) of {most['of']} heads"
        )
        pairs = overlap[
            (overlap["model"] == model)
            & (overlap["method"] == method)
            & (overlap["task"] != overlap["other"])
        ]
        if len(pairs):
            shared, chance = pairs["jaccard"].mean(), pairs["by_chance"].mean()
            sentence += (
                f"; two abilities share {shared:.0%} of theirs on average, where chance gives {chance:.0%}"
            )
        found.append(Finding(sentence=sentence + ".", weight=0.5))
    return found


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
