"""Which heads help, hinder or do nothing: the ablation curves, the maps of the roles, how many heads have each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Bars, Chart, Line, Mark, Panel, Rule, Scale, Text, axis_range
from headwise.charts.heatmap import head_panel
from headwise.charts.section import SECTIONS, Section, Tables, by_model, head_names, table_of
from headwise.charts.style import file_name
from headwise.charts.words import shortened, span, task_title
from headwise.studies.roles.findings import findings, heads

COLOURS = {"facilitation": "#2a9d4e", "irrelevance": "#2f6fc4", "interference": "#d1352b"}
ROLES = tuple(COLOURS)
_SCALES = {
    role: Scale(palette, 0, 1, role.capitalize(), (0, 0.5, 1), ("0", ".5", "1"))
    for role, palette in zip(ROLES, ("Greens", "Blues", "Reds"), strict=True)
}
_LABELS = {
    "facilitating": COLOURS["facilitation"],
    "irrelevant": COLOURS["irrelevance"],
    "interfering": COLOURS["interference"],
    "undecided": "#9aa0a6",
    "anomalous": "#8a5fb0",
}


def charts(tables: Tables) -> list[Chart]:
    """The curves of all tasks and models, the maps of each model, the shares of all."""
    scores, shares = table_of(tables, "scores"), table_of(tables, "shares")
    made = [role_curves(tables["curves"], scores), *(role_maps(part) for _, part in by_model(scores))]
    return made + ([role_shares(shares)] if len(shares) else [])


def role_curves(table: pd.DataFrame, scores: pd.DataFrame | None = None) -> Chart:
    """Grid of tasks (rows) × models (columns): what ablating the first k heads of each role does.

    `table` is `curves`. The band is `lo` to `hi`; one y scale per row. `scores` gives the order of the heads.
    """
    models, tasks = (list(dict.fromkeys(table[name])) for name in ("model", "task"))
    longest = max(1, int(table["k"].max()))
    label = f"Δ Log Probability{' ' if len(tasks) > 1 else chr(10)}of Target Response"  # as long as the figure is tall
    panels: list[Panel | None] = []
    for task in tasks:
        # One scale for all models of a task, so that they can be compared.
        limits = axis_range(table.loc[table["task"] == task, ["value", "lo", "hi"]].to_numpy())
        for model in models:
            own = table[(table["model"] == model) & (table["task"] == task)]
            lines = [_role(own[own["series"] == role].sort_values("k"), role) for role in ROLES]
            panel = Panel(
                row=shortened(task_title(task), 22),
                column=shortened(model),
                marks=[Rule(at=0, width=0.6), *lines],
                x=Axis(label="Number of Ablated Heads", limits=(0, longest)),
                y=Axis(label=label, limits=limits),
                model=str(model),
                orders=_orders(scores, task, model, longest),
            )
            panels.append(panel if len(own) else None)
    return Chart(
        name="roles",
        title="What ablating the first k heads of each role does",
        heading="",
        panels=panels,
        caption="Nats, held-out examples; the band is 95 % over seeds. A chosen head is marked at its place in each "
        "order by the mean over seeds; a single seed may place it elsewhere.",
        size=(2.1 + 2.35 * len(models), 0.9 + 1.75 * len(tasks)),
        columns=len(models),
        once=True,
        page_columns=max(2, min(3, len(models))),
        legend="right",
        least=300,
        table=table[["model", "task", "series", "k", "value", "lo", "hi", "n"]],
    )


def _role(part: pd.DataFrame, role: str) -> Line:
    about: dict[str, Any] = {
        "name": role.capitalize(),
        "colour": COLOURS[role],
        "lo": part["lo"],
        "hi": part["hi"],
    }
    return Line(x=part["k"], y=part["value"], **about)


def _orders(scores: pd.DataFrame | None, task: str, model: str, most: int) -> dict[str, list[str]]:
    if scores is None or scores.empty:
        return {}
    own = scores[(scores["task"] == task) & (scores["model"] == model)]
    return {
        role: head_names(own.sort_values(role, ascending=False, kind="stable").head(most)) for role in ROLES
    }


def role_maps(table: pd.DataFrame) -> Chart:
    """Layer × head maps of one model: a row per task, a column per role, mean over seeds, from 0 to 1.

    `table` is `scores` with the columns of the three roles; a dot marks heads whose every seed gave the role's
    label.
    """
    tasks = list(dict.fromkeys(table["task"]))
    shape = (int(table["layer"].max()) + 1, int(table["head"].max()) + 1)
    width = float(np.clip(0.5 + 0.16 * shape[1], 1.6, 4.5))
    height = float(np.clip(0.4 + 0.075 * shape[0], 1.4, 5.0))
    panels = []
    for task in tasks:
        part = table[table["task"] == task]
        for role, label in zip(ROLES, _LABELS, strict=False):
            sure = None
            if "label" in part:
                sure = part[(part["label"] == label) & (part["agreement"] == 1) & (part["n"] > 1)]
            bounds = ("lo", "hi") if role == "facilitation" else ("", "")  # the others have no interval
            about: dict[str, Any] = {"row": shortened(task_title(task), 22), "column": role.capitalize()}
            panels.append(
                head_panel(part, _SCALES[role], of=role, bounds=bounds, dots=sure, shape=shape, **about)
            )
    model, seeds = str(table["model"].iloc[0]), table["n"].max()
    note = "dot: every seed" if seeds > 1 else "one seed"
    return Chart(
        name=f"role-map-{file_name(model)}",
        title=f"The three roles of {shortened(model)}'s heads, mean of {seeds} seeds ({note})",
        panels=panels,
        size=(3 * width + 1.4, height * len(tasks) + 1.2),
        columns=3,
        bar="bottom",
        height=280,
    )


def role_shares(table: pd.DataFrame) -> Chart:
    """Share of heads with each label per model and task, and how many have it always and ever over the seeds.

    `table` is `shares`: bars at the left, the counts at the right.
    """
    pairs = list(dict.fromkeys(zip(table["model"], table["task"], strict=True)))
    several = table["model"].nunique() > 1
    names = [
        f"{shortened(task_title(t), 20)}\n{shortened(m, 20)}" if several else shortened(task_title(t))
        for m, t in pairs
    ]
    counts = table.set_index(["model", "task", "label"])
    y = Axis(limits=(len(pairs) - 0.5, -0.5), ticks=range(len(pairs)), names=names)
    x = Axis(
        label="Share of heads, mean over seeds",
        limits=(0, 1),
        ticks=(0, 0.5, 1),
        names=("0", "50 %", "100 %"),
    )
    label_width = 0.075 * max(len(line) for name in names for line in name.split("\n"))
    return Chart(
        name="role-shares",
        title="How many heads have each role",
        heading="",
        panels=[
            Panel(marks=_shares(counts, pairs), x=x, y=y),
            _always_and_ever(counts, pairs, y),
        ],
        size=(8.2 + label_width, 1.6 + (0.55 if several else 0.42) * len(pairs)),
        columns=2,
        widths=(1, 1.25),
        least=380,
        height=100 + 40 * len(pairs),
        table=table[["model", "task", "label", "always", "ever", "mean", "heads", "seeds"]],
    )


def _shares(counts: pd.DataFrame, pairs: list[tuple[str, str]]) -> list[Bars]:
    """A bar for each label, one standing where the last ended."""
    bars, base = [], np.zeros(len(pairs))
    for label, colour in _LABELS.items():
        own = [counts.loc[(*pair, label), :] for pair in pairs]
        share = np.array([one["share"] for one in own], dtype=float)
        bars.append(
            Bars(
                at=np.arange(len(pairs)),
                values=share,
                base=base,
                name=label.capitalize(),
                colours=colour,
                lying=True,
                words=[f"{value:.0%}" if value > 0.07 else "" for value in share],
                hover=[
                    f"{one['share']:.0%}; {one['always']:.0f} heads in every seed, {one['ever']:.0f} in some"
                    for one in own
                ],
            )
        )
        base = base + share
    return bars


def _always_and_ever(counts: pd.DataFrame, pairs: list[tuple[str, str]], y: Axis) -> Panel:
    """Rows in line with the bars; always / ever for each label."""
    marks: list[Mark] = []
    for column, label in enumerate(_LABELS):
        for row, pair in enumerate(pairs):
            one = counts.loc[(*pair, label), :]
            marks.append(Text(x=column, y=row, text=f"{one['always']:.0f} / {one['ever']:.0f}"))
    first = counts.iloc[0]
    return Panel(
        title=f"always / ever: heads in all / in any of {first['seeds']:.0f} seeds, of {span(counts['heads'])}",
        marks=marks,
        x=Axis(limits=(-0.5, len(_LABELS) - 0.5), ticks=range(len(_LABELS)), names=list(_LABELS)),
        y=y,
        bare=True,
    )


section = Section(charts=charts, findings=findings, heads=heads)
SECTIONS.add("roles", section)
