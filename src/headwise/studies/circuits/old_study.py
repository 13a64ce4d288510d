"""The study `circuits`: how few heads explain a behaviour, and does sparse attention need fewer?

For each model, task and ablation type, heads are ranked on one half of the examples (the finding half) by several
methods. The order with the smallest circuit on that half is chosen. All orders are then swept on the other half, and
the numbers of the chosen one are the answer. A learned ranking is fitted again, with other seeds on other halves, to
show how far its answer depends on the fit. Tables beside the common ones: `choices` (the finding half: the size of
every order's circuit, and which is chosen), `circuits` (the held-out half: how many heads each curve takes, its areas
the effect it explains, and how far the circuit follows single examples), `refits` (the same for rankings that were
fitted again), `overshoot` (heads that lift a curve clearly above the whole model), `ratios` (how many
times more heads one model of a pair needs than the other), `members` (which models are shown together), `attention`
(the maps of the first heads of each chosen order).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError
from headwise.heads import Scores
from headwise.model.attention.attention import attention
from headwise.runs import Cell, CellResult
from headwise.scores.registry import method as method_named
from headwise.scores.registry import own_options, versions
from headwise.studies.base import Study, register
from headwise.studies.circuits.charts import section
from headwise.studies.circuits.choice import overshoot_rows, overshoots, rise_points, smallest
from headwise.studies.circuits.cost import announcement
from headwise.studies.circuits.notices import notices
from headwise.studies.circuits.pairs import compare, pair_cells
from headwise.studies.circuits.references import references
from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.circuits.tables import attention_rows, scores_of
from headwise.studies.context import Context
from headwise.studies.halves import halves
from headwise.studies.head_cards import card_cell, make_cards, strongest
from headwise.studies.tables import fingerprint, input_table, score_result
from headwise.sweeps.curve import Sweep, renamed
from headwise.sweeps.sweep import ranking, sweep
from headwise.tasks import Task

log = logging.getLogger("headwise")
SEED_STEP = 1_000
"""Between the seeds of two fits, each of which counts its own seeds from there."""
SHOWN = 64
"""Heads of an order that a table names."""


def stages(context: Context[CircuitsSettings]) -> Iterator[Sequence[Cell]]:
    _check_k(context)
    log.info(announcement(context))
    yield list(_order_cells(context))
    yield list(_choice_cells(context))
    yield list(_curve_cells(context))
    yield list(_refit_cells(context))
    yield list(pair_cells(context))
    if context.settings.cards:
        yield list(_card_cells(context))


def _check_k(context: Context[CircuitsSettings]) -> None:
    """Refuse numbers of heads that a model does not have."""
    k = context.settings.k
    for name in context.settings.models:
        total = len(context.model(name).heads())
        if max(k, default=0) > total:
            raise HeadwiseError(
                f"k is {', '.join(map(str, k))}; {name} has {total} heads, so k runs from 0 to {total}"
            )


def _targets(context: Context[CircuitsSettings]) -> Iterator[tuple[str, str, str]]:
    """(model, task, reference) of all that is ranked, each once."""
    for model, task in context.settings.curves():
        for reference in context.once(references, model, task):
            yield model, task, reference


# ---- orders ----------------------------------------------------------------------------------------


def _order_cells(context: Context[CircuitsSettings]) -> Iterator[Cell]:
    for model, task, reference in _targets(context):
        half = context.once(halves, model, task)
        prints = {"model": context.model(model).fingerprint, "task": half.find.fingerprint}
        for method in context.settings.orders:
            about = half.about | {"order": method, "reference": reference}
            about |= {"options": own_options(method, context.settings.method_options)}
            part = f"{method}, {reference}"
            yield context.cell("order", model, task, part, about, prints | versions(method, half.find))


def rank(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """Scores of all heads on the finding half."""
    s, model, half = context.settings, context.model(cell.model), context.once(halves, cell.model, cell.task)
    method, reference = cell.settings["order"], cell.settings["reference"]
    how = {"metric": s.metric, "reference": reference, **own_options(method, s.method_options)}
    scores = context.scores(cell.label, model, half.find, method, **how)
    numbers = _row_numbers(scores, half.find_numbers)
    without = int(np.isnan(scores.values[model.exists]).sum())
    if without:  # every head needs a place in an order
        odd = np.flatnonzero(~np.isfinite(scores.examples[:, model.exists]).all(axis=1))
        named = f" (examples {', '.join(map(str, numbers[odd[:8]]))} are not finite)" if len(odd) else ""
        raise HeadwiseError(
            f"{method} gave no finite score for {without} heads of {cell.model} on {cell.task}{named}; use another "
            "metric or ablation type, or a wider dtype"
        )
    scores = replace(scores, model=context.display_name(cell.model), task=cell.task)
    about = {"model": scores.model, "task": scores.task}
    result = score_result(scores, s.seed, numbers, input_table(half.find, about, "scores", half.find_numbers))
    both = {name: result.tables[name].assign(reference=reference) for name in ("scores", "examples")}
    return replace(result, tables={**result.tables, **both})


def _row_numbers(scores: Scores, numbers: np.ndarray) -> np.ndarray:
    """The numbers in the task of the examples behind a score's rows.

    A probe has rows for the examples it held out. Gates have one row per seed, which are counted.
    """
    if scores.details.get("replicates") == "seeds":
        return np.arange(scores.n)
    rows: np.ndarray = numbers[scores.details.get("held_out", slice(None))]
    return rows


def _ranked(context: Context[CircuitsSettings], model: str, task: str, reference: str, method: str) -> Scores:
    """The scores of one order cell."""
    part = f"{method}, {reference}"
    return scores_of(context.table("scores", kind="order", model=model, task=task, part=part))


def _candidates(
    context: Context[CircuitsSettings], model: str, task: str, reference: str
) -> list[dict[str, str]]:
    """The orders of one model, task and ablation type: method, ranking, name, and a hash of their heads."""
    found: dict[str, dict[str, str]] = {}
    for method in context.settings.orders:
        scores = context.once(_ranked, model, task, reference, method)
        for asked in context.settings.by:
            # An unsigned score gives one order, however many rankings are asked for.
            by, series = ranking(method, scores.signed, asked)
            heads = fingerprint(" ".join(map(str, scores.order(_order_by(by)))))
            found[series] = {"order": method, "by": by, "series": series, "heads": heads}
    return list(found.values())


def _order_by(by: str) -> str:
    return "signed" if by == "unsigned" else by


# ---- the choice of an order ------------------------------------------------------------------------


def _swept_with(context: Context[CircuitsSettings], model: str, task: str, reference: str) -> dict[str, Any]:
    """The settings that every curve of one model, task and ablation type depends on."""
    s = context.settings
    about = context.once(halves, model, task).about | {"reference": reference}
    return about | {"threshold": s.threshold, "action": s.action, "k": s.k, "points": s.points}


def _choice_cells(context: Context[CircuitsSettings]) -> Iterator[Cell]:
    for model, task, reference in _targets(context):
        candidates = context.once(_candidates, model, task, reference)
        about = _swept_with(context, model, task, reference) | {"candidates": candidates}
        half = context.once(halves, model, task)
        prints = {"model": context.model(model).fingerprint, "task": half.find.fingerprint}
        prints |= {f"order {one['series']}": one["heads"] for one in candidates}
        yield context.cell("choice", model, task, f"choice, {reference}", about, prints)


def choose(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """The circuit size of every order on the finding half, and which order is the smallest."""
    s, half = context.settings, context.once(halves, cell.model, cell.task)
    candidates = cell.settings["candidates"]
    rows = []
    with context.progress(cell.label, len(candidates) * s.curve_rows * len(half.find)) as advance:
        for one in candidates:
            curve = _curve(context, cell, one, half.find, progress=advance)
            rows.append({**curve.summary(s.threshold), "order": one["order"]})
    table = pd.DataFrame(rows)
    chosen = np.arange(len(table)) == smallest(table)
    return CellResult({"choices": table.assign(chosen=chosen)})


def _curve(
    context: Context[CircuitsSettings], cell: Cell, one: Mapping[str, Any], examples: Task, **how: Any
) -> Sweep:
    """The curve of one order on one half; how: further options of `sweep`."""
    scores = context.once(_ranked, cell.model, cell.task, cell.settings["reference"], one["order"])
    return _sweep(context, cell, scores, one, examples, **how)


def _sweep(
    context: Context[CircuitsSettings],
    cell: Cell,
    scores: Scores,
    one: Mapping[str, Any],
    examples: Task,
    **how: Any,
) -> Sweep:
    s, model = context.settings, context.model(cell.model)
    # The ends are always there: they are known, and the ratio is read between them.
    grid = [0, *s.k, len(model.heads())] if s.k else None
    reference = cell.settings["reference"]
    options: dict[str, Any] = {"k": grid, "controls": (), "points": s.points} | how
    curve = sweep(
        model,
        examples,
        scores,
        s.action,
        reference=reference,
        metric=s.metric,
        by=_order_by(one["by"]),
        threshold=s.threshold,
        seed=s.seed,
        **options,
    )
    return renamed(curve, model=context.display_name(cell.model), task=cell.task)


# ---- curves ----------------------------------------------------------------------------------------


def chosen_series(context: Context[CircuitsSettings], model: str, task: str, reference: str) -> str:
    """The name of the order that was chosen."""
    table = context.table("choices", kind="choice", model=model, task=task, part=f"choice, {reference}")
    return str(table.loc[table["chosen"], "series"].iloc[0])


def _curve_cells(context: Context[CircuitsSettings]) -> Iterator[Cell]:
    s = context.settings
    for model, task, reference in _targets(context):
        half, chosen = context.once(halves, model, task), context.once(chosen_series, model, task, reference)
        for one in context.once(_candidates, model, task, reference):
            is_chosen, series = one["series"] == chosen, one["series"]
            prints = {"model": context.model(model).fingerprint, "task": half.test.fingerprint}
            prints |= {"order": one["heads"]}
            about = _swept_with(context, model, task, reference) | one | {"chosen": is_chosen}
            if is_chosen:  # the others are thin lines without controls and maps
                controls = {"draws": s.draws, "controls": s.controls, "control_points": s.control_points}
                about |= controls
            yield context.cell("curve", model, task, f"curve {series}, {reference}", about, prints)
            if is_chosen and s.maps:
                maps = one | {"maps": s.maps, "reference": reference}
                yield context.cell("attention", model, task, f"attention {series}, {reference}", maps, prints)


def measure(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """One curve on the held-out half; that of the chosen order with its controls."""
    s, half, one = context.settings, context.once(halves, cell.model, cell.task), cell.settings
    controls = s.controls if one["chosen"] else ()
    rows = s.curve_rows + (s.control_rows if one["chosen"] else 0)
    with context.progress(cell.label, rows * len(half.test)) as advance:
        drawn = {"controls": controls, "draws": s.draws, "control_points": s.control_points}
        curve = _curve(context, cell, one, half.test, progress=advance, **drawn)
    about = {"model": curve.model, "task": cell.task}
    examples = curve.example_table()
    examples["example"] = half.test_numbers[examples["example"]]
    row = {**curve.summary(s.threshold), "order": one["order"], "chosen": one["chosen"]}
    row["heads"] = " ".join(map(str, curve.order[:SHOWN]))
    tables = {
        "curves": curve.table().assign(chosen=one["chosen"]),
        "examples": examples,
        "circuits": pd.DataFrame([row | {"examples": half.test.fingerprint}]),
        "inputs": input_table(half.test, about, "curves", half.test_numbers),
    }
    if one["chosen"] and s.action == "keep" and overshoots(curve):
        k = rise_points(curve.k, curve.explained()["value"].to_numpy())
        closer = _curve(context, cell, one, half.test, k=k, progress=False)
        named = {"series": one["series"], "reference": one["reference"]}
        tables["overshoot"] = overshoot_rows(closer, about | named)
    return CellResult(tables, curve.details)


# ---- the same ranking, fitted again ----------------------------------------------------------------


def _refit_cells(context: Context[CircuitsSettings]) -> Iterator[Cell]:
    s = context.settings
    learned = [name for name in s.orders if method_named(name).learned]
    for (model, task, reference), name in product(_targets(context), learned):
        for number in range(1, (s.refits or 0) + 1):
            half = context.once(halves, model, task, number)
            about = _swept_with(context, model, task, reference) | {"order": name, "refit": number}
            about |= {"by": s.by, "options": own_options(name, s.method_options)}
            prints = {"model": context.model(model).fingerprint, "task": half.whole.fingerprint}
            prints |= versions(name, half.find)
            yield context.cell("refit", model, task, f"refit {number} of {name}, {reference}", about, prints)


def refit(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """A learned ranking from another half of the examples with another seed, and its curve on the rest."""
    s, number = context.settings, cell.settings["refit"]
    half = context.once(halves, cell.model, cell.task, number)
    method, reference = cell.settings["order"], cell.settings["reference"]
    how = {"metric": s.metric, "reference": reference, **own_options(method, s.method_options)}
    model, seed = context.model(cell.model), s.seed + SEED_STEP * number
    scores = context.scores(cell.label, model, half.find, method, seed=seed, **how)
    rows = []
    for asked in s.by:
        by, series = ranking(method, scores.signed, asked)
        curve = _sweep(context, cell, scores, {"by": by}, half.test, progress=False)
        named = {"order": method, "series": series, "refit": number}
        named["heads"] = " ".join(map(str, curve.order[:SHOWN]))
        rows.append(curve.summary(s.threshold) | named)
    return CellResult({"refits": pd.DataFrame(rows).drop_duplicates("series")})


def attend(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """Where the first heads of a chosen order look."""
    one, reference = cell.settings, cell.settings["reference"]
    scores = context.once(_ranked, cell.model, cell.task, reference, one["order"])
    heads = scores.order(_order_by(one["by"]))[: context.settings.maps]
    prompt = context.once(halves, cell.model, cell.task).test.examples[0].prompt
    maps = attention(context.model(cell.model), prompt, heads, maps=True)
    about = {"model": context.display_name(cell.model), "task": cell.task, "series": one["series"]}
    return CellResult({"attention": attention_rows(maps, about | {"reference": reference})})


def _card_cells(context: Context[CircuitsSettings]) -> Iterator[Cell]:
    """Cards of the heads with the largest scores, under the first ablation type."""
    for model, task in dict.fromkeys(context.settings.curves()):
        reference, find = context.once(references, model, task)[0], context.once(halves, model, task).find
        scores = context.table("scores", model=model, task=task, kind="order")
        heads = strongest(scores[scores["reference"] == reference], context.settings.cards)
        if cell := card_cell(context, model, task, find, heads, {"reference": reference}):
            yield cell


def cards(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    find = replace(context.once(halves, cell.model, cell.task).find, name=cell.task)  # as the scores call it
    return make_cards(context, cell, find, reference=cell.settings["reference"])


register(
    Study(
        name="circuits",
        question="How few heads explain the behaviour, and does sparse attention need fewer?",
        settings=CircuitsSettings,
        stages=stages,
        stage_names=lambda settings: (
            "orders",
            "choice of an order",
            "curves",
            "refits",
            "comparison of pairs",
            *(["cards"] if settings.cards else []),
        ),
        compute={
            "order": rank,
            "choice": choose,
            "curve": measure,
            "attention": attend,
            "refit": refit,
            "pair": compare,
            "card": cards,
        },
        section=section,
        notices=notices,
    )
)
