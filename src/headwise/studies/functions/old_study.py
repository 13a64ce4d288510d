"""The study `functions`: which heads serve which ability?

Each ability (a label of the examples) gets a map by each method. The probe reads all abilities at once; every
other method is run on one ability's examples. Tables beside the common ones: `elbows` (how many heads stand out,
and how stable they are), `overlap` (how far abilities share them), `agreement` (how far methods agree), `probe`
(how well the probe tells abilities apart, beside its controls).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.section import Tables, table_of
from headwise.errors import hint
from headwise.runs import Cell, CellResult
from headwise.scores.registry import method, versions
from headwise.studies.abilities import abilities_of, check_labels_of, label_maps, sources, together
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.functions import tables as rows
from headwise.studies.functions.charts import section
from headwise.studies.functions.findings import READABLE
from headwise.studies.functions.settings import FunctionsSettings
from headwise.studies.head_cards import card_cell, make_cards, strongest
from headwise.tasks import Task


def stages(context: Context[FunctionsSettings]) -> Iterator[Sequence[Cell]]:
    s = context.settings
    for model in s.models:
        check_labels_of(_methods(context, model), context.once(_abilities, model), ", ".join(sources(s)))
    yield [
        cell
        for model in s.models
        for by in _methods(context, model)
        for cell in _map_cells(context, model, by)
    ]
    yield [_summary_cell(context, model) for model in s.models]
    if s.cards:
        yield [cell for model in s.models for cell in _card_cells(context, model)]


def _abilities(context: Context[FunctionsSettings], model: str) -> dict[str, Task]:
    return abilities_of(context.settings, context.bench, context.model(model))


def _methods(context: Context[FunctionsSettings], model: str) -> Sequence[str]:
    """The methods of the settings; of one ability alone only those that need no second one to compare with."""
    chosen = context.settings.methods
    if len(context.once(_abilities, model)) > 1:
        return chosen
    return [by for by in chosen if not method(by).per_label] or chosen


def _scores(context: Context[FunctionsSettings], model: str) -> pd.DataFrame:
    """All maps of one model."""
    return context.table("scores", model=model)


def _map_cells(context: Context[FunctionsSettings], model: str, by: str) -> Iterator[Cell]:
    """One cell for each ability; one for all of them where the method tells them apart."""
    s, tasks, per_label = context.settings, context.once(_abilities, model), method(by).per_label
    for label, task in {rows.EVERY: together(tasks.values())}.items() if per_label else tasks.items():
        about: dict[str, Any] = {"seed": s.seed, "dtype": context.dtype(model)}
        if per_label:
            about |= _label_options(s, by)
        else:
            about |= {"metric": s.metric or task.metric, "reference": s.reference}
        prints = {"model": context.model(model).fingerprint, "task": task.fingerprint} | versions(by, task)
        yield context.cell("labels" if per_label else "map", model, label, by, about, prints)


def _summary_cell(context: Context[FunctionsSettings], model: str) -> Cell:
    prints = {"scores": rows.scores_fingerprint(context.once(_scores, model))}
    return context.cell("summary", model, rows.EVERY, "summary", {}, prints)


def _card_cells(context: Context[FunctionsSettings], model: str) -> Iterator[Cell]:
    """One cell for each ability; only by methods that measure an effect of the head."""
    s, scores = context.settings, context.once(_scores, model)
    for label, task in context.once(_abilities, model).items():
        heads = strongest(scores[(scores["task"] == label) & scores["signed"]], s.cards)
        if cell := card_cell(context, model, label, task, heads, {"reference": s.reference}):
            yield cell


def _label_options(settings: FunctionsSettings, by: str) -> dict[str, Any]:
    return {"answer_tokens": settings.answer_tokens} if "answer_tokens" in method(by).options else {}


def map_labels(context: Context[FunctionsSettings], cell: Cell) -> CellResult:
    """The maps of all abilities by a method that tells them apart."""
    s, tasks = context.settings, context.once(_abilities, cell.model)
    maps = label_maps(context, context.model(cell.model), tasks, cell.part, **_label_options(s, cell.part))
    display_name = context.display_name(cell.model)
    maps = {label: replace(scores, model=display_name) for label, scores in maps.items()}
    parts = [
        rows.map_tables(maps[label], s.seed, rows.held_out(maps[label], tasks, label), tasks[label])
        for label in tasks
    ]
    tables = {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in parts[0]}
    if all("accuracy" in scores.details for scores in maps.values()):
        tables["probe"] = rows.probe_rows(maps, display_name)
    return CellResult(tables)


def map_ability(context: Context[FunctionsSettings], cell: Cell) -> CellResult:
    """The map of one ability."""
    s, task, label = context.settings, context.once(_abilities, cell.model)[cell.task], cell.task
    how: dict[str, Any] = {"metric": s.metric, "reference": s.reference}
    scores = context.scores(f"{cell.part} on {label}", context.model(cell.model), task, cell.part, **how)
    scores = replace(scores, model=context.display_name(cell.model), task=label)
    return CellResult(rows.map_tables(scores, s.seed, np.arange(scores.n), task), dict(scores.details))


def summarise(context: Context[FunctionsSettings], cell: Cell) -> CellResult:
    scores = context.once(_scores, cell.model)
    tables = {"overlap": rows.overlap_rows(scores), "agreement": rows.agreement_rows(scores)}
    return CellResult({name: table for name, table in tables.items() if len(table)})


def cards(context: Context[FunctionsSettings], cell: Cell) -> CellResult:
    task = context.once(_abilities, cell.model)[cell.task]
    return make_cards(context, cell, task, reference=context.settings.reference)


def notices(context: Context[FunctionsSettings], tables: Tables) -> Iterator[str]:
    """How good the probe is, in one sentence per model; which methods one ability leaves out."""
    for model in context.settings.models:
        if left_out := [by for by in context.settings.methods if by not in _methods(context, model)]:
            yield (
                f"left out {', '.join(left_out)} for {context.display_name(model)}: it distinguishes abilities, and "
                f"there is only one; give {hint('columns', {'label': 'NAME'})} if a column has the ability"
            )
    for row in table_of(tables, "probe").to_dict("records"):
        if row["task"] == rows.EVERY:
            yield (
                f"probe of {row['model']}: {row['accuracy']:.0%} of {row['n']} held-out examples correct, chance "
                f"{row['chance']:.0%}, shuffled labels {row['shuffled']:.0%}, bag of words "
                f"{row['bag_of_words']:.0%}; {READABLE}"
            )


register(
    Study(
        name="functions",
        question="Which heads serve which ability?",
        settings=FunctionsSettings,
        stages=stages,
        stage_names=lambda settings: ("maps", "summary", "cards") if settings.cards else ("maps", "summary"),
        compute={"map": map_ability, "labels": map_labels, "summary": summarise, "card": cards},
        section=section,
        notices=notices,
    )
)
