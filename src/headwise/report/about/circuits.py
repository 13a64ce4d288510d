"""How few heads explain the behaviour, and does sparse attention need fewer?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from headwise.figures.circuits import COLOURS, EXPLAINED
from headwise.report.charts import colour_bar, curve, joined, rounded
from headwise.report.gather import Run
from headwise.report.section import Chart, Finding, Panel, Section, head_names, head_rows, register

MOST_MAPS = 8
"""Attention maps of a model on the page; the run's figures have the rest."""


_MASKED = "0 is no head masked, 1 what is lost when all are; a masked head is"


@register("circuits")
def section(run: Run) -> Section:
    curves, scores = run.table("curves"), run.table("scores")
    charts = [_curves(curves, scores, run.table("members"), run.table("ratios"))]
    attention = run.table("attention")
    if len(attention):
        charts += [_maps(str(model), part) for model, part in attention.groupby("model", sort=False)]
    findings = [*_ratios(run.table("ratios")), *_sizes(run.table("circuits"))]
    return Section(findings=findings, charts=charts, heads=head_rows(scores))


def _curves(curves: pd.DataFrame, scores: pd.DataFrame, members: pd.DataFrame, ratios: pd.DataFrame) -> Chart:
    curves = curves[curves["metric"] == EXPLAINED]
    kept = curves["action"].iloc[0] == "keep"
    curves = curves.groupby(["model", "task", "order", "by", "series", "k"], sort=False, as_index=False).agg(
        {"value": "mean", "lo": "mean", "hi": "mean", "n": "first"}
    )  # a control's draws are shown as their mean
    models = list(dict.fromkeys(curves["model"]))
    colour = {
        str(row["model"]): COLOURS[row["pair"] % len(COLOURS)].get(row["role"], "#444444")
        for row in members.to_dict("records")
    }
    panels: list[Panel] = []
    seen: set[str] = set()
    for task, part in curves.groupby("task", sort=False):
        traces: list[dict[str, Any]] = []
        orders: dict[str, list[str]] = {}
        owners: dict[str, str] = {}
        for (model, order, by, series), rows in part.groupby(["model", "order", "by", "series"], sort=False):
            control = str(series).startswith("random")
            name = f"{model}, {series} of {order}" if series == "random_layer" else f"{model}, {series}"
            made = curve(
                rows,
                name=name,
                colour=colour.get(str(model), "#444444"),
                dash="dot" if control else "solid",
                first=name not in seen,
            )
            if control:  # one thin line each: the bands of controls would hide the curves
                made = [
                    trace | {"line": {**trace["line"], "width": 1}, "opacity": 0.55} for trace in made[-1:]
                ]
            seen.add(name)
            traces += made
            if not control:
                own = scores[(scores["task"] == task) & (scores["model"] == model)]
                own = own[own["method"] == str(series).removesuffix(f" {by}")]
                orders[name], owners[name] = _ranked(own, str(by)), str(model)
        panels.append(
            Panel(
                title=str(task),
                traces=traces,
                x={"title": f"Number of Heads {'Kept' if kept else 'Masked'}"},
                y={"title": "Explained Effect", "tickvals": [0, 0.5, 1]},
                orders=orders,
                owners=owners,
                model=str(models[0]) if len(models) == 1 else "",
                marks=_segments(ratios, str(task)),
            )
        )
    return Chart(
        title="How much of the behaviour the first k heads explain",
        panels=panels,
        caption=("0 is no head kept, 1 the whole model; every other head is" if kept else _MASKED)
        + " replaced by its reference. Bands are 95 % over examples; dotted lines are random orders. The dashed "
        "segment joins two models where they first reach the threshold and carries the ratio of their heads.",
        columns=2,
        least=400,
        height=300,
        table=curves[["model", "task", "series", "k", "value", "lo", "hi", "n"]],
    )


def _ranked(scores: pd.DataFrame, by: str) -> list[str]:
    """The heads as the study ranked them."""
    keys = {"absolute": -scores["score"].abs(), "hinders": scores["score"]}
    ranked = scores.assign(key=keys.get(by, -scores["score"]))
    return head_names(ranked.sort_values("key", kind="stable"))


