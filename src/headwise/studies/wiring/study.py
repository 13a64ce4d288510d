"""The study `wiring`: which heads does a head read from, through Q, K or V?

One half of the examples finds the top heads and ranks the edges among them; the other half tests the edges and
measures the curve. With `into` the receivers are given, and no heads are scored. Tables: `scores` and `examples` of
the heads; `edges` (the edges among the top heads, tested on the second half; `order_score` is their score on the
first), `gradient` (the largest edges of the whole model by a gradient method), `curves` and `circuits` (explained
effect against edges kept), `ratios` and `members` of two models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import pandas as pd
from pydantic import Field, NonNegativeInt

from headwise.errors import HeadwiseError
from headwise.heads import Edges, Head, Order, Scores
from headwise.heads.edges import inputs_of
from headwise.model.measure.references import check_stored
from headwise.model.model import Model
from headwise.runs import Call, Job, step
from headwise.scores.edges import check_edges, edge_cost, edge_methods
from headwise.scores.edges import edges as score_edges
from headwise.settings import Count, Several, Text, one_of, passes
from headwise.studies.base import study
from headwise.studies.plan import some_heads
from headwise.studies.run import Pair, Run
from headwise.studies.settings import shared
from headwise.studies.steps import make_cards, score_heads
from headwise.studies.wiring.section import section
from headwise.sweeps.curve import check_threshold
from headwise.sweeps.edge_curve import EdgeCurve, edge_curve
from headwise.sweeps.readings import ratio_row
from headwise.tables.codec import stored
from headwise.tables.frames import by_size
from headwise.tasks import Task


def _check_receiver(name: str) -> None:
    inputs_of(name, {})


class WiringSettings(shared.TaskSettings):
    QUICK: ClassVar[dict[str, Any]] = {"n": 24, "heads": 6, "points": 7, "cards": 2}

    models: shared.Models = ("smollm2",)
    """One model; or two, the dense one first, then the sparse one, whose circuits are compared."""
    n: Annotated[int, Field(ge=4)] = 32
    """Examples per task: one half finds the heads and ranks the edges, the other tests them."""
    order: Annotated[Text, one_of("method", shared.methods)] = "ablation"
    """Score method that finds the heads whose edges are measured."""
    heads: Count = 16
    """Number of top heads, by absolute score."""
    into: Several[Annotated[Text, passes(_check_receiver)]] = ()
    """Receivers, such as L23H3; by default the top heads and the logits. All heads before them are then senders."""
    method: Annotated[Text, one_of("edge method", edge_methods)] = "exact"
    """Edge method of the edges among the top heads: exact, attribution or integrated."""
    gradient: Annotated[Text, one_of("edge method", edge_methods)] | None = "attribution"
    """Gradient method that scores all edges of the model, MLPs and embeddings too; null for none. Not with `into`."""
    reference: Annotated[shared.ReferenceName, passes(partial(check_stored, what="the edges"))] = "mean"
    """Ablation type: what replaces a sender's contribution (zero, mean, position_mean, resample, patch)."""
    threshold: Annotated[float, passes(check_threshold)] = 0.9
    """Explained effect (faithfulness) at which the circuit size is read."""
    points: Annotated[int, Field(ge=4)] = 15
    """Maximum number of points of a curve; 0 edges and all edges are always there."""
    curve: bool = True
    """Whether the curve of explained effect against edges kept is measured. Not with `into`."""
    cards: NonNegativeInt = 4
    """Number of heads of the circuit that get a card (head page) in the report; 0 for none."""

    def before_run(self) -> None:
        super().before_run()
        if not 1 <= len(self.models) <= 2:
            raise HeadwiseError(
                f"the study 'wiring' takes one model, or a dense and a sparse one; {len(self.models)} are given"
            )


# ---- the study -----------------------------------------------------------------------------------


KEPT = 300
"""Edges of the whole model in the table `gradient`: the largest."""
ROLES = ("dense", "sparse")


