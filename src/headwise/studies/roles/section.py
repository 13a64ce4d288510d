"""Which heads help, interfere or do nothing: the ablation curves, the maps of the roles, how many heads have each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import (
    PAPER,
    Axis,
    Bars,
    Chart,
    Label,
    Line,
    Panel,
    Rule,
    Scale,
    axis_range,
    count_axis,
    curve,
    names_axis,
)
from headwise.charts.heatmap import head_panel
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.charts.style import file_name
from headwise.charts.words import plus, shortened, span, task_title, under
from headwise.tables.frames import Tables, columns_of, groups, head_names, head_rows, map_shape, table_of

_VERBS = {"facilitating": "facilitate", "interfering": "interfere", "irrelevant": "are irrelevant"}


def findings(tables: Tables) -> list[Finding]:
    order, shares, joint = (table_of(tables, name) for name in ("order", "shares", "joint"))
    return [*_order(order, shares), *_joint(joint)]


def heads(tables: Tables) -> pd.DataFrame | None:
    """One row per role: facilitation with its interval over seeds, the others with their mean."""
    first = head_rows(tables)
    if first is None:
        return None
    others = [
        first.assign(measure=role, score=tables["scores"][role], lo=None, hi=None, q=None)
        for role in ("irrelevance", "interference")
    ]
    return pd.concat([first.assign(measure="facilitation"), *others], ignore_index=True)


def _order(order: pd.DataFrame, shares: pd.DataFrame) -> list[Finding]:
    found = []
    by_task = dict(groups(shares, "model", "task"))
    for row in order.to_dict("records"):
        counts = by_task[row["model"], row["task"]].set_index("label")
        counted = "; ".join(
            f"{counts.loc[label, 'always']:.0f} {verb} in every seed, {counts.loc[label, 'ever']:.0f} in at least one"
            for label, verb in _VERBS.items()
        )
        below = "" if row["below"] else " (not significantly lower)"
        above = "" if row["above"] else " (not significantly higher)"
        ablation = "" if row["reference"] == "zero" else f" ({row['reference']} ablation)"
        sentence = (
            f"On {row['task']}, {row['model']}{ablation}: ablating the {row['k']} most facilitating heads changes the "
            f"answer's log probability by {plus(row['facilitation'], 2)} nats, ablating {row['k']} irrelevant heads by "
            f"{plus(row['irrelevance'], 2)}{below}; ablating the {row['peak']} most interfering heads changes it by "
            f"{plus(row['interference_at_peak'], 2)}, {row['peak']} irrelevant heads by "
            f"{plus(row['irrelevance_at_peak'], 2)}{above}. Of {counts['heads'].iloc[0]:.0f} heads over "
            f"{counts['seeds'].iloc[0]:.0f} seeds, {counted}."
        )
        both, either = row["below"] and row["above"], row["below"] or row["above"]
        changes = (
            f"by {plus(row['facilitation'], 2)} nats without the {row['k']} heads that help most, and by "
            f"{plus(row['interference_at_peak'], 2)} without the {row['peak']} that hinder most"
        )
        plain = (
            f"The log probability of the right answers of {row['model']} on {row['task']} changes {changes}."
        )
        if not either:
            plain = (
                f"Heads that clearly help or hinder {row['model']} on {row['task']}: the log probability of the right "
                f"answer changes {changes}, but so few fits cannot tell this from unimportant heads."
            )
        found.append(Finding(sentence=sentence, weight=0.6 if both else 0.4, plain=plain, found=bool(either)))
    return found


def _joint(joint: pd.DataFrame) -> list[Finding]:
    """The joint effect of the most facilitating heads."""
    found = []
    for row in joint.to_dict("records"):
        cost, lo, hi, mean = (f"{row[name]:.2f}" for name in ("effect", "lo", "hi", "random_mean"))
        sentence = (
            f"On {row['task']}, {row['model']}: ablating the most facilitating heads together costs {cost} nats "
            f"[{lo}, {hi}], more than {row['larger_than']:.1%} of {row['sets']} random sets of heads (mean {mean}); "
            f"the rank correlation of facilitation with exact ablation is {plus(row['facilitation_correlation'], 2)}."
        )
        found.append(Finding(sentence=sentence, weight=0.35))
    return found


# ---- charts --------------------------------------------------------------------------------------


COLOURS = {"facilitation": "#2a9d4e", "irrelevance": "#2f6fc4", "interference": "#d1352b"}
_SCALES = {
    role: Scale(palette, 0, 1, role.capitalize(), (0, 0.5, 1), ("0", ".5", "1"))
    for role, palette in zip(COLOURS, ("Greens", "Blues", "Reds"), strict=True)
}
_PERCENTS = ("0", "50 %", "100 %")
_LABELS = dict(zip(("facilitating", "irrelevant", "interfering"), COLOURS.values(), strict=True))
_LABELS |= {"undecided": "#9aa0a6", "anomalous": "#8a5fb0"}


def charts(tables: Tables) -> list[Chart]:
    """The curves of all tasks and models, the maps of each model, the shares of all."""
    scores, shares = table_of(tables, "scores"), table_of(tables, "shares")
    curves = role_curves(tables["curves"], scores, shares)
    maps = [role_maps(part) for _, part in groups(scores, "model")]
    return [curves, *maps, *([role_shares(shares)] if len(shares) else [])]


def role_curves(
    table: pd.DataFrame, scores: pd.DataFrame | None = None, shares: pd.DataFrame | None = None
) -> Chart:
    """Grid of tasks (rows) × models (columns): what ablating the first k heads of each role does.

    `table` is `curves`. The band is `lo` to `hi`; one y scale per row. `scores` gives the order of the heads, `shares`
    the number of heads with each role, which a dot on its curve marks.
    """
    models, tasks = (table[name].unique() for name in ("model", "task"))
    longest = max(1, int(table["k"].max()))
    label = f"Δ Log Probability{' ' if len(tasks) > 1 else chr(10)}of Target Response"  # as long as the figure is tall
    panels: list[Panel | None] = []
    for task, of_task in groups(table, "task"):
        # One scale for all models of a task, so that they can be compared.
        limits = _limits(of_task)
        for model in models:
            rows = of_task[of_task["model"] == model].sort_values("k")
            lines = [
                curve(
                    part,
                    name=role.capitalize(),
                    colour=colour,
                    examples=columns_of(part, "model", "task", "series"),
                )
                for role, colour in COLOURS.items()
                for part in (rows[rows["series"] == role],)
            ]
            panel = Panel(
                row=_task_name(task),
                column=shortened(model, among=models),
                marks=[Rule(at=0, width=0.6), *lines, *_ends(rows, shares)],
                x=count_axis("Number of Ablated Heads", longest),
                y=Axis(label=label, limits=limits),
                model=str(model),
                orders=_orders(scores, task, model, longest),
            )
            panels.append(panel if len(rows) else None)
    return Chart(
        name="roles",
        title=f"Effect of ablating the top k heads of each role{under(table)}",
        heading="",
        panels=panels,
        caption="Nats, held-out examples; the band is the 95 % CI over seeds, and the panel may cut it off. The dot on "
        "a curve marks the mean number of heads that have the role; later heads have another one. A chosen head is "
        "marked at its rank in each order by the mean over seeds; its rank in a single seed may differ.",
        size=(2.1 + 2.35 * len(models), 0.9 + 1.75 * len(tasks)),
        columns=len(models),
        shared_axis_labels=True,
        page_columns=max(2, min(3, len(models))),
        legend="right",
        table=table[["model", "task", "series", "k", "value", "lo", "hi", "n"]],
    )


def _limits(of_task: pd.DataFrame) -> tuple[float, float] | None:
    """All lines, and bands up to half the lines' range beyond them: one wide band does not flatten the rest."""
    low, high = of_task["value"].min(), of_task["value"].max()
    room = 0.5 * (high - low)
    return axis_range(of_task[["value", "lo", "hi"]].clip(low - room, high + room).to_numpy())


