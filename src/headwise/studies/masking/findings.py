"""Does the model fail when the important heads go, and not when random ones go?"""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.charts.interactive import curve, matrix
from headwise.charts.section import Chart, Finding, Panel, Section, head_names, head_rows, register
from headwise.runs.gather import Run, by_model
from headwise.studies.masking.charts import BLUE, NAMES, RED

LINES = {"top": ("TopK", "solid"), "random": ("RandomK", "dash"), "random_layer": ("Layer-matched", "dot")}

SYMBOLS = {"top": "circle", "random": "circle-open", "random_layer": "diamond-open"}
"""As in the figure: filled where the heads were chosen, open where they were drawn."""

_STRONGER = "task kind series strength before after change change_lo change_hi n".split()


@register("masking")
def section(run: Run) -> Section:
    curves, orders, cross = run.table("curves"), run.table("orders"), run.table("cross")
    if "draw" in curves:
        curves = curves[curves["draw"].isna()]
    charts = [_curves(model, part, _first_heads(orders, model)) for model, part in by_model(curves)]
    charts += [_cross(model, part) for model, part in by_model(cross)]
    charts += _interventions(run.table("interventions"))
    samples = run.table("samples")
    return Section(
        findings=_findings(curves),
        charts=charts,
        texts=samples if len(samples) else None,
        heads=head_rows(run.table("scores")),
    )


def _first_heads(orders: pd.DataFrame, model: str) -> dict[str, list[str]]:
    """The heads that were masked, by ability, in the order in which they went."""
    own = orders[(orders["model"] == model) & (orders["series"] == "top")]
    return {
        str(task): head_names(rows[rows["k"] == rows["k"].max()].sort_values("place"))
        for task, rows in own.groupby("task", sort=False)
    }


def _curves(model: str, curves: pd.DataFrame, first: dict[str, list[str]]) -> Chart:
    similarity = next((name for name in dict.fromkeys(curves["metric"]) if name != "accuracy"), None)
    panels: list[Panel] = []
    for task, part in curves.groupby("task", sort=False):
        start = part[part["k"] == 0]
        traces: list[dict[str, Any]] = []
        for metric, colour in (("accuracy", BLUE), (similarity, RED)):
            for series, (word, dash) in LINES.items():
                rows = part[(part["metric"] == metric) & (part["series"] == series)]
                if rows.empty:
                    continue
                if series != "random_layer":
                    rows = pd.concat([start[start["metric"] == metric], rows])
                # A logarithmic axis has no zero: it stands where a half would.
                rows = rows.assign(place=rows["k"].where(rows["k"] > 0, _zero(part)))
                made = curve(
                    rows,
                    x="place",
                    said="k",
                    name=f"{word} {NAMES.get(str(metric), str(metric))}",
                    colour=colour,
                    dash=dash,
                    first=not panels,
                    markers=True,
                    second=metric != "accuracy",
                )
                made[-1]["marker"] = {"symbol": SYMBOLS[series], "size": 7}
                if series == "random_layer":  # at one K by default, where a line has nothing to join
                    made[-1]["mode"] = "markers"
                traces += made
        ks = sorted(int(k) for k in part["k"].unique() if k > 0)
        panels.append(
            Panel(
                title=str(task),
                traces=traces,
                x={
                    "title": "# Masked Heads",
                    "type": "log",
                    "tickvals": [_zero(part), *ks],
                    "ticktext": ["0", *map(str, ks)],
                },
                y={"title": "Accuracy", "range": [-0.03, 1.03]},
                y2={
                    "title": NAMES.get(str(similarity), str(similarity)),
                    "range": [-0.03, 1.03],
                    "color": RED,
                }
                if similarity
                else None,
                model=model,
                orders={"top": first.get(str(task), [])},
            )
        )
    return Chart(
        title=f"Masking the heads of {model}",
        panels=panels,
        caption="Accuracy (blue, left) and similarity with the unmasked model's text (red, right) against the number "
        "of masked heads: the ability's first heads, as many random ones, as many random ones of the same layers. "
        "Bands are 95 % over examples and draws.",
        columns=2,
        least=420,
        height=280,
        gap=80,
        table=curves[["model", "task", "series", "k", "metric", "value", "lo", "hi", "n"]],
    )


def _zero(part: pd.DataFrame) -> float:
    return float(part.loc[part["k"] > 0, "k"].min()) / 2


def _findings(curves: pd.DataFrame) -> list[Finding]:
    """Top-k against random heads at the K where they differ most, for each ability."""
    found = []
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


def _cross(model: str, cross: pd.DataFrame) -> Chart:
    rows = cross[cross["metric"] == "accuracy"]
    owners, measured = list(dict.fromkeys(rows["heads_of"])), list(dict.fromkeys(rows["task"]))
    square = rows.pivot(index="heads_of", columns="task", values="change").loc[owners, measured]
    trace = matrix(
        square,
        unit="change of accuracy",
        hover="heads of %{y} masked, %{x} measured: %{z:+.2f}",
        low=-1,
        signed=True,
    )
    panel = Panel(
        title=f"K = {rows['k'].iloc[0]}",
        traces=[trace],
        x={"title": "Measured", "tickangle": -30},
        y={"title": "Masked heads of", "autorange": "reversed"},
    )
    return Chart(
        title=f"Mask one ability's heads, measure another, {model}",
        panels=[panel],
        columns=1,
        height=340,
        gap=150,
        table=rows[
            ["heads_of", "task", "k", "value", "lo", "hi", "full", "change", "change_lo", "change_hi", "n"]
        ],
    )


def _interventions(table: pd.DataFrame) -> list[Chart]:
    charts = []
    for model, part in by_model(table):
        panels: list[Panel] = []
        for (task, kind), rows in part.groupby(["task", "kind"], sort=False):
            traces: list[dict[str, Any]] = []
            for series, (word, dash) in LINES.items():
                own = rows[rows["series"] == series].assign(value=lambda r: r["after"])
                if len(own):
                    traces += curve(
                        own, name=word, colour=BLUE, dash=dash, x="strength", first=not panels, markers=True
                    )
            panels.append(
                Panel(
                    title=f"{task}, {kind}",
                    traces=traces,
                    x={"title": "Gate" if kind == "amplify" else "α"},
                    y={"title": "Accuracy after", "range": [-0.03, 1.03]},
                )
            )
        charts.append(
            Chart(
                title=f"Making heads stronger, {model}",
                panels=panels,
                columns=3,
                least=280,
                table=part[_STRONGER],
            )
        )
    return charts
