"""The charts of the study `prompts`: answers under each condition, and a head's attention. From tables alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Bars, Chart, Line, Mark, Panel, Span, Text, axis_range, whole_ticks
from headwise.charts.section import SECTIONS, Section, Tables, table_of
from headwise.charts.style import file_name
from headwise.charts.words import span
from headwise.studies.prompts.condition_style import BARS, FULL, LINES, bar_label, colours, short
from headwise.studies.prompts.findings import LEVEL, answers, findings, headline, heads
from headwise.studies.prompts.map_charts import activation_panels, affine_panels, length_curves, moved_maps

LEAD = 24
"""Tokens drawn before the insertion where a long beginning (solved examples) would fill the panel."""
_CAPTION = (
    "The same problems in every condition; bars carry 95 % intervals, a star where the difference is significant. "
    "Cut-off answers and answers without a result count as wrong and are in the numbers below. "
)
_ATTENTION = (
    "For each token, the mean attention of all later ones to it; the first and last tokens are left out. Over the full "
    "sequence blue is Mless and red Mful."
)


def charts(tables: Tables) -> list[Chart]:
    """For each set of problems the answers with each head's attention, then what conditions do inside the model."""
    made = []
    for task in dict.fromkeys(tables["accuracy"]["task"]):
        own = {name: tables[name][tables[name]["task"] == task] for name in _USED if name in tables}
        made += _results(own, f"prompts-{file_name(task)}")
        for name, draw in (
            ("moved", moved_maps),
            ("affine", affine_panels),
            ("activations", activation_panels),
        ):
            if len(own.get(name, ())) and "comparisons" in own:  # one condition alone changes nothing
                made.append(replace(draw(own[name]), name=f"{name}-{file_name(task)}"))
        curves = table_of(own, "curves")
        if len(curves) and curves.groupby("series")["k"].nunique().max() > 1:
            made.append(replace(length_curves(curves), name=f"lengths-{file_name(task)}"))
    return made


_USED = ("accuracy", "comparisons", "profiles", "moved", "affine", "activations", "curves")


def _results(own: dict[str, pd.DataFrame], name: str) -> list[Chart]:
    """A chart for each head; on the page the bars, which are the same in all, stand in the first alone."""
    accuracy, comparisons, profiles = own["accuracy"], own.get("comparisons"), table_of(own, "profiles")
    if profiles.empty:
        return [replace(prompt_chart(accuracy, comparisons, None), name=name)]
    made: list[Chart] = []
    for (model, layer, head), part in profiles.groupby(["model", "layer", "head"], sort=False):
        chart = prompt_chart(accuracy, comparisons, part)
        chart = replace(chart, name=f"{name}-{file_name(model)}-L{layer}H{head}")
        made.append(
            replace(chart, page=chart.page_panels[1:], caption=_ATTENTION, table=None) if made else chart
        )
    return made


def prompt_chart(
    accuracy: pd.DataFrame, comparisons: pd.DataFrame | None, profiles: pd.DataFrame | None
) -> Chart:
    """Left, the share of right answers by model and condition with intervals; right, one head's profile.

    `accuracy` and `comparisons` hold the rows of one set of problems, `profiles` those of one head of one model.
    The heading says whether any difference is significant.
    """
    models, names = (list(dict.fromkeys(accuracy[column])) for column in ("model", "condition"))
    width = max(3.0, 1.2 + 0.34 * len(models) * (len(names) + 1))
    panels = [_bars(accuracy, comparisons, models, names)]
    title, caption = f"Answers under each condition, {accuracy['task'].iloc[0]}", _CAPTION
    if beside := profiles is not None and len(profiles) > 0:
        assert profiles is not None
        panels += [_aligned(profiles), _full(profiles)]
        first = profiles.iloc[0]
        title += f", and where L{first['layer']}H{first['head']} of {first['model']} attends"
        caption += _ATTENTION
    return Chart(
        title=title,
        heading=_folded(headline(comparisons), 13 * (width + (5.6 if beside else 0))),
        panels=panels,
        caption=caption,
        size=(width + (5.6 if beside else 0), 4.6),
        places=[[0, 1], [0, 2]] if beside else None,
        widths=(width, 5.6) if beside else None,
        columns=1,
        page_columns=3,
        least=330,
        height=300,
        table=accuracy,
    )


def _folded(sentence: str, most: float) -> str:
    """On several lines, broken at its semicolons, where it is longer than the figure is wide."""
    lines = [""]
    for part in sentence.split("; "):
        if lines[-1] and len(lines[-1]) + len(part) > most:
            lines.append("")
        lines[-1] += f"; {part}" if lines[-1] else part
    return ";\n".join(lines)


def _bars(
    accuracy: pd.DataFrame, comparisons: pd.DataFrame | None, models: list[str], names: list[str]
) -> Panel:
    palette = colours(names, BARS)
    step = 0.8 / len(names)
    marks: list[Mark] = []
    for place, name in enumerate(names):
        part = accuracy[accuracy["condition"] == name].set_index("model").reindex(models)
        where = np.arange(len(models)) + (place - (len(names) - 1) / 2) * step
        share, lo, hi = (100 * part[column].to_numpy(dtype=float) for column in ("accuracy", "lo", "hi"))
        told = zip(models, share, lo, hi, strict=True)
        hover = [f"{model}: {value:.3g} [{low:.3g}, {high:.3g}]" for model, value, low, high in told]
        about: dict[str, Any] = {"name": bar_label(name), "colours": palette[name], "thickness": 0.92 * step}
        marks.append(Bars(at=where, values=share, lo=lo, hi=hi, hover=hover, **about))
        marks += [
            Text(x=x, y=top, text="*", up="bottom", size=11)
            for x, model, top in zip(where, models, hi, strict=True)
            if _is_significant(comparisons, model, name)
        ]
    top = float(np.nanmax(100 * accuracy["hi"].fillna(accuracy["accuracy"])))
    return Panel(
        title=f"Results on {accuracy['task'].iloc[0]}{_lost(accuracy)}",
        marks=marks,
        x=Axis(
            limits=(-0.6, len(models) - 0.4), ticks=range(len(models)), names=[_wrapped(m) for m in models]
        ),
        y=Axis(
            label=f"Right answers, % (n = {span(accuracy['n'])}, 95 % interval)",
            limits=(0, min(max(1.28 * top, 10), 130)),  # room for the legend
            ticks=[
                tick for tick in range(0, 101, 20 if top > 40 else 10 if top > 15 else 5) if tick < 1.28 * top
            ],
        ),
        legend="upper center",
    )


