"""The largest scores in sentences, and the map of every score; also for studies without their own section."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Chart
from headwise.charts.heatmap import importance_scale, position_chart, score_chart, score_unit
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.charts.style import file_name
from headwise.charts.words import joined, method_title
from headwise.tables.frames import SKEWED, Tables, by_size, groups, head_names, significant, table_of, too_few


def findings(tables: Tables) -> list[Finding]:
    scores = groups(table_of(tables, "scores"), "model", "method", "task")
    positions = groups(table_of(tables, "positions"), "model", "method", "task")
    found = [_largest(rows, model, method, task) for (model, method, task), rows in scores]
    return found + [_at_positions(rows, model, method, task) for (model, method, task), rows in positions]


def _at_positions(rows: pd.DataFrame, model: str, method: str, task: str) -> Finding:
    """The heads and positions with the largest scores."""
    largest = by_size(rows)[:3]
    named = [
        f"{name} at position {r.position} ({f'“{str(r.token).strip()}”; ' * bool(r.token)}{_with_interval(r)}, "
        f"n = {r.n}, q = {r.q:.2g})"
        for name, r in zip(head_names(largest), largest.itertuples(), strict=True)
    ]
    few = too_few(rows, "head-position pair")
    sentence = (
        f"On {task}, {model}'s largest scores at one position by {method_title(rows).lower()} are "
        f"{joined(named)} {rows['metric'].iloc[0]}; {len(significant(rows))} of {len(rows)} pairs of head and position "
        f"differ from 0 at q < .05{f' ({few})' if few else ''}."
    )
    return Finding(sentence=sentence, weight=_share(largest, rows), chart=file_name(model, task, method))


def _share(largest: pd.DataFrame, rows: pd.DataFrame) -> float:
    """How much of all scores, by size, the largest have."""
    total = rows["score"].abs().sum()
    return float(largest["score"].abs().sum() / total) if total and np.isfinite(total) else 0.0


def _with_interval(row: Any) -> str:
    """A score with its interval; one example has none, and a head that was run on every example of a finite set has one
    without width."""
    score = f"{row.score:+.3g}"
    if np.isnan(row.lo):
        return f"{score}, one value and no interval"
    if row.lo == row.hi:
        return f"{score}, exact on these {row.n} examples"
    return f"{score} [{row.lo:.3g}, {row.hi:.3g}]"


def _largest(rows: pd.DataFrame, model: str, method: str, task: str) -> Finding:
    """The heads with the largest scores, and how many differ significantly from zero."""
    largest = by_size(rows)[:3]
    named = [
        f"{name} ({_with_interval(r)})"
        for name, r in zip(head_names(largest), largest.itertuples(), strict=True)
    ]
    unit = f" {rows['metric'].iloc[0]}" if "metric" in rows else ""
    scored = "components" if "component" in rows else "heads"
    skewed = int((significant(rows)["skewness"].abs() > SKEWED).sum()) if "skewness" in rows else 0
    limits = [f"{skewed} of them with a skewness above 2, where q says less about the mean"] if skewed else []
    limits += [few] if (few := too_few(rows)) else []
    counts = f"; {len(significant(rows))} of {len(rows)} {scored} differ from 0 at q < .05"
    counts += f" ({'; '.join(limits)})" if limits else ""
    tested = counts if rows["q"].notna().any() else ""
    sentence = f"On {task}, {model}'s largest scores by {method_title(rows).lower()} are {joined(named)}{unit}{tested}."
    return Finding(sentence=sentence, weight=_share(largest, rows), chart=file_name(model, task, method))


def charts(tables: Tables) -> list[Chart]:
    """One chart for each model, task and method; the tasks of a model and method share one scale."""
    drawn: list[Chart] = []
    for _, part in groups(table_of(tables, "scores"), "model", "method"):
        signed = bool(part["signed"].iloc[0]) if "signed" in part else True
        scale = importance_scale(part["score"], signed, f"Score{score_unit(part)}")
        for names, rows in groups(part, "model", "task", "method"):
            name = file_name(*names)
            drawn.append(score_chart(rows.reset_index(drop=True), signed=signed, scale=scale, name=name))
    for names, rows in groups(table_of(tables, "positions"), "model", "task", "method"):
        drawn.append(position_chart(rows, name=file_name(*names, "positions")))
    return drawn


section = SECTIONS.add("score", Section(charts=charts, findings=findings))
