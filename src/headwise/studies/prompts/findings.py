"""What do inserted tokens do to a model's answers and to a head's attention?"""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.charts.heatmap import saturation
from headwise.charts.interactive import bars, head_map, rounded, translucent
from headwise.charts.section import Chart, Finding, Panel, Section, register
from headwise.runs.gather import Run, by_model
from headwise.studies.prompts.charts import first_shown, headline, significance, spans
from headwise.studies.prompts.condition_style import BARS, FULL, LINES, bar_label, colours, short

_ANSWERS = ["model", "condition", "problem", "text", "gold", "parsed", "right", "truncated"]


@register("prompts")
def section(run: Run) -> Section:
    accuracy, comparisons = run.table("accuracy"), run.table("comparisons")
    profiles, moved, answers = run.table("profiles"), run.table("moved"), run.table("answers")
    charts = [_bars(accuracy)]
    for model, own in by_model(profiles):
        several = own["task"].nunique() > 1
        for task, part in own.groupby("task", sort=False):
            charts.append(_profiles(part, f"{model} on {task}" if several else model))
    charts += [_moved(model, part) for model, part in by_model(moved)]
    findings = [Finding(sentence=f"{headline(comparisons)}.", weight=0.45)] if len(comparisons) else []
    findings += [
        Finding(sentence=f"{significance(row)}.", weight=0.2) for row in comparisons.to_dict("records")
    ]
    return Section(
        findings=findings,
        charts=charts,
        texts=answers.reindex(columns=[c for c in _ANSWERS if c in answers]) if len(answers) else None,
        heads=_heads(moved),
    )


def _heads(moved: pd.DataFrame) -> pd.DataFrame | None:
    """How far each head's attention moves, as rows of the table of heads."""
    if moved.empty:
        return None
    return pd.DataFrame(
        {
            "model": moved["model"],
            "task": moved["task"],
            "measure": "attention moved by " + moved["condition"].astype(str),
            "layer": moved["layer"],
            "head": moved["head"],
            "score": moved["moved"],
            "lo": moved.get("moved_lo"),
            "hi": moved.get("moved_hi"),
            "n": moved["n"],
            "q": float("nan"),
        }
    )


def _bars(accuracy: pd.DataFrame) -> Chart:
    panels: list[Panel] = []
    for task, part in accuracy.groupby("task", sort=False):
        names = list(dict.fromkeys(part["condition"]))
        palette = colours(names, BARS)
        traces = [
            bars(
                part[part["condition"] == name].assign(value=lambda rows: rows["accuracy"]),
                name=bar_label(name),
                colour=palette[name],
                x="model",
                first=not panels,
                scale=100,
            )
            for name in names
        ]
        panels.append(
            Panel(
                title=f"Results on {task}",
                traces=traces,
                y={"title": "Right answers, %", "rangemode": "tozero"},
            )
        )
    return Chart(
        title="Answers under each condition",
        panels=panels,
        caption="The same problems in every condition; bars carry 95 % intervals. Cut-off answers and answers without "
        "a result count as wrong and are in the numbers below.",
        columns=2,
        least=400,
        height=300,
        table=accuracy,
    )


def _profiles(profiles: pd.DataFrame, where: str) -> Chart:
    panels: list[Panel] = []
    model = str(profiles["model"].iloc[0])
    for (layer, head), part in profiles.groupby(["layer", "head"], sort=False):
        part = part[part["position"] >= first_shown(part)]
        names = list(dict.fromkeys(part["condition"]))
        above = colours(names, LINES)
        inserting = [name for name in names if part.loc[part["condition"] == name, "inserted"].any()]
        below = colours(inserting, FULL)
        aligned = [_line(part, name, "aligned", above[name], not panels, fill=True) for name in names]
        full = [_line(part, name, "position", below[name], False) for name in inserting]
        about: dict[str, Any] = {"model": model, "attention": f"L{layer}H{head}"}
        panels.append(
            Panel(
                title=f"Average attention on L{layer}H{head}",
                traces=aligned,
                x={"title": "Original tokens"},
                y={"title": "Attention", "rangemode": "tozero"},
                **about,
            )
        )
        if full:
            panels.append(
                Panel(
                    title="The full sequence, inserted tokens shaded",
                    traces=full,
                    x={"title": "Tokens"},
                    y={"title": "Attention", "rangemode": "tozero"},
                    marks=_shades(part, inserting),
                    **about,
                )
            )
    return Chart(
        title=f"Where {where} attends, by condition",
        panels=panels,
        caption="For each token, the mean attention of all later ones to it; the first and last tokens are left out. "
        "Over the full sequence blue is Mless and red Mful.",
        columns=2,
        least=420,
        height=260,
    )


def _line(
    part: pd.DataFrame, name: str, x: str, colour: str, first: bool, fill: bool = False
) -> dict[str, Any]:
    rows = part[(part["condition"] == name) & part[x].notna()].sort_values(x)
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "x": rounded(rows[x].to_numpy(dtype=float)),
        "y": rounded(rows["attention"].to_numpy(dtype=float)),
        "text": rows["token"].astype(str).tolist(),
        "name": short(name),
        "legendgroup": short(name),
        "showlegend": first,
        "line": {"color": colour, "width": 1.3},
        "hovertemplate": "%{fullData.name}, token %{x} “%{text}”: %{y:.3~g}<extra></extra>",
    }
    return trace | ({"fill": "tozeroy", "fillcolor": translucent(colour, 0.14)} if fill else {})


def _shades(part: pd.DataFrame, inserting: list[str]) -> list[dict[str, Any]]:
    """A grey rectangle over each run of inserted tokens; one for conditions that insert at the same places."""
    runs = {
        (int(places[first]), int(places[last - 1]))
        for name in inserting
        for rows in [part[part["condition"] == name].sort_values("position")]
        for places in [rows["position"].to_numpy()]
        for first, last in spans(rows["inserted"].to_numpy(dtype=bool))
    }
    return [
        {
            "kind": "shape",
            "type": "rect",
            "yref": "domain",
            "x0": first - 0.5,
            "x1": last + 0.5,
            "y0": 0,
            "y1": 1,
            "fillcolor": "rgba(128,128,128,0.18)",
            "line": {"width": 0},
            "layer": "below",
        }
        for first, last in sorted(runs)
    ]


def _moved(model: str, moved: pd.DataFrame) -> Chart:
    top, _ = saturation(moved["moved"].to_numpy(dtype=float))
    panels: list[Panel] = []
    for (task, condition), part in moved.groupby(["task", "condition"], sort=False):
        rows = part.rename(columns={"moved": "score", "moved_lo": "lo", "moved_hi": "hi"})
        panels.append(
            head_map(
                rows,
                title=f"{short(str(condition))}, {task}",
                top=top,
                signed=False,
                unit="attention moved",
                model=model,
                bar=not panels,
            )
        )
    return Chart(
        title=f"How far the insertion moves each head of {model}",
        panels=panels,
        caption="Of the attention on the original tokens, against no insertion.",
        columns=3,
        height=300,
    )
