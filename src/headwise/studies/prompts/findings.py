"""What do inserted tokens do to a model's answers and to a head's attention? In sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.section import HEAD_COLUMNS, Finding, Tables, table_of
from headwise.charts.words import plus
from headwise.studies.prompts.condition_style import explained, short

LEVEL = 0.05
_ANSWERS = ["model", "condition", "problem", "text", "gold", "parsed", "right", "truncated"]


def findings(tables: Tables) -> list[Finding]:
    comparisons = table_of(tables, "comparisons")
    if comparisons.empty:
        return []
    each = [
        Finding(sentence=f"{significance(row)}.", weight=0.2, found=bool(row["p_holm"] < LEVEL))
        for row in comparisons.to_dict("records")
    ]
    meaning = explained([*comparisons["baseline"], *comparisons["condition"]])
    shown = bool((comparisons["p_holm"] < LEVEL).any())
    plain = "" if shown else _nothing(comparisons)
    first = Finding(
        sentence=f"{headline(comparisons)}. {meaning}".strip(), weight=0.45, plain=plain, found=shown
    )
    return [first, *each]


def _nothing(comparisons: pd.DataFrame) -> str:
    """That no condition changes accuracy by more than chance, in everyday words."""
    named = " and ".join(dict.fromkeys(f"{condition} tokens" for condition in comparisons["condition"]))
    smallest = 100 * comparisons["detectable"].min()
    power = "" if np.isnan(smallest) else f"; so few show only changes of {smallest:.0f} points or more"
    return (
        f"A change of the share of right answers when {named} are inserted into the prompt is not shown by "
        f"{comparisons['n'].max()} problems{power}."
    )


def headline(comparisons: pd.DataFrame | None) -> str:
    """Whether any condition is better or worse than the baseline, Holm's correction over conditions included.

    Each significant difference names its model if there are several, and its task if there are several.
    """
    if comparisons is None or comparisons.empty:
        return "One condition: nothing is compared"
    significant = comparisons[comparisons["p_holm"] < LEVEL]
    several = [name for name in ("model", "task") if comparisons[name].nunique() > 1]
    listed = "; ".join(
        " on ".join(row[name] for name in several)
        + f"{', ' * bool(several)}{short(row['condition'])} {_difference(row)}"
        for row in significant.to_dict("records")
    )
    if (significant["difference"] > 0).any():
        return f"Significant after Holm's correction: {listed}"
    worse = f"; significantly worse: {listed}" if listed else ""
    smallest = 100 * comparisons["detectable"].min()
    power = "" if np.isnan(smallest) else f"; minimum detectable effect {smallest:.0f} points (80 % power)"
    return f"No gain is significant (Holm p ≥ {LEVEL}){worse}{power}"


def _difference(row: Mapping[Any, Any]) -> str:
    """A difference of accuracies in percentage points, with its interval."""
    value, lo, hi = (
        plus(100 * row[name]).replace("+0.0", "0").replace("−0.0", "0") for name in ("difference", "lo", "hi")
    )
    return f"{value} points [{lo}, {hi}]"


def significance(row: Mapping[Any, Any]) -> str:
    """One comparison as a sentence."""
    verdict = "significant" if row["p_holm"] < LEVEL else "not significant"
    power = f"minimum detectable effect {100 * row['detectable']:.1f} points (80 % power)"
    return (
        f"{row['model']} on {row['task']}, {row['condition']} against {row['baseline']}: {_difference(row)}, "
        f"{row['test']} p = {row['p']:.3g}, Holm {row['p_holm']:.3g}, n = {row['n']}: {verdict}; "
        + ("too few problems to detect any difference" if np.isnan(row["detectable"]) else power)
    )


def heads(tables: Tables) -> pd.DataFrame | None:
    """How far each head's attention moves, as rows of the table of heads."""
    moved = table_of(tables, "moved")
    if moved.empty:
        return None
    measure = "attention moved by " + moved["condition"].astype(str)
    columns = {"moved": "score", "moved_lo": "lo", "moved_hi": "hi"}
    rows = moved.rename(columns=columns).assign(measure=measure, unit="share of attention")
    return rows.reindex(columns=HEAD_COLUMNS)


def answers(tables: Tables) -> pd.DataFrame | None:
    """What was answered, to read."""
    table = table_of(tables, "answers")
    return table.reindex(columns=[name for name in _ANSWERS if name in table])
