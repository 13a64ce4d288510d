"""Comparisons of scores: two models and what changed between them, and how far methods agree.

The first has both maps, the difference, the largest changes and the accuracies; the second three matrices and the
agreement of each score with itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Bars, Chart, Panel, Scale, names_axis, points
from headwise.charts.heatmap import head_panel, importance_scale, largest_panel, matrix_panel, score_unit
from headwise.charts.words import method_title, percent, shortened, span, wrapped
from headwise.tables.frames import map_shape, significant, significant_first

_COLUMNS = "layer head base_score tuned_score difference lo hi p q weight_change".split()
BASE, TUNED = "#7f7f7f", "#35608d"
_CORRELATION = Scale("RdBu", -1, 1, "Rank correlation")
_OVERLAP = Scale("viridis", 0, 1, "Jaccard index")


def difference_chart(
    scores: pd.DataFrame, diff: pd.DataFrame, outcomes: pd.DataFrame, *, name: str = ""
) -> Chart:
    """The maps of two models on one scale and their difference on another; below, the largest changes and accuracy.

    `scores` holds the rows of both models for one task and method, `diff` the rows of the difference, `outcomes` those
    of the task. A dot marks a head whose score, or whose change, has q < .05.
    """
    first, shape = diff.iloc[0], map_shape(scores)
    base, tuned = str(first["base"]), str(first["tuned"])
    one_scale = importance_scale(scores["score"], True, f"Score{score_unit(scores)}")
    change = diff.assign(model=tuned, score=diff["difference"])
    label = f"Change of the score{score_unit(diff)}"
    scale = replace(importance_scale(change["score"], True, ""), label=f"{label}; blue: higher, red: lower")
    maps = [scores[scores["model"] == model].reset_index(drop=True) for model in (base, tuned)]
    panels = [
        head_panel(
            part, one_scale, title=shortened(model, 24, (base, tuned)), shape=shape, dots=significant(part)
        )
        for model, part in zip((base, tuned), maps, strict=True)
    ]
    panels.append(head_panel(change, scale, title="Difference", shape=shape, dots=significant(change)))
    panels.append(_largest(change))
    panels.append(_accuracy(outcomes, base, tuned))
    return Chart(
        name=name,
        title=f"What changed between {shortened(base, among=(tuned,))} and {shortened(tuned, among=(base,))}: "
        f"{method_title(scores).lower()} on {first['task']}, n = {span(diff['n'])}",
        note="dot: q < .05",
        panels=panels,
        caption="The two maps share one scale; the difference (same examples, paired) has its own. The change of a "
        "head's weights is ‖ΔW‖ / ‖W‖ (Frobenius norm) of its queries and outputs, and its group's keys and values.",
        size=(11.5, 8.2),
        places=[[0, 1, 2], [3, 3, 4]],
        page_columns=3,
        min_panel_width=260,
        height=380,
        table=diff[[name for name in _COLUMNS if name in diff]][:20],
    )


def _largest(change: pd.DataFrame) -> Panel:
    """The first changes; behind the name of a head, how much its weights changed."""
    panel = largest_panel(change, True, 12, "Change of the score", ranked=significant_first)
    title = "The first 12 changes: significant ones (*), then by size"
    if "weight_change" not in change:
        return replace(panel, title=title)
    weights = significant_first(change)["weight_change"][:12]
    written = ["–" if np.isnan(share) else f"{100 * share:.2g} %" for share in weights]  # an MLP has none
    names = [f"{name} ({share})" for name, share in zip(panel.y.names or (), written, strict=True)]
    bars, *others = panel.marks
    assert isinstance(bars, Bars)
    hover = [
        f"{words}; weights changed by {share}" for words, share in zip(bars.hover or (), written, strict=True)
    ]
    return replace(
        panel,
        title=f"{title}; in brackets the change of the head's weights",
        marks=[replace(bars, hover=hover), *others],
        y=replace(panel.y, names=names),
    )


def _accuracy(outcomes: pd.DataFrame, base: str, tuned: str) -> Panel:
    """The accuracy of both models with all heads."""
    row = outcomes[outcomes["metric"] == "accuracy"].iloc[0]
    ends = {end: [row[f"base_{end}"], row[f"tuned_{end}"]] for end in ("value", "lo", "hi")}
    rows = zip((base, tuned), *ends.values(), strict=True)
    bars = Bars(
        at=np.arange(2),
        values=ends["value"],
        lo=ends["lo"],
        hi=ends["hi"],
        colours=[BASE, TUNED],
        thickness=0.6,
        hover=[f"{model}: {percent(value, lo, hi)}" for model, value, lo, hi in rows],
    )
    return Panel(
        title=f"Accuracy, {row['test']} p = {row['p']:.2g}",
        marks=[bars],
        x=names_axis([wrapped(shortened(name, 18, (base, tuned)), 18) for name in (base, tuned)]),
        y=Axis(label="Accuracy, 95 % interval", limits=(0, 1.05)),
    )


def agreement_chart(
    signed: pd.DataFrame,
    absolute: pd.DataFrame,
    jaccard: pd.DataFrame,
    stability: pd.DataFrame,
    *,
    k: int,
    title: str | None = None,
) -> Chart:
    """Rank correlation (signed, absolute), Jaccard of the top k, and stability.

    Correlations share a diverging scale from −1 to 1, the overlap runs from 0 to 1; every cell carries its
    number, and a cell without one has no meaning (a signed beside an unsigned score).
    """
    side = 1.6 + 0.52 * len(signed)
    label = 0.075 * max(len(str(name)) for name in signed.index)
    return Chart(
        title=title or "How far scores agree",
        heading=title or "",
        panels=[
            matrix_panel(signed, _CORRELATION, _two_digits, title="Rank correlation, signed"),
            matrix_panel(absolute, _CORRELATION, _two_digits, title="Rank correlation, absolute"),
            matrix_panel(jaccard, _OVERLAP, _two_digits, title=f"Jaccard of the top {k}"),
            _stability(stability, k),
        ],
        size=(3 * side + 2.6 + label, side + 0.7 + label),
        widths=(1, 1, 1, 0.8),
        legend="bottom",
        bar="bottom",
        min_panel_width=230,
    )


def _two_digits(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else ""


def _stability(table: pd.DataFrame, k: int) -> Panel:
    rows = np.arange(len(table))
    marks = [points(table["resamples"], rows, name="other examples", colour="#35608d", size=6)]
    if table["seeds"].notna().any():
        look: dict[str, Any] = {"name": "other seeds", "colour": "#d95f02", "size": 6}
        marks.append(points(table["seeds"], rows, marker="diamond", hollow=True, **look))
    x = Axis(label="mean Jaccard", limits=(0, 1.03))
    return Panel(title=f"Stability of the top {k}", marks=marks, x=x, y=names_axis(table.index, down=True))
