"""Does a head help, hinder, or do nothing?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.interactive import curve, head_map, plus, rounded
from headwise.charts.section import Chart, Finding, Panel, Section, head_names, head_rows, register
from headwise.charts.words import task_title
from headwise.runs.gather import Run, by_model
from headwise.studies.roles.charts import COLOURS

ROLES = tuple(COLOURS)
LABELS = {"facilitating": "facilitation", "irrelevant": "irrelevance", "interfering": "interference"}


@register("roles")
def section(run: Run) -> Section:
    curves, scores, shares = run.table("curves"), run.table("scores"), run.table("shares")
    charts = [_curves(curves, scores)]
    charts += [_maps(model, part) for model, part in by_model(scores)]
    if len(shares):
        charts.append(_shares(shares))
    findings = [*_order(run.table("order"), shares), *_joint(run.table("joint"))]
    return Section(findings=findings, charts=charts, heads=_heads(scores))


def _heads(scores: pd.DataFrame) -> pd.DataFrame:
    """One row per role: facilitation with its interval over seeds, the others with their mean."""
    first = head_rows(scores).assign(measure="facilitation")
    rest = [
        head_rows(scores).assign(measure=role, score=scores[role], lo=None, hi=None, n=scores["n"])
        for role in ("irrelevance", "interference")
    ]
    return pd.concat([first, *rest], ignore_index=True)


def _curves(curves: pd.DataFrame, scores: pd.DataFrame) -> Chart:
    models = list(dict.fromkeys(curves["model"]))
    longest = int(curves["k"].max())
    panels: list[Panel] = []
    for (task, model), part in curves.groupby(["task", "model"], sort=False):
        own = scores[(scores["task"] == task) & (scores["model"] == model)]
        traces: list[dict[str, Any]] = []
        for role in ROLES:
            rows = part[part["series"] == role]
            traces += curve(rows, name=role.capitalize(), colour=COLOURS[role], first=not panels)
        panels.append(
            Panel(
                title=f"{task_title(str(task))}, {model}" if len(models) > 1 else task_title(str(task)),
                traces=traces,
                x={"title": "Number of Ablated Heads"},
                y={"title": "Δ Log Probability of Target Response", "range": _reach(curves, str(task))},
                model=str(model),
                orders={
                    role: head_names(own.sort_values(role, ascending=False, kind="stable").head(longest))
                    for role in ROLES
                },
            )
        )
    return Chart(
        title="What ablating the first k heads of each role does",
        panels=panels,
        caption="Nats, held-out examples; the band is 95 % over seeds. A chosen head is marked at its place in each "
        "order by the mean over seeds; a single seed may place it elsewhere.",
        columns=max(2, min(3, len(models))),
        least=300,
        table=curves[["model", "task", "series", "k", "value", "lo", "hi", "n"]],
    )


def _reach(curves: pd.DataFrame, task: str) -> list[float]:
    """One scale for all models of a task, so that they can be compared, with room for the lines' width."""
    own = curves.loc[curves["task"] == task, ["value", "lo", "hi"]].to_numpy(dtype=float)
    low, high = float(np.nanmin(own)), float(np.nanmax(own))
    room = 0.05 * (high - low) or 1.0
    return [low - room, high + room]


def _maps(model: str, scores: pd.DataFrame) -> Chart:
    panels: list[Panel] = []
    for task, part in scores.groupby("task", sort=False):
        for role in ROLES:
            rows = part.assign(score=part[role])
            if role != "facilitation":
                rows = rows.assign(lo=float("nan"), hi=float("nan"))
            panels.append(
                head_map(
                    rows,
                    title=f"{role.capitalize()}, {task_title(str(task))}",
                    top=1.0,
                    signed=False,
                    unit="mean over seeds",
                    model=model,
                    bar=not panels,
                )
            )
    return Chart(title=f"The three roles of {model}'s heads", panels=panels, columns=3, height=280)


def _shares(shares: pd.DataFrame) -> Chart:
    panels: list[Panel] = []
    grey = {"undecided": "#9aa0a6", "anomalous": "#8a5fb0"}
    for model, part in by_model(shares):
        traces = []
        for label, rows in part.groupby("label", sort=False):
            colour = COLOURS[LABELS[str(label)]] if label in LABELS else grey.get(str(label), "#9aa0a6")
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "x": rounded(rows["share"]),
                    "y": [str(task) for task in rows["task"]],
                    "name": str(label),
                    "legendgroup": str(label),
                    "showlegend": not panels,
                    "marker": {"color": colour},
                    "customdata": rows[["always", "ever"]].to_numpy().tolist(),
                    "hovertemplate": "%{fullData.name}: %{x:.0%}; %{customdata[0]} heads in every seed, "
                    "%{customdata[1]} in some<extra></extra>",
                }
            )
        panels.append(
            Panel(
                title=model,
                traces=traces,
                x={"title": "Share of heads", "tickformat": ".0%", "range": [0, 1]},
                y={"autorange": "reversed"},
            )
        )
    return Chart(
        title="How many heads have each role",
        panels=panels,
        caption="Mean over seeds. The table says how many heads have a role in every seed, and in any.",
        columns=2,
        least=380,
        height=60 + 40 * shares["task"].nunique(),
        gap=110,
        stacked=True,
        table=shares[["model", "task", "label", "always", "ever", "mean", "heads", "seeds"]],
    )


def _order(order: pd.DataFrame, shares: pd.DataFrame) -> list[Finding]:
    found = []
    for row in order.to_dict("records"):
        own = shares[(shares["model"] == row["model"]) & (shares["task"] == row["task"])].set_index("label")
        counted = ", ".join(
            f"{own.loc[label, 'always']:.0f} always and {own.loc[label, 'ever']:.0f} ever {word}"
            for label, word in (
                ("facilitating", "help"),
                ("interfering", "hinder"),
                ("irrelevant", "do nothing"),
            )
        )
        falls = (
            f"ablating the {row['k']} most helpful heads changes the answer's log probability by "
            f"{plus(row['facilitation'])} nats (as many irrelevant ones {plus(row['irrelevance'])})"
        )
        if not row["below"]:
            falls += ", bands overlap"
        rises = f"ablating the {row['peak']} most hindering ones, by {plus(row['interference_at_peak'])}"
        if not row["above"]:
            rises += ", not told from irrelevant heads"
        sentence = (
            f"On {row['task']}, {row['model']}: {falls}; {rises}. Of {own['heads'].iloc[0]:.0f} heads over "
            f"{own['seeds'].iloc[0]:.0f} seeds {counted}."
        )
        found.append(Finding(sentence=sentence, weight=0.6 if row["below"] and row["above"] else 0.4))
    return found


def _joint(joint: pd.DataFrame) -> list[Finding]:
    return [
        Finding(
            sentence=f"On {row['task']}, {row['model']}: the most facilitating heads removed together cost "
            f"{row['effect']:.2f} nats, more than {row['larger_than']:.1%} of {row['sets']} random sets (mean "
            f"{row['random_mean']:.2f}); facilitation and exact ablation have rank correlation "
            f"{row['facilitation_correlation']:+.2f}.",
            weight=0.35,
        )
        for row in joint.to_dict("records")
    ]
