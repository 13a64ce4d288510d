"""A circuit of edges as a layered graph, and the explained effect against the number of edges kept.

In the graph layers go upwards at even steps: the embeddings at the bottom, the logits at the top; layers without a
component are left out. Each component stands once; an edge is a line from the sender to the receiver, its colour says
through which slot it is read, its width how large it is, and dashes that it hinders. Lines are bent so that the edges
of one pair lie apart and none runs behind another component. Hover texts stand along the edges and at the components.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import GREY, INK, PAPER, Axis, Chart, Label, Line, Mark, Panel, curve, key, points
from headwise.charts.explained_effect import COLOURS, ratio_marks
from headwise.charts.words import minus, task_title, under
from headwise.names import component_numbers
from headwise.tables.frames import by_size, columns_of, too_few

_LOOKS = {
    "Q": ("read as query", "#1f77b4"),
    "K": ("read as key", "#d95f02"),
    "V": ("read as value", "#2ca02c"),
    "MLP": ("read by an MLP", "#8c6bb1"),
    "logits": ("to logits", GREY),
}
SLOT_COLOURS = {slot: colour for slot, (_, colour) in _LOOKS.items()}
MOST_GREY = 12
"""Edges in a graph in which none is significant."""
MOST = 60
"""Edges in one graph; more are not readable."""
_WIDEST = 4.0
_BENDS = {"Q": 0.06, "V": -0.06}
"""How far the edges of a slot are bent to one side, as a share of their length."""
_FURTHER = (0.0, 0.05, -0.05, 0.1, -0.1, 0.15, -0.15, 0.2, -0.2, 0.3, -0.3)
"""Further bends, tried in turn until the edge keeps this distance from all other components."""
_DISTANCE = 0.24
_POINTS = 25


def wiring_chart(
    edges: pd.DataFrame, *, most: int = MOST, level: float = 0.05, name: str = "", title: str = ""
) -> Chart:
    """The graph of the significant edges (q < `level`), at most the `most` largest; else the 12 largest in grey.

    edges: rows of one edge table (`Edges.table()`), with
    `sender`, `receiver`, `slot`, `heads`, `score`, `lo`, `hi`, `q`.
    """
    found = edges[edges["q"] < level] if edges["q"].notna().any() else edges
    shown = by_size(edges)[: min(most, MOST_GREY)] if found.empty else by_size(found)[:most]
    first = edges.iloc[0]
    heading = (
        title
        or f"Edges of {first['model']} on {task_title(str(first['task']))} ({first['method']}){under(edges)}"
    )
    counted = f"{len(shown)} of {len(edges)} edges, q < {level:g}"
    if len(found) > most:
        counted = f"The {most} largest of {len(found)} edges with q < {level:g}; {len(edges)} were scored"
    if found.empty:
        counted = "\n".join(wrap(_none_found(edges, len(shown), level), 100))
    return Chart(
        name=name,
        title=heading,
        panels=[_graph(shown, grey=found.empty)],
        size=(7.2, 5.6),
        columns=1,
        legend="right",
        height=560,
        min_panel_width=520,
        note=counted,
        caption="Layers go upwards. The colour of an edge says what reads it (query, key, value, MLP, logits), its "
        "width how large its effect is; dashed edges hinder. "
        "K and V of grouped-query attention belong to the group: such an edge ends at each head that shares them.",
        table=shown[["sender", "receiver", "slot", "span", "score", "lo", "hi", "n", "q"]],
    )


def _none_found(edges: pd.DataFrame, shown: int, level: float) -> str:
    """Why all edges are grey."""
    advice = too_few(edges, "edge") or "use more examples, or fewer senders and receivers"
    which = f"the {shown} largest" if shown < len(edges) else "all of them"
    return f"None of {len(edges)} edges is significant (q < {level:g}); {which} in grey: {advice}"


def _graph(edges: pd.DataFrame, *, grey: bool) -> Panel:
    places = _places(edges)
    looks = dict.fromkeys(_LOOKS, ("not significant", GREY)) if grey else _LOOKS
    marks = _legend(edges, looks)
    largest = float(edges["score"].abs().max()) or 1.0
    for row in edges.to_dict("records"):
        for end in _ends(row):
            x, y = _path(places, row["sender"], end, _BENDS.get(row["slot"], 0.0))
            effect = minus(f"{row['score']:+.3g} [{row['lo']:.3g}, {row['hi']:.3g}], q = {row['q']:.2g}")
            span = f" at {row['span']}" if row["span"] else ""
            marks.append(
                Line(
                    x=x,
                    y=y,
                    name=looks[row["slot"]][0],
                    colour=looks[row["slot"]][1],
                    width=max(0.4, _WIDEST * abs(row["score"]) / largest),
                    dash="solid" if row["score"] > 0 else "dash",
                    hover=[f"{row['sender']} → {row['receiver']}{span}: {effect}"] * len(x),
                )
            )
    names = list(places)
    across, up = zip(*places.values(), strict=True)
    marks.append(points(across, up, size=17, colour=PAPER, edge=INK, hover=names, heads=names))
    marks += [Label(x=place[0], y=place[1], text=name, size=5.5) for name, place in places.items()]
    layers = {places[name][1]: str(_numbers(name)[0]) for name in names if _is_head(name)}
    width = max(abs(value) for value in across) + 0.8
    return Panel(
        marks=marks,
        x=Axis(limits=(-width, width), ticks=()),
        y=Axis(
            label="Layer",
            limits=(min(up) - 0.8, max(up) + 0.8),
            ticks=list(layers),
            names=list(layers.values()),
        ),
        model=str(edges["model"].iloc[0]),
    )


def _path(
    places: dict[str, tuple[float, float]], sender: str, end: str, bend: float
) -> tuple[list[float], list[float]]:
    """The line of an edge, bent by so much or further until it does not run behind another component."""
    start, way = np.array(places[sender]), np.subtract(places[end], places[sender])
    others = np.array([place for name, place in places.items() if name not in (sender, end)]).reshape(-1, 2)
    along = np.linspace(0, 1, _POINTS)[:, None]
    sideways = 4 * along * (1 - along) * np.array([-way[1], way[0]])
    paths = [start + along * way + (bend + further) * sideways for further in _FURTHER]
    distances = [np.linalg.norm(path[:, None] - others, axis=2).min(initial=np.inf) for path in paths]
    free = next((path for path, far in zip(paths, distances, strict=True) if far >= _DISTANCE), None)
    x, y = (paths[int(np.argmax(distances))] if free is None else free).T
    return x.tolist(), y.tolist()


def _legend(edges: pd.DataFrame, looks: Mapping[str, tuple[str, str]]) -> list[Mark]:
    """One entry for each way in which edges are read, and one for dashes; they draw nothing."""
    used = dict(look for slot, look in looks.items() if (edges["slot"] == slot).any())
    entries: list[Mark] = [key(used[name], name=name, width=2) for name in used]
    if (edges["score"] < 0).any():
        entries.append(key(name="hinders", dash="dash", width=1.2))
    return entries


def _ends(row: dict[Any, Any]) -> list[str]:
    """The components at which an edge is drawn to end: of a shared K or V each head of the group."""
    return str(row["heads"]).split() if row["slot"] in ("Q", "K", "V") else [str(row["receiver"])]


def _places(edges: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Where each component stands: levels at even steps, the MLPs of a layer above its heads; x spreads a level."""
    names = set(edges["sender"]) | {end for row in edges.to_dict("records") for end in _ends(row)}
    places: dict[str, tuple[float, float]] = {}
    for step, level in enumerate(sorted({_level(name) for name in names})):
        here = sorted((name for name in names if _level(name) == level), key=_numbers)
        # Neighbouring levels are shifted against one another, so that lines do not hide behind components.
        shift = 0.25 * (step % 3 - 1)
        for number, name in enumerate(here):
            places[name] = (number - (len(here) - 1) / 2 + shift, float(step))
    return places