def _ends(curves: pd.DataFrame, shares: pd.DataFrame | None) -> list[Line]:
    """For one model and task: a dot on each role's curve where the heads with this role end."""
    if shares is None or shares.empty or curves.empty:
        return []
    first = curves.iloc[0]
    of_pair = shares[(shares["model"] == first["model"]) & (shares["task"] == first["task"])]
    numbers = of_pair.set_index("label")["mean"]
    dots = []
    for (role, colour), label in zip(COLOURS.items(), _LABELS, strict=False):
        line, number = curves[curves["series"] == role], numbers.get(label, 0.0)
        if 0 < number < line["k"].max():
            y = np.interp(number, line["k"], line["value"])
            look: dict[str, Any] = {"colour": colour, "edge": PAPER, "marker": "circle", "size": 5}
            dots.append(Line(x=[number], y=[y], hover=[f"{number:.3g} {label} heads on average"], **look))
    return dots


def _task_name(task: str, most: int = 22) -> str:
    return shortened(task_title(task), most)


def _orders(scores: pd.DataFrame | None, task: str, model: str, most: int) -> dict[str, list[str]]:
    if scores is None or scores.empty:
        return {}
    rows = scores[(scores["task"] == task) & (scores["model"] == model)]
    ranked = {role: rows.sort_values(role, ascending=False, kind="stable")[:most] for role in COLOURS}
    return {role: head_names(first) for role, first in ranked.items()}