def plan(run: Run, s: WiringSettings) -> Iterator[Call[Any]]:
    options = s.ablation
    for pair in run.pairs():
        find, test = pair.task.halves()
        top = some_heads(pair.model, s.heads)
        ends: dict[str, Any] = {"into": s.into} if s.into else {"into": [*top, "logits"], "out_of": top}
        yield measure_edges(pair.model, pair.task, s.method, options, **ends)
        if not s.into:
            yield score_heads(pair.model, find, s.order, **options)
            if s.gradient is not None:
                yield largest_edges(pair.model, find, s.gradient, options)
            if s.curve:
                stand_in: Any = None
                yield measure_curve(pair.model, test, stand_in, options | {"points": s.points})
        if s.cards:
            yield make_cards(pair.model, pair.task, some_heads(pair.model, s.cards), **options)


@study("Which heads does a head read from, through Q, K or V?", WiringSettings, section, plan)
def wiring(run: Run, s: WiringSettings) -> None:
    pairs = run.pairs()
    gradient = [] if s.into or s.gradient is None else [s.gradient]
    for pair in pairs:
        check_edges(pair.model, [s.method, *gradient], s.metric or pair.task.metric, s.into or "logits")
    halves = {pair: pair.task.halves() for pair in pairs}
    options = s.ablation

    ends: dict[Pair, dict[str, Any]] = {pair: {"into": s.into} for pair in pairs}
    if not s.into:
        ranking: dict[Pair, Call[Any]] = {
            pair: score_heads(pair.model, halves[pair][0], s.order, **options) for pair in pairs
        }
        for pair, scored in run.all(ranking, "heads").items():
            run.tables(scored.tables(halves[pair][0]), **pair.columns)
            _say_note(run, pair, scored.scores)
            top = scored.scores.top(s.heads, "absolute")
            ends[pair] = {"into": [*top, "logits"], "out_of": top}

    calls: dict[Any, Call[Any]] = {
        pair: measure_edges(pair.model, pair.task, s.method, options, **ends[pair]) for pair in pairs
    }
    for method in gradient:
        calls |= {(p, method): largest_edges(p.model, halves[p][0], method, options) for p in pairs}
    edges = run.all(calls, "edges")
    for pair in pairs:
        run.table("edges", edges[pair].table.assign(**pair.columns))
        run.table("edge_examples", edges[pair].edges.example_table().assign(**pair.columns))
        _say_note(run, pair, edges[pair].edges)
        for method in gradient:
            largest: Edges = edges[pair, method]
            run.table("gradient", largest.table().assign(of=largest.details["of"], **pair.columns))
            _say_note(run, pair, largest)

    calls, with_curve = {}, s.curve and not s.into
    if with_curve:
        points = options | {"points": s.points, "threshold": s.threshold}
        for pair in pairs:
            first = on_half(edges[pair].edges, pair.task, 0)
            calls[pair, "curve"] = measure_curve(pair.model, halves[pair][1], first, points)
    for pair in pairs if s.cards else ():
        if heads := _heads_of_circuit(edges[pair].table, s.cards):
            calls[pair, "cards"] = make_cards(pair.model, pair.task, heads, **options)
        else:
            run.say_of(pair.columns, "no head pages, because no edge is significant")
    curves: dict[Pair, EdgeCurve] = {}
    for (pair, kind), result in run.all(calls, "curves and cards").items():
        if kind == "cards":
            run.tables(result.tables, **pair.columns)
            run.say_of(pair.columns, *result.notes)
        elif isinstance(result, str):
            run.say_of(pair.columns, result)
        else:
            run.table("curve_examples", result.example_table().assign(**pair.columns))
            if result.defined:
                curves[pair] = result
                run.table("curves", result.table().assign(**pair.columns))
                summary = result.summary(s.threshold)
                run.table("circuits", pd.DataFrame([summary | pair.columns]))

    if with_curve and len(s.models) == 2:
        for dense, sparse in zip(pairs[: len(s.tasks)], pairs[len(s.tasks) :], strict=True):
            task, names = dense.columns["task"], [pair.columns["model"] for pair in (dense, sparse)]
            run.table("members", pd.DataFrame({"task": task, "role": ROLES, "model": names}))
            if dense in curves and sparse in curves:
                row: dict[str, Any] = {"task": task, "model": names[0], "other": names[1]}
                row |= compare(curves[dense], curves[sparse], s.threshold)
                run.table("ratios", pd.DataFrame([row | {"reference": s.reference}]))


