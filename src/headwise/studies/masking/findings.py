"""Does the model fail when the important heads go, and not when random ones go?"""

from __future__ import annotations

import pandas as pd

from headwise.charts.section import Finding, Tables, table_of


def findings(tables: Tables) -> list[Finding]:
    """Top-k against random heads at the K where they differ most, for each ability."""
    found = []
    curves = tables["curves"]
    if "draw" in curves:
        curves = curves[curves["draw"].isna()]
    own = curves[curves["metric"] == "accuracy"]
    for (model, task), part in own.groupby(["model", "task"], sort=False):
        by = {series: rows.set_index("k") for series, rows in part.groupby("series")}
        if not {"top", "random"} <= set(by):
            continue
        shared = by["top"].index.intersection(by["random"].index)
        gaps = by["random"].loc[shared, "value"] - by["top"].loc[shared, "value"]
        k = gaps.idxmax()
        top, rest = by["top"].loc[k], by["random"].loc[k]
        start = by["full"].iloc[0]["value"] if "full" in by else float("nan")
        apart = "" if top["hi"] < rest["lo"] else "; the bands overlap"
        found.append(
            Finding(
                sentence=f"{task}, {model}: {start:.0%} right with every head; with {k} masked, {top['value']:.0%} "
                f"[{top['lo']:.0%}, {top['hi']:.0%}] if they are the ability's first, {rest['value']:.0%} "
                f"[{rest['lo']:.0%}, {rest['hi']:.0%}] if they are random{apart}.",
                weight=max(0.0, float(gaps.max())),
            )
        )
    return found


def samples(tables: Tables) -> pd.DataFrame | None:
    return table_of(tables, "samples")