def _level(name: str) -> float:
    if name in ("logits", "input"):
        return np.inf if name == "logits" else -1.0
    return _numbers(name)[0] + (0.0 if _is_head(name) else 0.5)


def _is_head(name: str) -> bool:
    return _numbers(name)[1] >= 0


def _numbers(name: str) -> tuple[int, int]:
    return component_numbers(name) or (-1, -1)


def edge_curve_chart(
    curves: pd.DataFrame,
    *,
    members: pd.DataFrame | None = None,
    ratios: pd.DataFrame | None = None,
    threshold: float = 0.9,
    name: str = "",
) -> Chart:
    """One panel per task: explained effect against the number of edges kept, on a log axis.

    members: the role (`dense`, `sparse`) of each model. ratios: edges that the dense model needs over those that the
    sparse one needs, drawn where the curves reach the threshold.
    """
    roles = {} if members is None else dict(zip(members["model"], members["role"], strict=True))
    panels = []
    for task, rows in curves.groupby("task", sort=False):
        marks: list[Mark] = []
        for model, part in rows.groupby("model", sort=False):
            kept = part[part["k"] > 0].sort_values("k")
            colour = COLOURS[0].get(roles.get(model, "dense"), GREY)
            examples = columns_of(part, "model", "task", "series")
            marks.append(curve(kept, name=str(model), colour=colour, width=1.6, examples=examples))
        if ratios is not None and len(ratios):
            marks += _ratio(ratios[ratios["task"] == task], threshold)
        values = rows[["value", "lo", "hi"]].to_numpy(dtype=float)
        values = values[np.isfinite(values)]
        y = (min(-0.06, max(values.min(initial=0), -0.5)), min(max(1.08, values.max(initial=1)), 2.0))
        panels.append(
            Panel(
                title=task_title(str(task)),
                marks=marks,
                x=Axis(label="Number of Edges Kept", scale="log", limits=(1, max(2, int(rows["k"].max())))),
                y=Axis(label="Explained Effect", limits=y, ticks=(0, 0.5, 1)),
                legend="upper left",
            )
        )
    columns = min(len(panels), 4)
    series = str(curves["series"].iloc[0])
    return Chart(
        name=name,
        title=f"Explained effect (faithfulness) of the top k edges, ranked by {series}{under(curves)}",
        heading="",
        panels=panels,
        size=(4.6, 3.2) if len(panels) == 1 else (2.9 * columns + 0.4, 2.7 * -(-len(panels) // 4) + 0.2),
        page_columns=2,
        caption="A kept edge carries its sender's output, a dropped one the reference; 0 is none of the scored edges "
        "kept, 1 the full model. Bands are 95 % CIs over examples.",
        table=curves[["model", "task", "series", "k", "value", "lo", "hi", "n"]],
    )


def _ratio(ratios: pd.DataFrame, threshold: float) -> list[Mark]:
    marks: list[Mark] = []
    for row in ratios.to_dict("records"):
        ends = [row["k"], row["other_k"]]
        if np.isfinite(ends).all() and min(ends) > 0:
            marks += ratio_marks(ends, threshold, (row["ratio"], row["lo"], row["hi"]))
    return marks
