"""The plain score study, and every study that has no section of its own."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headwise.charts.section import Finding, Tables, table_of
from headwise.charts.words import joined


def findings(tables: Tables) -> list[Finding]:
    scores = table_of(tables, "scores")
    if scores.empty:
        return []
    return [
        _strongest(part, str(model), str(task), str(method))
        for (model, method, task), part in scores.groupby(["model", "method", "task"], sort=False)
    ]


def _strongest(rows: pd.DataFrame, model: str, task: str, method: str) -> Finding:
    """The heads that stand out, and how many are told from zero."""
    largest = rows.reindex(rows["score"].abs().sort_values(ascending=False, kind="stable").index)[:3]
    named = joined(
        [f"L{r.layer}H{r.head} ({r.score:+.3g} [{r.lo:.3g}, {r.hi:.3g}])" for r in largest.itertuples()]
    )
    sure = int((rows["q"] < 0.05).sum())
    unit = f" {rows['metric'].iloc[0]}" if "metric" in rows else ""
    tested = f"; {sure} of {len(rows)} heads differ from 0 at q < .05" if rows["q"].notna().any() else ""
    total = rows["score"].abs().sum()
    share = float(largest["score"].abs().sum() / total) if total and np.isfinite(total) else 0.0
    return Finding(
        sentence=f"On {task}, {model}'s largest scores by {method} are {named}{unit}{tested}.", weight=share
    )