def _lost(accuracy: pd.DataFrame) -> str:
    """Answers that were cut off or hold no result are said, not hidden in the bars."""
    cut, none = int(accuracy["truncated"].sum()), int(accuracy["unparsed"].sum())
    total = int((accuracy["n"] * accuracy["samples"]).sum())
    return f"\n{cut} of {total} answers cut off, {none} without a result"


def _is_significant(comparisons: pd.DataFrame | None, model: str, condition: str) -> bool:
    if comparisons is None:
        return False
    own = comparisons[(comparisons["model"] == model) & (comparisons["condition"] == condition)]
    return bool((own["p_holm"] < LEVEL).any())


def _wrapped(name: str, most: int = 18) -> str:
    """A long model name on several lines, cut at its own hyphens and slashes."""
    lines, line = [], ""
    for part in name.replace("/", "/\0").replace("-", "-\0").split("\0"):
        if line and len(line + part) > most:
            lines.append(line)
            line = ""
        line += part
    return "\n".join([*lines, line])


def _aligned(profiles: pd.DataFrame) -> Panel:
    """Original tokens only, so that all conditions share the axis."""
    first = profiles.iloc[0]
    head = f"L{first['layer']}H{first['head']}"
    prompts = "one prompt" if first["n"] == 1 else f"mean of {first['n']} prompts"
    title = f"Average attention on {head},{chr(10) if len(first['model']) > 24 else ' '}{first['model']}, {prompts}"
    names = list(dict.fromkeys(profiles["condition"]))
    palette = colours(names, LINES)
    lines = [_profile(profiles, name, "aligned", palette[name], filled=True) for name in names]
    return _tokens(profiles, lines, "Original tokens", title)


def _full(profiles: pd.DataFrame) -> Panel:
    """The whole sequence of the conditions that insert something, with the inserted span shaded."""
    inserting = profiles.groupby("condition", sort=False)["inserted"].any()
    names = [name for name in dict.fromkeys(profiles["condition"]) if inserting[name]] or list(
        inserting.index
    )
    palette = colours(names, FULL)
    shaded: set[tuple[int, int]] = set()
    for name in names:
        part = profiles[profiles["condition"] == name].sort_values("position")
        part = part[part["position"] >= first_shown(profiles)]
        places = part["position"].to_numpy()
        shaded |= {
            (int(places[a]), int(places[b - 1])) for a, b in spans(part["inserted"].to_numpy(dtype=bool))
        }
    label = "shaded: inserted" if shaded else "nothing is inserted"
    lines = [_profile(profiles, name, "position", palette[name]) for name in names]
    shades = [Span(low=first - 0.5, high=last + 0.5) for first, last in sorted(shaded)]
    return _tokens(profiles, [*shades, *lines], "Full sequence", "", f" ({label})")


def _profile(profiles: pd.DataFrame, name: str, x: str, colour: str, filled: bool = False) -> Line:
    part = profiles[(profiles["condition"] == name) & profiles[x].notna()].sort_values(x)
    part = part[part[x] >= first_shown(profiles)]
    about: dict[str, Any] = {
        "name": short(name),
        "colour": colour,
        "words": part["token"].astype(str).tolist(),
    }
    xs, ys = (part[column].to_numpy(dtype=float) for column in (x, "attention"))
    return Line(x=xs, y=ys, **about, width=0.9, filled=filled, band=0.12)


def _tokens(profiles: pd.DataFrame, marks: list[Any], label: str, title: str, note: str = "") -> Panel:
    begin, first = first_shown(profiles), profiles.iloc[0]
    lines = [mark for mark in marks if isinstance(mark, Line)]
    heights = axis_range(*(line.y for line in lines), room=0)
    _, last = axis_range(*(line.x for line in lines), room=0) or (0.0, 1.0)
    room = 0.01 * max(1.0, last - begin)
    return Panel(
        title=title,
        marks=marks,
        x=Axis(
            label=f"{label}{f' from {begin} on' if begin else ''}{note}",
            limits=(begin - room, last + room),
            ticks=[begin + tick for tick in whole_ticks(int(last - begin) + 1, 10)],
        ),
        y=Axis(label="Attention", limits=(0, 1.24 * heights[1]) if heights else None),  # room for the legend
        legend="upper left",
        model=str(first["model"]),
        attention=f"L{first['layer']}H{first['head']}",
    )


def first_shown(profiles: pd.DataFrame) -> int:
    """The first token drawn: where much stands before the insertion, only the end of it is shown."""
    places = profiles.loc[profiles["inserted"], "position"]
    return max(int(places.min()) - LEAD, 0) if len(places) and places.min() > 4 * LEAD else 0


def spans(inserted: np.ndarray) -> list[tuple[int, int]]:
    """[from, to) of each run of inserted tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inserted, [False]]).astype(int)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


section = Section(charts=charts, findings=findings, heads=heads, texts=answers)
SECTIONS.add("prompts", section)
