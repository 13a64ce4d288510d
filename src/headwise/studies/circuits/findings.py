"""How few heads explain the behaviour, and does sparse attention need fewer?"""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.charts.section import Finding, Tables, groups, table_of
from headwise.charts.style import file_name
from headwise.charts.words import joined, percent


def findings(tables: Tables) -> list[Finding]:
    return [*_ratios(table_of(tables, "ratios")), *_sizes(tables["circuits"])]


def _ratios(ratios: pd.DataFrame) -> list[Finding]:
    """The circuit sizes of two models on each task, with their ratio."""
    made = []
    for (model, other, series), rows in groups(ratios, "model", "other", "series"):
        known = rows[rows["ratio"].notna()]
        each = [
            f"{r.task}: {model} {_heads(r.k)}, {other} {_heads(r.other_k)} (ratio {r.ratio:.1f}, 95 % CI "
            f"{r.lo:.1f}–{r.hi:.1f})"
            for r in known.itertuples()
        ]
        start = f"Circuit size at {percent(rows['threshold'].iloc[0])} faithfulness, ranked by {series}"
        sentence = f"{start}: {'; '.join(each)}."
        made += [Finding(sentence=sentence, weight=0.55, chart=_chart(series))] if each else []
    return made


def _chart(series: str) -> str:
    return f"circuits-{file_name(series)}"


def _heads(k: Any) -> str:
    return "1 head" if round(k) == 1 else f"{k:.0f} heads"


def _sizes(circuits: pd.DataFrame) -> list[Finding]:
    """The circuit size of each model on each task."""
    made: list[Finding] = []
    reached = circuits[circuits["k"].notna() & ~circuits["series"].str.startswith("random")]
    for (model, series), rows in groups(reached, "model", "series"):
        first = rows.iloc[0]
        level = percent(first["threshold"])
        what = f"Circuit size at {level} faithfulness"
        if first["action"] == "mask":
            what = f"Heads to mask to remove {level} of the effect"
        each = joined([f"{r.task} {r.k:.0f} [{r.k_lo:.0f}, {r.k_hi:.0f}]" for r in rows.itertuples()])
        sentence = f"{what}, {model}, ranked by {series}, of {first['of']} heads: {each}."
        made.append(Finding(sentence=sentence, weight=0.2 if made else 0.5, chart=_chart(series)))
    return made
