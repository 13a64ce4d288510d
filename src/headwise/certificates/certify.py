"""`hw.certify`: is this set of heads really a circuit of this behaviour?

All sets of heads that the checks ask about are measured in one call of the engine for each ablation type; `checks.py`
judges, `reported.py` and `refits.py` have the checks without a verdict.

E examples, V sets of heads.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field, NonNegativeInt

from headwise.certificates import checks, refits
from headwise.certificates.certificate import Certificate
from headwise.certificates.checks import FEWEST, Followed, Thresholds
from headwise.certificates.refits import (
    ALTERNATIVE_FITS,
    BESIDE_METHODS,
    REPELLED,
    STABLE_FITS,
    RankingFit,
    RefitPlan,
    Refits,
    order_of,
)
from headwise.certificates.reported import SPECIFIC_DRAWS, Bench, ablations, components_of, specific
from headwise.errors import HeadwiseError
from headwise.heads import HEADS, Edges, Head, Order, Scores
from headwise.heads.controls import layer_matched_heads
from headwise.heads.head import head_columns
from headwise.heads.heads_file import named_heads
from headwise.metrics.logits import winner
from headwise.model.measure.references import ReferenceName
from headwise.model.model import Model
from headwise.progress import Progress, announce, reporting
from headwise.scores import score
from headwise.scores.registry import method as method_named
from headwise.scores.registry import own_options
from headwise.settings import Count, Named, Seed, Settings, Several, several
from headwise.sweeps.plan import usual_options
from headwise.sweeps.sweep import reads_answers
from headwise.tasks.examples import Task
from headwise.tasks.opening import as_task

log = logging.getLogger("headwise")

DRAWS, SUBSETS = 100, 20
"""Layer-matched random sets of check 4, and subsets of the circuit of check 5."""
NEGATIVES = 40
"""Examples of the task's own negatives, for check 7."""


class Request(Settings):
    """How a set is certified."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    reference: ReferenceName = "mean"
    """Ablation type: what replaces the heads outside the set."""
    metric: str | None = None
    """By default the task's own."""
    thresholds: Thresholds = Field(default_factory=Thresholds)
    """What the checks ask for, such as {"r2": 0.3}."""
    quick: bool = False
    """Checks 1 to 4 alone."""
    found_on: Any = None
    """The examples that found the heads; checks 8, 10 and 11 rank heads on them."""
    method: str | None = None
    """The method that ranked the heads, for check 8; by default that of the scores."""
    method_options: Named[Any] | None = None
    """Options of the method; by default those of the scores, else what a CPU computes in minutes."""
    stable: NonNegativeInt = STABLE_FITS
    """Half-samples of `found_on` on which check 8 ranks the heads again; 0 leaves it out."""
    alternatives: NonNegativeInt = ALTERNATIVE_FITS
    """Fits of check 10, which pay for every head of the set; 0 leaves it out."""
    beside: Several[str] = BESIDE_METHODS
    """The methods of check 11; () leaves it out."""
    refits: Refits | None = None
    """The rankings of checks 8, 10 and 11, where they are computed already."""
    negatives: Any = None
    """For check 7: prompts of the same form without the behaviour (a task, or what `hw.task` makes one of); by default
    the task's own (`Task.negatives`)."""
    others: Any = ()
    """For check 7: tasks of other behaviours."""
    draws: Count = DRAWS
    """Random sets of check 4."""
    subsets: Count = SUBSETS
    """Parts of the set of check 5."""
    seed: Seed = 0
    reference_task: Any = None
    """The examples behind a mean reference; by default the task itself."""
    batch_tokens: Count | None = None


def certify(
    model: Model, task: Any, heads: Any, *, k: int | None = None, progress: Progress = True, **options: Any
) -> Certificate:
    """Test a set of heads on examples that did not find it; see docs/certify.md for every check.

    heads: names such as ["L23H3", "L20H0"], or scores and `k`: their first k heads; or a heads file, or a run and `k`.
        MLPs and the input may be among them ("MLP3", "input"); all components of the kinds named are then replaced
        outside the set.
    options: `reference` (by default `mean`), `metric`, `thresholds`, `quick`, `found_on`, `method`, `method_options`,
        `stable`, `alternatives`, `beside`, `negatives`, `others`, `draws`, `subsets`, `seed`, `reference_task`,
        `batch_tokens`: see `Request`. With `found_on` heads are ranked again (checks 8, 10 and 11); what that takes
        is said first, and `stable=0, alternatives=0, beside=()` leave it out.

    >>> find, test = hw.task("ioi", 160, model=model).halves()                            # doctest: +SKIP
    >>> hw.certify(model, test, hw.score(model, find, "nested"), k=48, found_on=find)     # doctest: +SKIP
    """
    task = as_task(task, model, {})
    request = Request(**options)
    chosen = circuit_of(model, heads, k, {"task": task.name, "reference": request.reference})
    if isinstance(heads, Scores) and request.method is None:
        request = request.replaced(
            method=heads.method, method_options=request.method_options or heads.details["options"]
        )
    bench = Bench(model, chosen, request.metric, request.reference, request.seed)
    if request.negatives is None and not request.quick:
        request = request.replaced(negatives=task.negatives(NEGATIVES, model=model))
    bench.options |= {"reference_task": request.reference_task, "batch_tokens": request.batch_tokens}
    if request.refits is None:
        request = request.replaced(refits=_ranked_again(bench, request, progress))
    rows = planned_rows(task, chosen, request)
    with reporting(f"certifying {len(chosen)} heads on {task.name}", rows, progress) as bench.advance:
        return _certificate(bench, task, request)


