"""What do inserted tokens do to a model's answers and to a head's attention? In sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.section import Finding
from headwise.charts.words import joined, plus
from headwise.tables.frames import HEAD_COLUMNS, Tables, groups, table_of

LEVEL = 0.05
_ANSWERS = ["model", "condition", "problem", "text", "gold", "parsed", "right", "truncated"]
_SHORT = {"none": "None", "meaningless": "Mless", "meaningful": "Mful", "arm": "ARM"}
_MEANING = {
    "none": "None, w/o: nothing is inserted",
    "meaningless": "Mless: a meaningless filler is inserted (copies of “/”)",
    "meaningful": "Mful: a meaningful filler is inserted (copies of “he”)",
    "arm": "ARM: nothing is inserted, small activations of the first MLP are redistributed",
}


def short(condition: str) -> str:
    """The name of a condition in figures: `meaningless:20` as `Mless ×20`."""
    kind, colon, copies = condition.partition(":")
    return _SHORT.get(kind, kind) + (f" ×{copies}" if colon else "")


def explained(conditions: Iterable[str]) -> str:
    """What the short names of these conditions mean, as a sentence.

    >>> explained(["meaningless:20", "meaningless:40", "dots"])
    'Mless: a meaningless filler is inserted (copies of “/”).'
    """
    kinds = dict.fromkeys(condition.partition(":")[0] for condition in conditions)
    meanings = [_MEANING[kind] for kind in kinds if kind in _MEANING]
    return f"{'; '.join(meanings)}." if meanings else ""


def findings(tables: Tables) -> list[Finding]:
    """Whether any condition changes the answers, each comparison, and the share of right answers behind them."""
    comparisons, found = table_of(tables, "comparisons"), []
    shown = comparisons.empty or bool((comparisons["p_holm"] < LEVEL).any())
    if len(comparisons):
        meaning = explained([*comparisons["baseline"], *comparisons["condition"]])
        sentence = f"{headline(comparisons)}. {meaning}".strip()
        plain = "" if shown else _nothing(comparisons)
        found = [Finding(sentence=sentence, weight=0.45, plain=plain, found=shown)]
    for row in comparisons.to_dict("records"):
        significant = bool(row["p_holm"] < LEVEL)
        found.append(Finding(sentence=f"{significance(row)}.", weight=0.2, found=significant))
    for (model, task), rows in groups(tables["accuracy"], "model", "task"):
        found.append(Finding(sentence=f"{model} on {task}: {_shares(rows)}.", weight=0.1, found=shown))
    return found


def _shares(accuracy: pd.DataFrame) -> str:
    """The share of right answers under each condition, and how many answers could not be right."""
    shares = [
        f"{row['accuracy']:.1%} right [{row['lo']:.1%}, {row['hi']:.1%}] under {row['condition']}"
        for row in accuracy.to_dict("records")
    ]
    cut, none = int(accuracy["truncated"].sum()), int(accuracy["unparsed"].sum())
    total = int((accuracy["n"] * accuracy["samples"]).sum())
    lost = f"; of {total} answers {cut} were cut off and {none} have no result" if cut or none else ""
    return f"{joined(shares)}, n = {accuracy['n'].iloc[0]} problems{lost}"


def _nothing(comparisons: pd.DataFrame) -> str:
    """That no condition changes accuracy by more than chance, in everyday words."""
    named = " and ".join(dict.fromkeys(f"{condition} tokens" for condition in comparisons["condition"]))
    smallest = 100 * comparisons["detectable"].min()
    power = "" if np.isnan(smallest) else f"; so few show only changes of {smallest:.0f} points or more"
    return (
        f"A change of the share of right answers when {named} are inserted into the prompt is not shown by "
        f"{comparisons['n'].max()} problems{power}."
    )


def headline(comparisons: pd.DataFrame) -> str:
    """Whether any condition is better or worse than the baseline, Holm's correction over conditions included.

    Each significant difference names its model if there are several, and its task if there are several.
    """
    if comparisons.empty:
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
