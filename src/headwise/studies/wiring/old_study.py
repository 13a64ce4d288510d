"""The study `wiring`: which heads does a head read from, through Q, K or V?

One half of the examples finds the top heads and ranks the edges among them; the other half tests the edges and
measures the curve. With `into` the receivers are given, and no heads are scored. Tables: `scores` and `examples` of
the heads; `edges` (the edges among the top heads, tested on the second half; `order_score` is their score on the
first), `gradient` (the largest edges of the whole model by a gradient method), `curves` and `circuits` (explained
effect against edges kept), `ratios` and `members` of two models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.cards.measured import STEPS, measure_heads
from headwise.charts.section import Tables, table_of
from headwise.errors import HeadwiseError
from headwise.heads import Edges, Head, head_list, heads_of, ranked
from headwise.heads.edge import edge_list
from headwise.runs import Cell, CellResult
from headwise.scores.edges import check_edges
from headwise.scores.edges import edges as score_edges
from headwise.scores.edges.registry import edge_methods
from headwise.scores.registry import versions
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.halves import halves
from headwise.studies.tables import fingerprint, input_table, score_result
from headwise.studies.wiring.charts import section
from headwise.studies.wiring.settings import WiringSettings
from headwise.sweeps.edge_curve import EdgeCurve, edge_curve
from headwise.sweeps.ratio import ratio_row
from headwise.tasks import Task

KEPT = 300
"""Edges of the whole model in the table `gradient`: the largest."""
ROLES = ("dense", "sparse")


def stages(context: Context[WiringSettings]) -> Iterator[Sequence[Cell]]:
    s = context.settings
    pairs = [(model, task) for model in s.models for task in s.tasks]
    gradient = [] if s.into or s.gradient is None else [s.gradient]
    for model, task in pairs:
        metric = context.once(halves, model, task).about["metric"]
        check_edges(context.model(model), [s.method, *gradient], metric, s.into or "logits")
    if not s.into:
        yield [_cell(context, "order", *pair, s.order) for pair in pairs]
    cells = [_edge_cell(context, *pair) for pair in pairs]
    cells += [_cell(context, "gradient", *pair, by) for by in gradient for pair in pairs]
    yield cells
    with_curve = s.curve and not s.into
    later = [_later_cell(context, "curve", *pair) for pair in pairs] if with_curve else []
    if s.cards:
        later += [_later_cell(context, "card", *pair) for pair in pairs]
    yield later
    if with_curve and len(s.models) == 2:
        yield [_later_cell(context, "pair", s.models[0], task) for task in s.tasks]


def _cell(context: Context[WiringSettings], kind: str, model: str, task: str, part: str, **more: Any) -> Cell:
    of = context.once(halves, model, task)
    about = of.about | {"reference": context.settings.reference}
    prints = {"model": context.model(model).fingerprint, "task": of.whole.fingerprint}
    if kind == "order":
        prints |= versions(part, of.find)
    if kind in ("edges", "gradient") and (version := edge_methods()[part].version) > 1:
        prints["method version"] = str(version)
    return context.cell(kind, model, task, part, about | more, prints)


# ---- heads and their edges -------------------------------------------------------------------------------


def rank(context: Context[WiringSettings], cell: Cell) -> CellResult:
    """Scores of all heads on the first half."""
    s, of = context.settings, context.once(halves, cell.model, cell.task)
    how = {"metric": s.metric, "reference": cell.settings["reference"]}
    scores = context.scores(cell.label, context.model(cell.model), of.find, cell.part, **how)
    scores = replace(scores, model=context.display_name(cell.model), task=cell.task)
    about = {"model": scores.model, "task": scores.task}
    inputs = input_table(of.find, about, "scores", of.find_numbers)
    return score_result(scores, s.seed, of.find_numbers, inputs)


def _edge_cell(context: Context[WiringSettings], model: str, task: str) -> Cell:
    s = context.settings
    if s.into:
        return _cell(context, "edges", model, task, s.method, into=list(s.into))
    scores = context.table("scores", kind="order", model=model, task=task)
    top = [str(head) for head in ranked(heads_of(scores), scores["score"].to_numpy(), "absolute")[: s.heads]]
    return _cell(context, "edges", model, task, s.method, heads=top, into=[])


def measure_edges(context: Context[WiringSettings], cell: Cell) -> CellResult:
    """The edges into some heads, or among the top heads, on all examples: the first half ranks them, the second tests
    them."""
    s, of, model = context.settings, context.once(halves, cell.model, cell.task), context.model(cell.model)
    top, into = head_list(cell.settings.get("heads", ())), cell.settings["into"]
    how: dict[str, Any] = {"metric": s.metric, "reference": cell.settings["reference"], "seed": s.seed}
    with context.progress(cell.label, len(of.whole)) as advance:
        found = score_edges(
            model,
            of.whole,
            s.method,
            into=into or [*top, "logits"],
            out_of=None if into else top,
            progress=False,
            batch_tokens=s.batch_tokens,
            **how,
        )
        advance(len(of.whole))
    found = replace(found, model=context.display_name(cell.model), task=cell.task)
    first, second = _part(found, of.find_numbers, of.find), _part(found, of.test_numbers, of.test)
    table = second.table().assign(order_score=first.values)
    values = found.examples.T.ravel()
    rows = pd.DataFrame(
        {
            "edge": np.repeat([str(edge) for edge in found.edges], found.n),
            "example": np.tile(np.arange(found.n, dtype=np.int32), len(found)),
            "value": values,
        }
    )
    about = {"model": found.model, "task": found.task}
    return CellResult({"edges": table, "edge_examples": rows.assign(**about)}, dict(found.details))


def _part(found: Edges, numbers: np.ndarray, half: Task) -> Edges:
    return replace(found, examples=found.examples[numbers], groups=half.shared_groups(), tests={})


def measure_gradient(context: Context[WiringSettings], cell: Cell) -> CellResult:
    """The largest edges of the whole model by a gradient method, on the first half."""
    s, of = context.settings, context.once(halves, cell.model, cell.task)
    found = score_edges(
        context.model(cell.model),
        of.find,
        cell.part,
        components=("heads", "mlps", "input"),
        metric=s.metric,
        reference=cell.settings["reference"],
        seed=s.seed,
        progress=False,
        batch_tokens=s.batch_tokens,
    )
    found = replace(found, model=context.display_name(cell.model), task=cell.task)
    return CellResult({"gradient": found.top(KEPT).table().assign(of=len(found))}, dict(found.details))


# ---- curves and cards ------------------------------------------------------------------------------------


def _edges_of(context: Context[WiringSettings], model: str, task: str) -> pd.DataFrame:
    return context.table("edges", kind="edges", model=model, task=task)


def _later_cell(context: Context[WiringSettings], kind: str, model: str, task: str) -> Cell:
    s, models = context.settings, context.settings.models if kind == "pair" else (model,)
    tables = [context.once(_edges_of, name, task) for name in models]
    if kind == "pair":
        tables += [context.once(_curve_of, name, task) for name in models]
        context.once(_circuits_of, task)  # workers have no store to read it from
    prints = fingerprint(*(table.select_dtypes("number").to_numpy().astype(float) for table in tables))
    cell = _cell(context, kind, model, task, kind, points=s.points, threshold=s.threshold, cards=s.cards)
    return replace(cell, fingerprints={**cell.fingerprints, "edges": prints})


def _ranking(rows: pd.DataFrame) -> Edges:
    """The edges of a table, with the score that ranks them: enough for a curve."""
    first = rows.iloc[0]
    names = [
        f"{sender}->{receiver}" + (f" @ {span}" if span else "")
        for sender, receiver, span in zip(rows["sender"], rows["receiver"], rows["span"], strict=True)
    ]
    model, task, method, metric = (str(first[name]) for name in ("model", "task", "method", "metric"))
    return Edges(edge_list(names), rows["order_score"].to_numpy()[None], model, task, method, metric)


def measure_curve(context: Context[WiringSettings], cell: Cell) -> CellResult:
    """Explained effect against edges kept, on the second half."""
    s, of = context.settings, context.once(halves, cell.model, cell.task)
    ranking = _ranking(context.once(_edges_of, cell.model, cell.task))
    try:
        with context.progress(cell.label, len(of.test) * s.points) as advance:
            curve = edge_curve(
                context.model(cell.model),
                of.test,
                ranking,
                points=s.points,
                threshold=s.threshold,
                metric=s.metric,
                reference=cell.settings["reference"],
                progress=advance,
                batch_tokens=s.batch_tokens,
            )
    except HeadwiseError as error:
        return CellResult(notes={"said": f"no curve: {error}"})
    curve = replace(curve, model=context.display_name(cell.model), task=cell.task)
    if np.isnan(curve.explained().value).all():
        effect = (
            f"{curve.metric} with all of the edges minus with none is {curve.effect.mean():+.3g} and may be 0"
        )
        return CellResult(
            {"curve_examples": _values(curve)}, {"said": f"the explained effect is undefined: {effect}"}
        )
    return CellResult(
        {"curves": curve.table(), "circuits": _summary(curve, s), "curve_examples": _values(curve)}
    )


def _summary(curve: EdgeCurve, s: WiringSettings) -> pd.DataFrame:
    needed = curve.k_at(s.threshold, s.seed)
    about = {"model": curve.model, "task": curve.task, "series": curve.series, "metric": curve.metric}
    sizes = {
        "k": needed.k,
        "k_lo": needed.lo,
        "k_hi": needed.hi,
        "stays": needed.stays,
        "stays_lo": needed.stays_lo,
        "stays_hi": needed.stays_hi,
        "of": int(curve.k[-1]),
    }
    lo, hi = map(float, stats.mean_interval(curve.effect, groups=curve.groups))
    effect = {"effect": float(curve.effect.mean()), "effect_lo": lo, "effect_hi": hi}
    effect |= {"threshold": s.threshold, "n": curve.values.shape[1]}
    return pd.DataFrame([{**about, **sizes, **effect, "defined": bool(np.isfinite(needed.k))}])


def _values(curve: EdgeCurve) -> pd.DataFrame:
    count = curve.values.shape[1]
    columns = {"k": np.repeat(curve.k, count), "example": np.tile(np.arange(count), len(curve.k))}
    return pd.DataFrame({"model": curve.model, "task": curve.task, **columns, "value": curve.values.ravel()})


def make_cards(context: Context[WiringSettings], cell: Cell) -> CellResult:
    """The tables of the head pages of the heads with the largest significant edges."""
    s, of = context.settings, context.once(halves, cell.model, cell.task)
    rows = context.once(_edges_of, cell.model, cell.task)
    rows = rows[rows["q"] < 0.05].sort_values("score", key=np.abs, ascending=False)
    names = [name for row in rows.to_dict("records") for name in (row["sender"], *str(row["heads"]).split())]
    heads = [Head.parse(name) for name in dict.fromkeys(names) if name.startswith("L")][: s.cards]
    if not heads:
        return CellResult(notes={"said": "no head pages, because no edge is significant"})
    how: dict[str, Any] = {"metric": s.metric, "reference": cell.settings["reference"], "seed": s.seed}
    try:
        with context.progress(f"cards of {len(heads)} heads on {cell.task}", STEPS) as advance:
            measured = measure_heads(context.model(cell.model), of.whole, heads, advance=advance, **how)
    except HeadwiseError as error:
        return CellResult(notes={"said": f"no head pages: {error}"})
    name = {"model": context.display_name(cell.model), "task": cell.task}
    return CellResult({key: table.assign(**name) for key, table in measured.tables.items()})


# ---- two models ------------------------------------------------------------------------------------------


def _curve_of(context: Context[WiringSettings], model: str, task: str) -> pd.DataFrame:
    return context.table("curve_examples", kind="curve", model=model, task=task)


def _circuits_of(context: Context[WiringSettings], task: str) -> pd.DataFrame:
    return context.table("circuits", kind="curve", task=task)


def compare(context: Context[WiringSettings], cell: Cell) -> CellResult:
    """How many times more edges the first model needs than the second, with its interval over examples."""
    s, names = context.settings, [context.display_name(model) for model in context.settings.models]
    members = pd.DataFrame({"task": cell.task, "role": ROLES, "model": names})
    circuits = context.once(_circuits_of, cell.task)
    if len(circuits) < len(s.models):  # a model has no curve, or no effect to explain
        return CellResult({"members": members})
    curves = [context.once(_curve_of, model, cell.task) for model in s.models]
    groups, other_groups = (context.once(halves, model, cell.task).test.shared_groups() for model in s.models)
    how: dict[str, Any] = {"defined": True, "paired": False, "groups": groups, "other_groups": other_groups}
    found = ratio_row(*curves, threshold=s.threshold, seed=s.seed, **how)
    row = {"task": cell.task, "model": names[0], "other": names[1]}
    row |= {name: found[name] for name in ("k", "other_k", "ratio", "lo", "hi")} | {"threshold": s.threshold}
    return CellResult({"members": members, "ratios": pd.DataFrame([row])})


def notices(context: Context[WiringSettings], tables: Tables) -> Iterator[str]:
    for cell in context.cells:
        for kind in ("said", "note"):
            if said := context.notes(cell).get(kind):
                yield f"{cell.label}: {said}"
    for row in table_of(tables, "circuits").to_dict("records"):
        if row["defined"]:
            yield (
                f"{row['model']} on {row['task']}: {row['k']:.0f} of {row['of']} edges [{row['k_lo']:.0f}, "
                f"{row['k_hi']:.0f}] explain {row['threshold']:.0%} of what they do together, n = {row['n']}"
            )


register(
    Study(
        name="wiring",
        question="Which heads does a head read from, through Q, K or V?",
        settings=WiringSettings,
        stages=stages,
        stage_names=lambda settings: ("heads", "edges", "curves and cards")[bool(settings.into) :],
        compute={
            "order": rank,
            "edges": measure_edges,
            "gradient": measure_gradient,
            "curve": measure_curve,
            "card": make_cards,
            "pair": compare,
        },
        section=section,
        notices=notices,
    )
)
