"""The plain score study, and every study that has no section of its own."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headwise.charts.heatmap import saturation
from headwise.charts.interactive import head_map, joined
from headwise.charts.section import Chart, Finding, Section, head_rows, register
from headwise.runs.gather import Run


@register("score")
def section(run: Run) -> Section:
    scores = run.table("scores")
    if scores.empty:
        return Section()
    findings, charts = [], []
    for (model, method), part in scores.groupby(["model", "method"], sort=False):
        charts.append(maps(part, title=f"{method} of {model}"))
        for task, rows in part.groupby("task", sort=False):
            findings.append(_strongest(rows, str(model), str(task), str(method)))
    return Section(findings=findings, charts=charts, heads=head_rows(scores))


def maps(scores: pd.DataFrame, *, title: str, caption: str = "") -> Chart:
    """One map per task of one model and method, all on one scale."""
    top, _ = saturation(scores["score"].to_numpy(dtype=float))
    signed = bool(scores["signed"].iloc[0]) if "signed" in scores else True
    tasks = list(dict.fromkeys(scores["task"]))
    unit = str(scores["metric"].iloc[0]) if "metric" in scores else "score"
    panels = [
        head_map(
            scores[scores["task"] == task],
            title=str(task),
            top=top,
            signed=signed,
            unit=unit,
            model=str(scores["model"].iloc[0]),
            bar=number == 0,
        )
        for number, task in enumerate(tasks)
    ]
    sides = "Blue helps, red hinders. " if signed else ""
    ends = (
        f"Colours end at {top:g}; larger values are in the table. "
        if (scores["score"].abs() > top).any()
        else ""
    )
    return Chart(title=title, panels=panels, caption=(sides + ends + caption).strip(), height=300)


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