def planned_rows(task: Task, heads: Sequence[Head], request: Request) -> int:
    """Forward rows of a certificate, about: variants × examples."""
    elsewhere = len(several(request.others)) + (request.negatives is not None)
    more = 2 * request.subsets + len(heads) + 6 + elsewhere * (SPECIFIC_DRAWS + 2)
    return (6 + request.draws + (0 if request.quick else more)) * len(task)


def _ranked_again(bench: Bench, request: Request, progress: Progress) -> Refits:
    """The rankings of checks 8, 10 and 11, on the examples that found the set."""
    if request.found_on is None or request.quick:
        why = "the set was given without the examples that found it"
        return Refits(
            untested=dict.fromkeys(map(str, (checks.STABLE, checks.ALTERNATIVES, checks.BESIDE)), why)
        )
    methods = [*([] if request.method is None else [request.method]), *request.beside, REPELLED]
    fast = bench.model.device.type != "cpu"
    plan = RefitPlan(
        finding=as_task(request.found_on, bench.model, {}),
        chosen=bench.chosen,
        options=usual_options(methods, request.method_options or {}, fast=fast, quick=False),
        **{name: getattr(request, name) for name in ("method", "stable", "alternatives", "beside", "seed")},
    )
    if progress is True:
        announce(refits.announcement(bench, plan.finding, 0, plan), progress)
    others = {"components": bench.layout.components} if bench.layout.components != HEADS else {}

    def rank(fits: Sequence[RankingFit]) -> list[Order]:
        orders = []
        for fit in fits:
            method = method_named(fit.method)
            options = own_options(fit.method, fit.options | others)
            reference = bench.reference if method.ablates else None
            settings: dict[str, Any] = {"metric": bench.metric, "reference": reference, "seed": fit.seed}
            settings |= {"batch_tokens": request.batch_tokens, "progress": bool(progress)}
            orders.append(order_of(score(bench.model, fit.task, fit.method, **settings, **options)))
        return orders

    return plan.carried_out(rank)


def circuit_of(
    model: Model, heads: Any, k: int | None = None, prefer: Mapping[str, str] | None = None
) -> Order:
    """The set of heads that a caller means, checked against the model. prefer: of several maps of a run."""
    if isinstance(heads, Edges):
        raise HeadwiseError("a certificate is about heads, not about edges; give the heads of the circuit")
    chosen = named_heads(heads, k, model.name, model.heads(), prefer)
    if not chosen:
        raise HeadwiseError("the set of heads is empty; name at least one head, such as L23H3")
    if len(set(chosen)) < len(chosen):
        raise HeadwiseError("a head is named twice; a circuit holds each head once")
    layout = model.layout(components_of(chosen))
    layout.check(chosen, model.name)
    if len(chosen) == len(layout.listed()):
        raise HeadwiseError(
            "the set holds every head of the model, so there is nothing to certify; name fewer"
        )
    return chosen


