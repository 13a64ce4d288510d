"""How few heads explain the behaviour, and does sparse attention need fewer?

The size of a circuit is the number of heads from which on the explained effect stays at the threshold. Runs of earlier
versions have no choice of an order: there every order is told on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.section import Finding, Tables, groups, table_of
from headwise.charts.style import file_name
from headwise.charts.words import joined, minus, percent, task_title
from headwise.names import ablation_name

FOLLOWS = (0.0, 0.5, 0.8)
"""R² from which on a circuit follows the model weakly, follows it, and follows it closely."""
NAMED = 3
"""Most steps of an overshoot that a sentence names, and most heads of a step."""


def findings(tables: Tables) -> list[Finding]:
    return [
        *sizes(tables),
        *_ratios(table_of(tables, "ratios")),
        *_overshoots(table_of(tables, "overshoot")),
    ]


def _size(table: pd.DataFrame) -> str:
    """The column with the size of a circuit; some early runs know only where the threshold is first reached."""
    return "stays" if "stays" in table else "k"


def sizes(tables: Tables) -> Iterator[Finding]:
    """The circuit size of each model, task and ablation type by the chosen order, how far the circuit follows single
    examples, and what the other orders take."""
    circuits = tables["circuits"]
    size, first, several = _size(circuits), True, circuits["model"].nunique() > 1
    known = circuits[circuits[size].notna()]
    for row in (known[known["chosen"]] if "chosen" in known else known).to_dict("records"):
        mean = f"{percent(row['threshold'])} of the mean {row['metric']} of {task_title(row['task'])}"
        what = f"(MLPs intact) recover {mean}"
        if row["action"] == "mask":
            what = f"take away {mean} when they are masked"
        sentence = (
            f"{row['model']}: " * several
            + f"{row[size]:.0f} of {row['of']} heads {what}{_under(row)} "
            + f"({_interval(row, table_of(tables, 'refits'), size)}, n = {row['n']}), ranked by {row['series']}"
            + following(row)
            + _others(known, row, size)
            + "."
        )
        plain = (
            f"On average, {row[size]:.0f} of {row['of']} heads {_does(row)}{_under(row)} ({row['n']} examples; 95 % "
            f"interval {_number(row[f'{size}_lo'])} to {_number(row[f'{size}_hi'])} heads){following(row)}."
        )
        yield Finding(sentence=sentence, weight=0.6 if first else 0.3, chart=_chart(row), plain=plain)
        first = False


def _does(row: Mapping[Any, Any]) -> str:
    """What the heads of a circuit do, in everyday words."""
    work = f"{percent(row['threshold'])} of what all heads of {row['model']} do for {task_title(row['task'])}"
    return f"do {work}" if row["action"] == "keep" else f"carry {work}"


def following(row: Mapping[Any, Any]) -> str:
    """How far the circuit follows the model from example to example, in words and numbers."""
    r2 = row.get("r2", float("nan"))
    if r2 != r2:
        return ""
    words = ("do not follow", "follow only weakly", "follow", "closely follow")[sum(r2 >= x for x in FOLLOWS)]
    than = ": a constant does better" if row["r2_hi"] < 0 else ""
    return (
        f"; prompt by prompt they {words} the model{than} (R² {minus(f'{r2:.2g}')} "
        f"[{minus(_short(row['r2_lo']))}, {minus(_short(row['r2_hi']))}], {percent(row['within'])} of prompts within a "
        "fifth of the effect)"
    )


def _short(bound: float) -> str:
    return f"{bound:.2g}" if bound == bound else "–"


def _interval(row: Mapping[Any, Any], refits: pd.DataFrame, size: str) -> str:
    """The wider of two intervals: over examples for this ranking, and the range of this fit and its refits."""
    lo, hi = row[f"{size}_lo"], row[f"{size}_hi"]
    examples = f"95 % CI {_number(lo)}–{_number(hi)}"
    if refits.empty:
        return examples
    same = refits
    for name in ("model", "task", "reference", "series"):
        same = same[same[name] == row[name]]
    if same.empty:
        return examples
    found = [row[size], *same[size]]
    least, most = np.nanmin(found), float("nan") if np.isnan(found).any() else max(found)
    if _width(least, most, row["of"]) <= _width(lo, hi, row["of"]):
        return examples
    return f"{_number(least)}–{_number(most)} over {len(found)} fits"


def _width(lo: float, hi: float, of: int) -> float:
    return float(np.nan_to_num(hi, nan=of + 1) - np.nan_to_num(lo, nan=of + 1))


def _number(bound: float) -> str:
    """A bound of an interval in heads; the threshold may not be reached in some resamples."""
    return f"{bound:.0f}" if bound == bound else "never"


def _under(row: Mapping[Any, Any]) -> str:
    """The ablation type; runs of earlier versions do not name it in every table."""
    return f" under {ablation_name(row['reference'])}" if row.get("reference") else ""


def _others(known: pd.DataFrame, row: Mapping[Any, Any], size: str) -> str:
    """What the orders take that were not chosen."""
    if "chosen" not in known:
        return ""
    same = known[(known["model"] == row["model"]) & (known["task"] == row["task"])]
    rest = same[(same["reference"] == row["reference"]) & ~same["chosen"]]
    each = [(other["series"], f"{other[size]:.0f}") for other in rest.to_dict("records")]
    told = [f"ranked by {series} it takes {heads}" for series, heads in each[:1]]
    return "".join(f"; {sentence}" for sentence in told) + "".join(f", by {one} {k}" for one, k in each[1:])


def _chart(row: Mapping[Any, Any]) -> str:
    return "circuits" if "chosen" in row else f"circuits-{file_name(row['series'])}"


def _ratios(ratios: pd.DataFrame) -> Iterator[Finding]:
    """The circuit sizes of two models on each task, with their ratio."""
    if ratios.empty:
        return
    ratios = ratios if "reference" in ratios else ratios.assign(reference="")
    names = ("k", "other_k", "ratio", "lo", "hi")
    if "stays_ratio" in ratios:
        names = ("stays", "other_stays", "stays_ratio", "stays_lo", "stays_hi")
    k, other_k, ratio, lo, hi = names
    best = ratios[ratios["chosen"]] if "chosen" in ratios else ratios
    columns = ("model", "other", "reference") + (() if "chosen" in ratios else ("series",))
    for (model, other, reference, *series), rows in groups(best, *columns):
        each = [
            f"{task_title(r['task'])} {model} {_heads(r[k])}, {other} {_heads(r[other_k])} (ratio {r[ratio]:.1f}, "
            f"95 % CI {r[lo]:.1f}–{r[hi]:.1f}{_same_orders(ratios, r, ratio)})"
            for r in rows[rows[ratio].notna()].to_dict("records")
        ]
        ranked = f", ranked by {series[0]}" if series else ", each by its chosen order"
        start = f"Circuit size at {percent(rows['threshold'].iloc[0])} faithfulness{_under({'reference': reference})}"
        if each:
            sentence = f"{start}{ranked}: {'; '.join(each)}."
            # What the study asks first; the control separates the effect of the training.
            weight = 0.55 if rows["compared"].iloc[0] == "dense/sparse" else 0.2
            yield Finding(sentence=sentence, weight=weight, chart=_chart(rows.iloc[0].to_dict()))


def _same_orders(ratios: pd.DataFrame, row: Mapping[Any, Any], ratio: str) -> str:
    """The ratio when both models are ranked by the same method, for each method."""
    if "chosen" not in ratios:
        return ""
    keys = ("pair", "task", "reference", "compared")
    same = ratios[~ratios["chosen"] & ratios[ratio].notna()]
    for key in keys:
        same = same[same[key] == row[key]]
    each = [f"{other['series']} {other[ratio]:.1f}" for other in same.to_dict("records")]
    return f"; both by {', by '.join(each)}" if each else ""


def _heads(k: Any) -> str:
    return "1 head" if round(k) == 1 else f"{k:.0f} heads"


def _overshoots(overshoot: pd.DataFrame) -> Iterator[Finding]:
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
        yield Finding(sentence=sentence, weight=0.25, chart="circuits")


def _names(heads: str) -> str:
    names = heads.split()
    return ", ".join(names) if len(names) <= NAMED else f"{names[0]} to {names[-1]} ({len(names)} heads)"