def _say_note(run: Run, pair: Pair, found: Scores | Edges) -> None:
    """What the method says of its own accuracy."""
    if note := found.details.get("said"):
        run.say_of(pair.columns, str(note))


# ---- steps -----------------------------------------------------------------------------------------------


@stored
@dataclass(frozen=True)
class MeasuredEdges:
    """Edges on all examples, and their table: the first half ranks them (`order_score`), the second tests them."""

    edges: Edges
    table: pd.DataFrame


@step(
    version=lambda method, **_: edge_methods()[method].version,
    cost=edge_cost,
    label="{method} edges on {task.name} with {model.name}",
)
def measure_edges(
    job: Job,
    model: Model,
    task: Task,
    method: str,
    options: Mapping[str, Any],
    *,
    into: Any,
    out_of: Order | None = None,
) -> MeasuredEdges:
    """The edges into some heads, or among the top heads.

    One call for both halves: a mean that replaces a sender's contribution is over all examples.
    """
    found = score_edges(model, task, method, into=into, out_of=out_of, progress=job.advance, **options)
    ranking, tested = (on_half(found, task, side) for side in (0, 1))
    return MeasuredEdges(found, tested.table().assign(order_score=ranking.values))


def on_half(edges: Edges, task: Task, side: int) -> Edges:
    """The same edges on one half of the examples."""
    examples, groups = edges.examples[task.sides()[side]], task.halves()[side].shared_groups()
    return replace(edges, examples=examples, groups=groups, tests={})


@step(
    version=lambda method, **_: edge_methods()[method].version,
    cost=lambda task, **_: len(task),
    label="{method} edges of the whole model on {task.name} with {model.name}",
)
def largest_edges(job: Job, model: Model, task: Task, method: str, options: Mapping[str, Any]) -> Edges:
    """The largest edges of the whole model by a gradient method; `details["of"]`: how many edges there are."""
    kinds = ("heads", "mlps", "input")
    found = score_edges(model, task, method, components=kinds, progress=job.advance, **options)
    return replace(found.top(KEPT), details={**found.details, "of": len(found)})


@step(
    cost=lambda task, options, **_: len(task) * options["points"],
    label="curve of edges on {task.name} with {model.name}",
)
def measure_curve(
    job: Job, model: Model, task: Task, ranking: Edges, options: Mapping[str, Any]
) -> EdgeCurve | str:
    """Explained effect against edges kept, or the reason why a model has no such curve."""
    try:
        return edge_curve(model, task, ranking, progress=job.advance, **options)
    except HeadwiseError as error:
        return f"no curve: {error}"


# ---- what follows from edges and curves --------------------------------------------------------------------


def _heads_of_circuit(edges: pd.DataFrame, most: int) -> Order:
    """The heads at the ends of the largest significant edges."""
    rows = by_size(edges[edges["q"] < 0.05]).to_dict("records")
    names: Sequence[str] = [name for row in rows for name in (row["sender"], *row["heads"].split())]
    return [Head.parse(name) for name in dict.fromkeys(names) if name.startswith("L")][:most]


def compare(dense: EdgeCurve, sparse: EdgeCurve, threshold: float) -> dict[str, Any]:
    """How many times more edges the first model needs than the second, with its interval over examples."""
    ratio = ratio_row(dense, sparse, threshold=threshold, paired=False)
    return {name: ratio[name] for name in ("k", "other_k", "ratio", "lo", "hi")} | {"threshold": threshold}