def _segments(ratios: pd.DataFrame, task: str) -> list[dict[str, Any]]:
    """The black dashed line between two models at the threshold, with the ratio on it."""
    if ratios.empty:
        return []
    marks: list[dict[str, Any]] = []
    for row in ratios[ratios["task"] == task].to_dict("records"):
        if not all(map(math.isfinite, (row["k"], row["other_k"], row["ratio"]))):
            continue
        if "sparse" not in str(row["compared"]):
            continue
        at = row["threshold"]
        marks.append(
            {
                "kind": "shape",
                "type": "line",
                "x0": row["other_k"],
                "x1": row["k"],
                "y0": at,
                "y1": at,
                "line": {"color": "#888888", "width": 2, "dash": "dash"},
            }
        )
        marks.append(
            {
                "kind": "text",
                "text": f"{row['ratio']:.1f}x",
                "x": (row["k"] + row["other_k"]) / 2,
                "y": at,
                "showarrow": False,
                "xanchor": "left",
                "xshift": 16,
                "yshift": -6,
            }
        )
    return marks


def _ratios(ratios: pd.DataFrame) -> list[Finding]:
    if ratios.empty:
        return []
    found = []
    for (model, other, series), rows in ratios.groupby(["model", "other", "series"], sort=False):
        known = rows[rows["ratio"].notna()]
        if known.empty:
            continue
        each = joined([f"{r.task} {r.ratio:.1f}x [{r.lo:.1f}, {r.hi:.1f}]" for r in known.itertuples()])
        found.append(
            Finding(
                sentence=f"Heads that {model} needs over heads that {other} needs, by {series}, to reach "
                f"{known['threshold'].iloc[0]:.0%} of the effect: {each}; above 1, {other} needs fewer.",
                weight=0.55,
            )
        )
    return found


def _sizes(circuits: pd.DataFrame) -> list[Finding]:
    found: list[Finding] = []
    for (model, series), rows in circuits.groupby(["model", "series"], sort=False):
        own = rows[rows["k"].notna()]
        if own.empty or str(series).startswith("random"):
            continue
        kept = own["action"].iloc[0] == "keep"
        what = "Kept heads of {} that explain" if kept else "Masked heads of {} that take away"
        each = joined([f"{r.task} {r.k:.0f} [{r.k_lo:.0f}, {r.k_hi:.0f}]" for r in own.itertuples()])
        found.append(
            Finding(
                sentence=f"{what.format(model)} {own['threshold'].iloc[0]:.0%} of the effect, by {series}, of "
                f"{own['of'].iloc[0]}: {each}.",
                weight=0.5 if len(found) == 0 else 0.2,
            )
        )
    return found


def _maps(model: str, attention: pd.DataFrame) -> Chart:
    """The attention of the first kept heads on one prompt of each task."""
    panels: list[Panel] = []
    for (task, _series), part in attention.groupby(["task", "series"], sort=False):
        for (_, layer, head), rows in part.groupby(["rank", "layer", "head"], sort=True):
            if len(panels) == MOST_MAPS:
                break
            length = int(rows[["query", "key"]].to_numpy().max()) + 1
            z = np.full((length, length), np.nan)
            z[rows["query"].to_numpy(), rows["key"].to_numpy()] = rows["attention"]
            words = rows.drop_duplicates("key").sort_values("key")["token"].astype(str).tolist()
            panels.append(
                Panel(
                    title=f"L{layer}H{head}, {task}",
                    traces=[
                        {
                            "type": "heatmap",
                            "z": rounded(z, 3),
                            "text": [words] * length,
                            "colorscale": "Blues",
                            "reversescale": True,
                            "zmin": 0,
                            "zmax": 1,
                            "showscale": not panels,
                            "colorbar": colour_bar("attention"),
                            "hovertemplate": "from %{y} to %{x} (%{text}): %{z:.2f}<extra></extra>",
                        }
                    ],
                    x={"title": "Token attended to"},
                    y={"title": "Token", "autorange": "reversed"},
                    model=model,
                    attention=f"L{layer}H{head}",
                )
            )
    return Chart(title=f"What the first kept heads of {model} attend to", panels=panels, columns=4)
