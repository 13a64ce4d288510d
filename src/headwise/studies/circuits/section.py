"""How few heads explain the behaviour, and does sparse attention need fewer?

The size of a circuit is the number of heads from which on the explained effect stays at the threshold. Charts: the
curves of all orders, and the attention of the first heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.attention import kept_heads
from headwise.charts.chart import Chart
from headwise.charts.explained_effect import explained_chart
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.charts.style import file_name
from headwise.charts.words import joined, minus, percent, task_title
from headwise.heads import heads_of, ranked
from headwise.names import ablation_name
from headwise.tables.frames import Tables, groups, rows_where, table_of

FOLLOWS = (0.0, 0.5, 0.8)
"""R² from which on a circuit follows the model weakly, follows it, and follows it closely."""
NAMED = 3
"""Most steps of an overshoot that a sentence names, and most heads of a step."""


def findings(tables: Tables) -> list[Finding]:
    return [
        *sizes(tables),
        *_ratios(table_of(tables, "ratios"), tables["circuits"]),
        *_overshoots(table_of(tables, "overshoot"), tables["circuits"]),
        *_without_size(tables["circuits"]),
    ]


def chart_name(circuits: pd.DataFrame, reference: str) -> str:
    """The chart of an ablation type: that of the first one has the name of the study."""
    return "circuits" if reference == circuits["reference"].iloc[0] else file_name("circuits", reference)


def sizes(tables: Tables) -> Iterator[Finding]:
    """The circuit size of each model, task and ablation type by the chosen order, how far the circuit follows single
    examples, and what the other orders take."""
    circuits, refits = tables["circuits"], table_of(tables, "refits")
    first, several = True, circuits["model"].nunique() > 1
    reached = circuits[circuits["stays"].notna()]
    for row in reached[reached["chosen"]].to_dict("records"):
        size = f"{row['stays']:.0f} of {row['of']} heads"
        mean = f"{percent(row['threshold'])} of the mean {row['metric']} of {task_title(row['task'])}"
        what = f"(MLPs intact) recover {mean}"
        if row["action"] == "mask":
            what = f"take away {mean} when they are masked"
        under = f" under {ablation_name(row['reference'])}"
        sentence = (
            f"{row['model']}: " * several
            + f"{size} {what}{under} ({_interval(row, refits)}, n = {row['n']}), ranked by {row['series']}"
            + following(row)
            + _others(reached, row)
            + "."
        )
        plain = (
            f"On average, {size} {_does(row)}{under} ({row['n']} examples; 95 % interval {_number(row['stays_lo'])} to "
            f"{_number(row['stays_hi'])} heads){following(row)}."
        )
        yield Finding(
            sentence=sentence,
            weight=0.6 if first else 0.3,
            chart=chart_name(circuits, row["reference"]),
            plain=plain,
        )
        first = False


def _without_size(circuits: pd.DataFrame) -> Iterator[Finding]:
    """Chosen orders on tasks that the heads do not serve: there may be no effect to explain, or a negative one."""
    for row in circuits[circuits["chosen"]].to_dict("records"):
        what = f"{row['model']} on {task_title(row['task'])} under {ablation_name(row['reference'])}"
        effect = f"{row['metric']} with all heads minus with none is {row['effect']:+.3g}"
        if not row["defined"]:
            sentence = (
                f"{what}: the explained effect is undefined, because {effect} "
                f"[{row['effect_lo']:+.3g}, {row['effect_hi']:+.3g}] and may be 0; "
                "use more examples, or a behaviour that depends on the heads."
            )
            yield Finding(sentence=sentence, chart=chart_name(circuits, row["reference"]), found=False)
        elif row["effect"] < 0:
            text, chart = f"{what}: the effect is negative: {effect}.", chart_name(circuits, row["reference"])
            yield Finding(sentence=text, weight=0.2, chart=chart)


def _does(row: Mapping[Any, Any]) -> str:
    """What the heads of a circuit do, in everyday words."""
    work = f"{percent(row['threshold'])} of what all heads of {row['model']} do for {task_title(row['task'])}"
    return f"do {work}" if row["action"] == "keep" else f"carry {work}"


def following(row: Mapping[Any, Any]) -> str:
    """How far the circuit follows the model in each example and in each family, in words and numbers."""
    if (r2 := row["r2"]) != r2:
        return ""
    words = ("do not follow", "follow only weakly", "follow", "closely follow")[sum(r2 >= x for x in FOLLOWS)]
    numbers = [f"R² {minus(f'{r2:.2g}')} {_ends(row, 'r2')}"]
    if row["r2_lo"] < FOLLOWS[0] and row["r2_hi"] >= FOLLOWS[1]:
        verdict = "so few prompts cannot tell whether they follow the model prompt by prompt"
    else:
        than = ": a constant does better" if row["r2_hi"] < 0 else ""
        verdict = f"prompt by prompt they {words} the model{than}"
        numbers.append(f"{percent(row['within'])} of prompts within a fifth of the effect")
    if pd.notna(row.get("agreement")):
        numbers.append(f"the model's answer in {percent(row['agreement'])} {_ends(row, 'agreement')}")
    return f"; {verdict} ({', '.join(numbers)}){_lowest_family(row)}"


def _lowest_family(row: Mapping[Any, Any]) -> str:
    """What they recover of the family that they explain least; empty where no family could be read."""
    if pd.isna(row.get("lowest_family")):
        return ""
    share = f"{percent(row['lowest_family'])} {_ends(row, 'lowest_family')}"
    return f"; of the family of prompts that they explain least ({row['family']}) they recover {share}"


def _ends(row: Mapping[Any, Any], column: str) -> str:
    return f"[{minus(_short(row[f'{column}_lo']))}, {minus(_short(row[f'{column}_hi']))}]"


def _short(bound: float) -> str:
    return f"{bound:.2g}" if bound == bound else "–"


def _interval(row: Mapping[Any, Any], refits: pd.DataFrame) -> str:
    """The wider of two intervals: over examples for this ranking, and the range of this fit and its refits."""
    lo, hi, of = row["stays_lo"], row["stays_hi"], row["of"]
    same = _same(refits, row, "model", "task", "reference", "series")
    sizes = [row["stays"], *(same["stays"] if len(same) else ())]
    least, most = np.nanmin(sizes), float("nan") if np.isnan(sizes).any() else max(sizes)
    if _width(least, most, of) <= _width(lo, hi, of):
        return f"95 % CI {_number(lo)}–{_number(hi)}"
    return f"{_number(least)}–{_number(most)} over {len(sizes)} fits"


def _same(table: pd.DataFrame, row: Mapping[Any, Any], *columns: str) -> pd.DataFrame:
    """The rows of a table, which may be empty, that have the same values in these columns."""
    return rows_where(table, **{name: row[name] for name in columns})


def _width(lo: float, hi: float, of: int) -> float:
    return float(np.nan_to_num(hi, nan=of + 1) - np.nan_to_num(lo, nan=of + 1))


def _number(bound: float) -> str:
    """A bound of an interval in heads; the threshold may not be reached in some resamples."""
    return f"{bound:.0f}" if bound == bound else "never"


def _others(reached: pd.DataFrame, row: Mapping[Any, Any]) -> str:
    """What the orders take that were not chosen."""
    rest = _same(reached[~reached["chosen"]], row, "model", "task", "reference")
    each = [(other["series"], f"{other['stays']:.0f}") for other in rest.to_dict("records")]
    first = [f"; ranked by {series} it takes {heads}" for series, heads in each[:1]]
    return "".join([*first, *(f", by {series} {heads}" for series, heads in each[1:])])


def _ratios(ratios: pd.DataFrame, circuits: pd.DataFrame) -> Iterator[Finding]:
    """The circuit sizes of two models on each task, with their ratio."""
    sized = ratios[ratios["stays_ratio"].notna()] if len(ratios) else ratios
    chosen = sized[sized["chosen"]] if len(sized) else sized
    for (model, other, reference), rows in groups(chosen, "model", "other", "reference"):
        each = [
            f"{task_title(row['task'])} {model} {_heads(row['stays'])}, {other} {_heads(row['other_stays'])} (ratio "
            f"{row['stays_ratio']:.1f}, 95 % CI {row['stays_lo']:.1f}–{row['stays_hi']:.1f}{_same_orders(sized, row)})"
            for row in rows.to_dict("records")
        ]
        sentence = (
            f"Circuit size at {percent(rows['threshold'].iloc[0])} faithfulness under {ablation_name(reference)}, each "
            f"by its chosen order: {'; '.join(each)}."
        )
        # What the study asks first; the control separates the effect of the training.
        weight = 0.55 if rows["compared"].iloc[0] == "dense/sparse" else 0.2
        yield Finding(sentence=sentence, weight=weight, chart=chart_name(circuits, reference))


def _same_orders(ratios: pd.DataFrame, row: Mapping[Any, Any]) -> str:
    """The ratio when both models are ranked by the same method, for each method."""
    same = _same(ratios[~ratios["chosen"]], row, "pair", "task", "reference", "compared")
    each = [f"{other['series']} {other['stays_ratio']:.1f}" for other in same.to_dict("records")]
    return f"; both by {', by '.join(each)}" if each else ""


def _heads(k: Any) -> str:
    return "1 head" if round(k) == 1 else f"{k:.0f} heads"


def _overshoots(overshoot: pd.DataFrame, circuits: pd.DataFrame) -> Iterator[Finding]:
    """Circuits that do clearly better than the whole model, with the heads whose addition lifts them."""
    for (model, task, reference, series), steps in groups(overshoot, "model", "task", "reference", "series"):
        first = steps.iloc[0]
        largest = steps.sort_values("rise", ascending=False, kind="stable")[:NAMED]
        each = [f"{_names(str(row.heads))} (+{row.rise:.2f})" for row in largest.itertuples()]
        sentence = (
            f"{model} on {task_title(task)} under {ablation_name(reference)}: the first {first['peak_k']} heads by "
            f"{series} reach {first['peak']:.2f} of the effect, more than all heads together; the largest steps of "
            f"this rise are the additions of {joined(each)}."
        )
        yield Finding(sentence=sentence, weight=0.25, chart=chart_name(circuits, reference))


def _names(heads: str) -> str:
    names = heads.split()
    return ", ".join(names) if len(names) <= NAMED else f"{names[0]} to {names[-1]} ({len(names)} heads)"


# ---- charts --------------------------------------------------------------------------------------


def charts(tables: Tables) -> list[Chart]:
    """For each ablation type the curves of all orders, the chosen one thick; then the maps of the first heads of each
    task and ablation type."""
    curves, circuits = tables["curves"], tables["circuits"]
    best = circuits[circuits["chosen"]].to_dict("records")
    thick = curves[curves["chosen"] & curves["series"].eq(curves["order"])]
    of_every_order = [
        explained_chart(
            part,
            members=tables["members"],
            ratios=table_of(tables, "ratios"),
            threshold=float(circuits["threshold"].iloc[0]),
            orders=_orders(thick, tables["scores"]),
            chosen={(row["task"], row["model"], row["reference"]): str(row["series"]) for row in best},
            name=chart_name(circuits, str(reference)),
        )
        for reference, part in groups(curves, "reference")
    ]
    maps = groups(table_of(tables, "attention"), "task", "reference")
    return [
        *of_every_order,
        *(kept_heads(part, file_name("heads", t, of)) for (t, of), part in maps),
    ]


def _orders(curves: pd.DataFrame, scores: pd.DataFrame) -> dict[tuple[str, str, str], list[str]]:
    """The heads as the study ranked them, by task, model and ablation type; an unsigned score has one ranking."""
    orders: dict[tuple[str, str, str], list[str]] = {}
    by_score = dict(groups(scores, "task", "model", "method", "reference"))
    for (task, model, reference, series, by), _ in groups(
        curves, "task", "model", "reference", "series", "by"
    ):
        rows = by_score.get((task, model, str(series).removesuffix(f" {by}"), reference))
        if rows is not None:
            ranking = ranked(
                heads_of(rows), rows["score"].to_numpy(), "signed" if by == "unsigned" else str(by)
            )
            orders[task, model, reference] = [str(head) for head in ranking]
    return orders


section = SECTIONS.add("circuits", Section(charts=charts, findings=findings, docs="circuits"))