def role_maps(table: pd.DataFrame) -> Chart:
    """Layer × head maps of one model: a row per task, a column per role, mean over seeds, from 0 to 1.

    `table` is `scores` with the columns of the three roles; a dot marks heads whose every seed gave the role's
    label.
    """
    shape = map_shape(table)
    width = float(np.clip(0.5 + 0.16 * shape[1], 1.6, 4.5))
    height = float(np.clip(0.4 + 0.075 * shape[0], 1.4, 5.0))
    panels = []
    for task, part in groups(table, "task"):
        for (role, scale), label in zip(_SCALES.items(), _LABELS, strict=False):
            sure = None
            if "label" in part:
                sure = part[(part["label"] == label) & (part["agreement"] == 1) & (part["n"] > 1)]
            bounds = ("lo", "hi") if role == "facilitation" else ("", "")  # the others have no interval
            look: dict[str, Any] = {"shape": shape, "row": _task_name(task), "column": scale.label}
            panels.append(head_panel(part, scale, of=role, bounds=bounds, dots=sure, **look))
    model, seeds = str(table["model"].iloc[0]), table["n"].max()
    note = "dot: label given by every seed" if seeds > 1 else "one seed"
    return Chart(
        name=file_name("role-map", model),
        title=f"The three roles of {shortened(model)}'s heads, mean of {seeds} seeds ({note})",
        panels=panels,
        size=(3 * width + 1.4, height * table["task"].nunique() + 1.2),
        columns=3,
        bar="bottom",
        min_panel_width=230,
        height=280,
    )


def role_shares(table: pd.DataFrame) -> Chart:
    """Share of heads with each label per model and task, and the heads that have it in every and in any seed.

    `table` is `shares`: bars at the left, the counts at the right.
    """
    pairs = list(dict.fromkeys(zip(table["model"], table["task"], strict=True)))
    several = table["model"].nunique() > 1
    names = [
        f"{_task_name(task, 20)}\n{shortened(model, 20, set(table['model']))}"
        if several
        else _task_name(task, 28)
        for model, task in pairs
    ]
    counts = table.set_index(["model", "task", "label"])
    y = names_axis(names, down=True)
    x = Axis(label="Share of heads, mean over seeds", limits=(0, 1), ticks=(0, 0.5, 1), names=_PERCENTS)
    label_width = 0.075 * max(len(line) for name in names for line in name.split("\n"))
    return Chart(
        name="role-shares",
        title="How many heads have each role",
        heading="",
        panels=[Panel(marks=_shares(counts, pairs), x=x, y=y), _counts(counts, pairs, y)],
        size=(8.2 + label_width, 1.6 + (0.55 if several else 0.42) * len(pairs)),
        columns=2,
        widths=(1, 1.25),
        height=100 + 40 * len(pairs),
        table=table[["model", "task", "label", "always", "ever", "mean", "heads", "seeds"]],
    )


def _shares(counts: pd.DataFrame, pairs: list[tuple[str, str]]) -> list[Bars]:
    """A bar for each label, each beginning where the one before ends."""
    bars, base = [], np.zeros(len(pairs))
    for label, colour in _LABELS.items():
        rows = counts.loc[[(*pair, label) for pair in pairs]]
        share = rows["share"].to_numpy(dtype=float)
        bars.append(
            Bars(
                at=np.arange(len(pairs)),
                values=share,
                base=base,
                name=label.capitalize(),
                colours=colour,
                horizontal=True,
                words=[f"{value:.0%}" if value > 0.07 else "" for value in share],
                hover=[
                    f"{row.share:.0%}; {row.always:.0f} heads in every seed, {row.ever:.0f} in at least one"
                    for row in rows.itertuples()
                ],
            )
        )
        base = base + share
    return bars


def _counts(counts: pd.DataFrame, pairs: list[tuple[str, str]], y: Axis) -> Panel:
    """Rows in line with the bars: heads with each label in every seed / in at least one."""
    marks = []
    for column, label in enumerate(_LABELS):
        for row, pair in enumerate(pairs):
            always, ever = counts.loc[(*pair, label), ["always", "ever"]]
            marks.append(Label(x=column, y=row, text=f"{always:.0f} / {ever:.0f}"))
    seeds, total = span(counts["seeds"]), span(counts["heads"])
    title = f"heads in every seed / in at least one of {seeds} seeds, of {total} heads"
    return Panel(title=title, marks=marks, x=names_axis(_LABELS), y=y, bare=True)


section = SECTIONS.add("roles", Section(charts=charts, findings=findings, heads=heads, docs="roles"))
