"""Does the model fail when its important heads are ablated, and not when random heads are?"""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.charts.section import Finding
from headwise.charts.style import file_name
from headwise.charts.words import joined, percent
from headwise.tables.frames import Tables, groups, table_of

LOW = 0.5
"""Below this share of right answers with no head masked there is little that masking could take away."""


def findings(tables: Tables) -> list[Finding]:
    """Top-k against random heads at the k where they differ most, for each ability; and which start low."""
    curves = mean_curves(tables["curves"])
    accuracy = curves[curves["metric"] == "accuracy"]
    by_ability = groups(accuracy, "model", "task")
    found = [one for (model, task), rows in by_ability if (one := _largest_gap(model, task, rows))]
    few = accuracy[(accuracy["k"] == 0) & (accuracy["value"] < LOW)]
    return found + [_low_start(model, rows) for model, rows in groups(few, "model")]


def _largest_gap(model: str, task: str, accuracy: pd.DataFrame) -> Finding | None:
    by_series = {series: rows.set_index("k") for series, rows in groups(accuracy, "series")}
    if not {"full", "top", "random"} <= set(by_series):
        return None
    top, random = by_series["top"], by_series["random"]
    gaps = (random["value"] - top["value"]).dropna()
    k: Any = gaps.idxmax()
    full, ablated, control = by_series["full"].iloc[0], top.loc[k], random.loc[k]
    apart = bool(ablated["hi"] < control["lo"])
    overlap = "" if apart else "; the intervals overlap"
    with_top, with_random = (percent(row["value"], row["lo"], row["hi"]) for row in (ablated, control))
    least = f"{percent(ablated['value'])} right answers"
    others = f"{percent(full['value'])}, without {k} random heads {percent(control['value'])}"
    plain = f"{model} gives {least} in {task} without its {k} most important heads; with all heads it gives {others}."
    if not apart:
        plain = (
            f"A clear loss of {model} in {task}: it gives {least} without its {k} most important heads, with all "
            f"heads {others}; so few examples cannot tell these apart."
        )
    return Finding(
        sentence=f"{task}, {model}: accuracy {percent(full['value'])} with all heads, {with_top} when its top {k} "
        f"heads are ablated, {with_random} when {k} random heads are ablated{overlap}.",
        weight=max(0.0, float(gaps.max())),
        chart=f"masking-{file_name(model)}",
        plain=plain,
        found=apart,
    )


def _low_start(model: str, full: pd.DataFrame) -> Finding:
    """That there is little to lose, from the rows of the full model on the abilities where this is so."""
    shares = joined(
        [f"{task} {percent(value)}" for task, value in zip(full["task"], full["value"], strict=True)]
    )
    sentence = (
        f"{model} answers few examples correctly with all heads ({shares}), so masking has little to remove there; "
        "give easier examples, examples in the prompt (shots) or another accuracy metric."
    )
    return Finding(sentence=sentence, chart=f"masking-{file_name(model)}", found=False)


def mean_curves(curves: pd.DataFrame) -> pd.DataFrame:
    """The curves without those of single random draws."""
    return curves[curves["draw"].isna()] if "draw" in curves else curves


def samples(tables: Tables) -> pd.DataFrame | None:
    return table_of(tables, "samples")
