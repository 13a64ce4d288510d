"""Which heads serve which ability?"""

from __future__ import annotations

import pandas as pd

from headwise.charts.section import Finding
from headwise.charts.style import file_name
from headwise.charts.words import percent
from headwise.tables.frames import LEVEL, Tables, groups, table_of

READABLE = "a probe shows what is readable from a head, not what the head does"


def findings(tables: Tables) -> list[Finding]:
    elbows, overlap, scores = (table_of(tables, name) for name in ("elbows", "overlap", "scores"))
    return [*_abilities(elbows, overlap, scores), *_probe(table_of(tables, "probe"))]


def _abilities(elbows: pd.DataFrame, overlap: pd.DataFrame, scores: pd.DataFrame) -> list[Finding]:
    """Heads per ability, by the elbow and by test, and how far abilities share heads, by method."""
    sentences: list[Finding] = []
    pairs = overlap[overlap["task"] != overlap["other"]] if len(overlap) else overlap
    by_score, by_pairs = (dict(groups(table, "model", "method")) for table in (scores, pairs))
    for (model, method), rows in groups(elbows, "model", "method"):
        if method == "probe":
            continue
        in_order = rows.sort_values("heads", kind="stable")
        least, most = in_order.iloc[0], in_order.iloc[-1]
        if len(rows) == 1:
            sentence = f"{model}, {method}: {most['task']} has {most['heads']} of {most['of']} heads before the elbow"
            tested = _significant(by_score[model, method])
            sentences.append(Finding(sentence=f"{sentence}{tested}.", weight=0.5))
            continue
        sentence = (
            f"{model}, {method}: {_tested(by_score[model, method], most['of'])}; {least['heads']} ({least['task']}) to "
            f"{most['heads']} ({most['task']}) of {most['of']} heads are before the elbow"
        )
        if (model, method) in by_pairs:
            shared = by_pairs[model, method]
            sentence += (
                f"; two abilities share {percent(shared['jaccard'].mean())} of their heads before the elbow on average "
                f"(by chance {percent(shared['by_chance'].mean())})"
            )
        chart = f"functions-{file_name(model)}-{file_name(method)}"
        plain = _plain(model, by_score[model, method], by_pairs.get((model, method)))
        found = bool((by_score[model, method]["q"] < LEVEL).any())
        sentences.append(Finding(sentence=sentence + ".", weight=0.5, chart=chart, plain=plain, found=found))
    return sentences


def _significant(scores: pd.DataFrame) -> str:
    """How many heads of the one ability differ significantly from 0, where the method has a test."""
    return "" if scores["q"].isna().all() else f"; {(scores['q'] < LEVEL).sum()} have q < .05"


def _tested(scores: pd.DataFrame, total: int) -> str:
    """How many heads are significant: a head before the elbow need not be."""
    if scores["q"].isna().all():
        return "the method has no significance test"
    counts = (scores["q"] < LEVEL).groupby(scores["task"], sort=False).sum().sort_values(kind="stable")
    without = int((counts == 0).sum())
    none = f", none in {without} of {len(counts)} abilities" if without else ""
    return (
        f"an ability has {counts.iloc[0]} ({counts.index[0]}) to {counts.iloc[-1]} ({counts.index[-1]}) of {total} "
        f"heads with q < .05{none}"
    )


def _plain(model: str, scores: pd.DataFrame, shared: pd.DataFrame | None) -> str:
    """In how many abilities some head is shown to matter, and whether abilities share their important heads."""
    if scores["q"].isna().all():
        return ""
    tested = (scores["q"] < LEVEL).groupby(scores["task"], sort=False).any()
    some = f"In {tested.sum()} of {len(tested)} abilities, some heads of {model} clearly matter"
    if not tested.any():
        some = f"In none of {len(tested)} abilities does a head of {model} clearly matter"
    if shared is None:
        return f"{some}."
    return (
        f"{some}; two abilities share {percent(shared['jaccard'].mean())} of their most important heads (by chance "
        f"{percent(shared['by_chance'].mean())})."
    )


def _probe(table: pd.DataFrame) -> list[Finding]:
    rows = table[table["task"] == "all"].to_dict("records") if len(table) else []
    return [
        Finding(
            sentence=f"A probe of {row['model']} predicts the ability of "
            f"{percent(row['accuracy'], row['lo'], row['hi'])} of {row['n']} held-out examples (chance "
            f"{percent(row['chance'])}, shuffled labels {percent(row['shuffled'])}, bag of words "
            f"{percent(row['bag_of_words'])}); {READABLE}.",
            weight=0.3,
        )
        for row in rows
    ]
