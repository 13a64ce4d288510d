"""How few heads explain the behaviour, and does sparse attention need fewer?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.explained_effect import (
    COLOURS,
    CONTROLS,
    EXPLAINED,
    effect_range,
    few_heads,
    mean_of_draws,
    moved_note,
    root_ticks,
)
from headwise.charts.interactive import colour_bar, curve, joined, rounded
from headwise.charts.section import Chart, Finding, Panel, Section, head_rows, register
from headwise.charts.words import task_title
from headwise.heads import heads_of, ranked
from headwise.runs.gather import Run, by_model

MOST_MAPS = 8
"""Attention maps of a model on the page; the run's figures have the rest."""


_MASKED = "0 is no head masked, 1 what is lost when all are; a masked head is"


@register("circuits")
def section(run: Run) -> Section:
    curves, scores = run.table("curves"), run.table("scores")
    sizes = run.table("circuits")
    threshold = float(sizes["threshold"].iloc[0])
    charts = [_curves(curves, scores, run.table("members"), run.table("ratios"), threshold)]
    charts += [_maps(model, part) for model, part in by_model(run.table("attention"))]
    findings = [*_ratios(run.table("ratios")), *_sizes(sizes)]
    return Section(findings=findings, charts=charts, heads=head_rows(scores))


def _curves(
    curves: pd.DataFrame,
    scores: pd.DataFrame,
    members: pd.DataFrame,
    ratios: pd.DataFrame,
    threshold: float,
) -> Chart:
    kept = curves["action"].iloc[0] == "keep"
    curves = curves[curves["metric"] == EXPLAINED]
    draws, note = _draws(curves), moved_note(curves)
    curves = mean_of_draws(curves)
    curves = curves.groupby(["model", "task", "order", "by", "series", "k"], sort=False, as_index=False).agg(
        {"value": "mean", "lo": "mean", "hi": "mean", "n": "first"}
    )  # a run of an earlier version has a control's draws alone
    few = few_heads(curves, threshold)
    place = np.sqrt if few else np.asarray
    curves = curves.assign(place=place(curves["k"].to_numpy(dtype=float)))
    models = list(dict.fromkeys(curves["model"]))
    colour = {
        str(row["model"]): COLOURS[row["pair"] % len(COLOURS)].get(row["role"], "#444444")
        for row in members.to_dict("records")
    }
    what = f"Number of Heads {'Kept' if kept else 'Masked'}{' (√ axis)' if few else ''}"
    panels: list[Panel] = []
    seen: set[str] = set()
    for task, part in curves.groupby("task", sort=False):
        traces: list[dict[str, Any]] = []
        orders: dict[str, list[str]] = {}
        owners: dict[str, str] = {}
        for (model, _order, by, series), rows in part.groupby(["model", "order", "by", "series"], sort=False):
            if series in CONTROLS:
                traces += _control(rows, str(model), str(series), first=str(series) not in seen)
                seen.add(str(series))
                continue
            name = f"{model}, {series}"
            shade = colour.get(str(model), "#444444")
            traces += curve(rows, name=name, colour=shade, x="place", said="k", first=name not in seen)
            seen.add(name)
            own = scores[(scores["task"] == task) & (scores["model"] == model)]
            own = own[own["method"] == str(series).removesuffix(f" {by}")]
            orders[name], owners[name] = _ranked(own, str(by)), str(model)
        low, high = effect_range(part)
        panels.append(
            Panel(
                title=task_title(str(task)),
                traces=traces,
                x={"title": what, **(_root_axis(int(part["k"].max())) if few else {})},
                y={"title": "Explained Effect", "tickvals": [0, 0.5, 1], "range": [low, high]},
                orders=orders,
                owners=owners,
                root=few,
                model=str(models[0]) if len(models) == 1 else "",
                marks=_segments(ratios, str(task), place),
            )
        )
    return Chart(
        title="How much of the behaviour the first k heads explain",
        panels=panels,
        caption=("0 is no head kept, 1 the whole model; every other head is" if kept else _MASKED)
        + " replaced by its reference. Bands are 95 % over examples. "
        + _about_controls(draws, note)
        + "The dashed segment joins two models where they first reach the threshold and carries the ratio of their "
        "heads.",
        columns=2,
        least=400,
        height=300,
        table=curves[["model", "task", "series", "k", "value", "lo", "hi", "n"]],
    )


def _draws(curves: pd.DataFrame) -> int:
    """How many draws a control has."""
    numbers = (
        curves.loc[curves["series"].isin(CONTROLS), "draw"] if "draw" in curves else pd.Series(dtype=float)
    )
    return int(numbers.nunique())


def _about_controls(draws: int, note: str) -> str:
    if not draws:
        return ""
    moved = f" (in the same layers: {note}, where a layer has too few others)" if note else ""
    return (
        f"Grey: the mean of {draws} draws of as many other heads, never one of the curve's own first k{moved}, with "
        "95 % bands over draws and examples; it ends where too few other heads are left. "
    )


def _control(rows: pd.DataFrame, model: str, series: str, first: bool) -> list[dict[str, Any]]:
    """A thin grey line and its pale band; one entry of the legend for all models."""
    name, _ = CONTROLS[series]
    dash = "solid" if series == "random" else "dash"
    *band, line = curve(rows, name=name, colour="#9aa0a6", x="place", said="k", dash=dash, first=first)
    line["line"]["width"] = 1
    line["text"] = [model] * len(rows)
    line["hovertemplate"] = "%{text}, " + line["hovertemplate"]
    return [*band, line]


def _root_axis(most: int) -> dict[str, Any]:
    """Plotly has no such axis: what is drawn are the roots, what is written the numbers."""
    ticks = root_ticks(most)
    return {"tickvals": rounded(np.sqrt(ticks)), "ticktext": [str(tick) for tick in ticks]}


def _ranked(scores: pd.DataFrame, by: str) -> list[str]:
    """The heads as the study ranked them; a score without a sign has one ranking."""
    order = ranked(heads_of(scores), scores["score"].to_numpy(), "signed" if by == "unsigned" else by)
    return [str(head) for head in order]


def _segments(ratios: pd.DataFrame, task: str, place: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """The dashed line between the dense and the sparse model at the threshold, its ratio right below."""
    if ratios.empty:
        return []
    marks: list[dict[str, Any]] = []
    for row in ratios[(ratios["task"] == task) & (ratios["compared"] == "dense/sparse")].to_dict("records"):
        if not all(map(math.isfinite, (row["k"], row["other_k"], row["ratio"]))):
            continue
        at, ends = row["threshold"], [float(place(row[name])) for name in ("other_k", "k")]
        line = {"color": "ink", "width": 1.5, "dash": "dash"}
        marks.append(
            {"kind": "shape", "type": "line", "x0": ends[0], "x1": ends[1], "y0": at, "y1": at, "line": line}
        )
        between = f"<br>[{row['lo']:.1f}, {row['hi']:.1f}]" if math.isfinite(row["lo"]) else ""
        marks.append(
            {
                "kind": "text",
                "text": f"{row['ratio']:.1f}x{between}",
                "x": max(ends),
                "y": at,
                "showarrow": False,
                "align": "left",
                "xanchor": "left",
                "yanchor": "top",
                "xshift": 6,
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