def _certificate(bench: Bench, task: Task, request: Request) -> Certificate:
    chosen, limits, again = bench.chosen, request.thresholds, request.refits or Refits()
    others: list[Order] = []
    drawn, unmatched = random_sets(bench.every, chosen, request.draws, request.seed)
    parts = [] if request.quick else subsets_of(chosen, request.subsets, request.seed)
    single = [] if request.quick or len(chosen) == 1 else [_without(chosen, [head]) for head in chosen]
    gates = [
        [bench.without(heads) for heads in drawn],
        [bench.without(part) for part in parts],
        [bench.kept(_without(chosen, part)) for part in parts],
        [bench.kept(rest) for rest in single],
        [bench.kept([]), bench.without(chosen), bench.kept(chosen)],
    ]
    full, values, answers = _answered(bench, task, list(chain(*gates)))
    random_, model_part, set_part, set_single, ends = np.split(values, np.cumsum([*map(len, gates)])[:-1])
    none, without, kept = ends
    found = Followed(full, none, kept, answers, task.families(), task.shared_groups())

    levels = checks.levels(found, limits)
    lines = [checks.sufficient(found, limits), checks.in_families(levels, limits)]
    lines += checks.tracks(found, limits, request.seed)
    lines += checks.necessary(found, without, random_, unmatched, limits)
    shares = refits.membership(chosen, again.halves)
    changes = _changes(bench, found, set_single, shares, limits)
    if not request.quick:
        lines.append(checks.complete(found, model_part, set_part, limits, request.seed))
        lines.append(_minimal(bench, task, found, changes, limits))
        lines += specific(bench, request.negatives, several(request.others), drawn[:SPECIFIC_DRAWS])
        lines += refits.stable(chosen, again)
        lines += ablations(bench, task)
        counted, others = refits.alternatives(bench, task, again, limits)
        lines += counted
        lines += refits.beside(bench, task, again)
    if len(task) < FEWEST:
        log.warning("%d examples are too few for a check to pass; give at least %d", len(task), FEWEST)
    return Certificate(
        model=bench.model.name,
        task=task.name,
        metric=bench.metric or task.metric,
        reference=bench.reference,
        heads=list(chosen),
        total=len(bench.every),
        n=len(task),
        lines=pd.DataFrame(lines),
        levels=levels,
        changes=changes,
        examples=_examples(task, found),
        core=[head for head, share in zip(chosen, shares, strict=True) if share >= refits.CORE],
        shell=[
            head for head, share in zip(chosen, shares, strict=True) if refits.SHELL <= share < refits.CORE
        ],
        alternatives=others,
        details={"rows": bench.rows_spent},
    )


def _examples(task: Task, found: Followed) -> pd.DataFrame:
    """The metric of every example with all heads, with the set alone and with none, its family and its prompt."""
    same = np.full(found.n, np.nan) if found.same_answer is None else found.same_answer
    families = ["; ".join(f"{facet} = {level}" for facet, level in one.family.items()) for one in task]
    numbers = {"full": found.full, "kept": found.kept, "none": found.none, "same_answer": same}
    texts = {"family": families, "prompt": [one.prompt for one in task]}
    return pd.DataFrame({"example": list(task.numbers), **numbers, **texts})


def _changes(
    bench: Bench, found: Followed, set_single: np.ndarray, shares: np.ndarray, thresholds: Thresholds
) -> pd.DataFrame:
    """What the set loses without each of its heads; no rows where that was not measured."""
    heads = bench.chosen[: len(set_single)]
    named = {"component": [str(head) for head in heads], **head_columns(heads)}
    if not len(set_single):
        return pd.DataFrame(columns=[*named, "change", "lo", "hi", "adds", "refits"])
    changes = checks.head_changes(found, set_single, thresholds).assign(refits=shares)
    return pd.concat([pd.DataFrame(named), changes], axis=1)


def _without(chosen: Order, part: Sequence[Head]) -> Order:
    return [head for head in chosen if head not in part]


def random_sets(every: Order, chosen: Order, draws: int, seed: int) -> tuple[list[Order], str]:
    """Layer-matched random sets of the size of the circuit; none where a layer has too few others, and why."""
    size, taken = Counter(head.layer for head in every), Counter(head.layer for head in chosen)
    crowded = next((layer for layer in taken if 2 * taken[layer] > size[layer]), None)
    if crowded is not None:
        return [], f"the set has more than half of layer {crowded}, so random sets cannot match its layers"
    return [layer_matched_heads(every, chosen, f"{seed}/{draw}").heads for draw in range(draws)], ""


def subsets_of(chosen: Order, count: int, seed: int) -> list[Order]:
    """`count` random parts K of the circuit, |K| uniform from 1 to half of it."""
    if len(chosen) < 2:
        return []
    draw = random.Random(f"subsets of a circuit/{seed}")
    return [draw.sample(chosen, draw.randint(1, len(chosen) // 2)) for _ in range(count)]


def _answered(
    bench: Bench, task: Task, gates: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """`Bench.answered`; without foils there is no answer to compare, and other rows than the metric's have an engine
    of their own."""
    engine = bench.engine(task)
    beside = reads_answers(engine)
    full, values, same = bench.answered(engine, gates)
    if not beside and all(example.foils for example in task):
        measured = bench.engine(task, winner(task)).measure(gates[-1][None])
        same = (measured.values == measured.full)[0].astype(float)
    return full, values, same


def _minimal(
    bench: Bench, task: Task, found: Followed, changes: pd.DataFrame, thresholds: Thresholds
) -> dict[str, Any]:
    passengers, unsure = (
        [head for head, one in zip(bench.chosen, changes["adds"], strict=False) if one == state]
        for state in (checks.NOTHING, checks.UNDECIDED)
    )
    dropped, smaller = passengers or unsure, None
    if dropped and len(dropped) < len(bench.chosen):
        gates = bench.kept(_without(bench.chosen, dropped))
        full, (kept,), answers = _answered(bench, task, [gates])
        smaller = Followed(full, found.none, kept, answers, found.families, found.groups)
    return checks.minimal(found, smaller, [*map(str, passengers)], [*map(str, unsure)], thresholds)
