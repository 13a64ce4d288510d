"""What do inserted tokens do to a model's answers and to a head's attention? In sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.section import Finding, Tables, table_of
from headwise.studies.prompts.condition_style import short

LEVEL = 0.05
_ANSWERS = ["model", "condition", "problem", "text", "gold", "parsed", "right", "truncated"]


def findings(tables: Tables) -> list[Finding]:
    comparisons = table_of(tables, "comparisons")
    if comparisons.empty:
        return []
    first = Finding(sentence=f"{headline(comparisons)}.", weight=0.45)
    each = (f"{significance(row)}." for row in comparisons.to_dict("records"))
    return [first, *(Finding(sentence=sentence, weight=0.2) for sentence in each)]


def headline(comparisons: pd.DataFrame | None) -> str:
    """Whether any condition is better or worse than the baseline, Holm's correction over conditions included."""
    if comparisons is None or not len(comparisons):
        return "One condition: nothing is compared"
    rows = [{str(key): value for key, value in row.items()} for row in comparisons.to_dict("records")]
    found = [row for row in rows if row["p_holm"] < LEVEL]
    several = len({row["model"] for row in rows}) > 1
    if not any(row["difference"] > 0 for row in found):
        smallest = [row["detectable"] for row in rows if not np.isnan(row["detectable"])]
        could = (
            f"; at this size a difference under {100 * min(smallest):.0f} points would mostly be missed"
            if smallest
            else ""
        )
        worse = f"; significantly worse: {_listed(found, several)}" if found else ""
        return f"No gain is significant (Holm p ≥ {LEVEL}){worse}{could}"
    return f"Significant after Holm's correction: {_listed(found, several)}"


def _listed(rows: list[dict[str, Any]], several: bool) -> str:
    return "; ".join(
        f"{row['model'] + ', ' if several else ''}{short(row['condition'])} {_points(row['difference'])} points "
        f"[{_points(row['lo'])}, {_points(row['hi'])}]"
        for row in rows
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−").replace("+0.0", "0").replace("−0.0", "0")


def significance(row: Mapping[Any, Any]) -> str:
    """One comparison as a sentence."""
    p = f"{row['test']} p = {row['p']:.3g}, Holm {row['p_holm']:.3g}"
    verdict = "significant" if row["p_holm"] < LEVEL else "not significant"
    detectable = row["detectable"]
    could = (
        "so few problems that no difference could have been found"
        if np.isnan(detectable)
        else f"the smallest difference found with 80 % power is {100 * detectable:.1f} points"
    )
    return (
        f"{row['model']} on {row['task']}, {row['condition']} against {row['baseline']}: "
        f"{_points(row['difference'])} points [{_points(row['lo'])}, {_points(row['hi'])}], {p}, n = {row['n']}: "
        f"{verdict}; {could}"
    )


def heads(tables: Tables) -> pd.DataFrame | None:
    """How far each head's attention moves, as rows of the table of heads."""
    moved = table_of(tables, "moved")
    if moved.empty:
        return None
    return pd.DataFrame(
        {
            "model": moved["model"],
            "task": moved["task"],
            "measure": "attention moved by " + moved["condition"].astype(str),
            "layer": moved["layer"],
            "head": moved["head"],
            "score": moved["moved"],
            "lo": moved.get("moved_lo"),
            "hi": moved.get("moved_hi"),
            "n": moved["n"],
            "q": float("nan"),
        }
    )


def answers(tables: Tables) -> pd.DataFrame | None:
    """What was answered, to read."""
    table = table_of(tables, "answers")
    return table.reindex(columns=[name for name in _ANSWERS if name in table])
