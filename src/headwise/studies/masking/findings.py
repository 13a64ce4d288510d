"""Does the model fail when its important heads are ablated, and not when random heads are?"""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.charts.section import Finding, Tables, groups, table_of
from headwise.charts.style import file_name
from headwise.charts.words import percent


def findings(tables: Tables) -> list[Finding]:
    """Top-k against random heads at the k where they differ most, for each ability."""
    made = []
    curves = mean_curves(tables["curves"])
    for (model, task), part in groups(curves[curves["metric"] == "accuracy"], "model", "task"):
        by_series = {series: rows.set_index("k") for series, rows in groups(part, "series")}
        if not {"full", "top", "random"} <= set(by_series):
            continue
        top, random = by_series["top"], by_series["random"]
        gaps = (random["value"] - top["value"]).dropna()
        k: Any = gaps.idxmax()
        full, ablated, control = by_series["full"].iloc[0], top.loc[k], random.loc[k]
        apart = bool(ablated["hi"] < control["lo"])
        overlap = "" if apart else "; the intervals overlap"
        with_top, with_random = (percent(row["value"], row["lo"], row["hi"]) for row in (ablated, control))
        sentence = (
            f"{task}, {model}: accuracy {percent(full['value'])} with all heads, {with_top} when its top {k} "
            f"heads are ablated, {with_random} when {k} random heads are ablated{overlap}."
        )
        least = f"{percent(ablated['value'])} right answers"
        others = f"{percent(full['value'])}, without {k} random heads {percent(control['value'])}"
        plain = (
            f"{model} gives {least} in {task} without its {k} most important heads; with all heads it gives "
            f"{others}."
        )
        if not apart:
            plain = (
                f"A clear loss of {model} in {task}: it gives {least} without its {k} most important heads, with all "
                f"heads {others}; so few examples cannot tell these apart."
            )
        made.append(
            Finding(
                sentence=sentence,
                weight=max(0.0, float(gaps.max())),
                chart=f"masking-{file_name(model)}",
                plain=plain,
                found=apart,
            )
        )
    return made


def mean_curves(curves: pd.DataFrame) -> pd.DataFrame:
    """The curves without those of single random draws."""
    return curves[curves["draw"].isna()] if "draw" in curves else curves


def samples(tables: Tables) -> pd.DataFrame | None:
    return table_of(tables, "samples")
