"""The cells of the study `functions`: a map of each ability by each method, then what the maps have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.runs import Cell, CellResult
from headwise.scores import method, score
from headwise.scores.registry import versions
from headwise.studies.abilities import abilities_of, check_labels_of, label_maps, sources, together
from headwise.studies.context import Context
from headwise.studies.functions.settings import FunctionsSettings
from headwise.studies.functions.tables import (
    EVERY,
    agreement_rows,
    map_tables,
    overlap_rows,
    places,
    probe_rows,
    scores_fingerprint,
)
from headwise.tasks import Task


def stages(context: Context[FunctionsSettings]) -> Iterator[Sequence[Cell]]:
    s = context.settings
    for name in s.models:
        check_labels_of(s.methods, context.once(_abilities, name), ", ".join(sources(s)))
    yield [cell for name in s.models for by in s.methods for cell in _map_cells(context, name, by)]
    yield [
        context.cell(
            "summary", name, EVERY, "summary", {}, {"scores": scores_fingerprint(context.once(_scores, name))}
        )
        for name in s.models
    ]


def _abilities(context: Context[FunctionsSettings], name: str) -> dict[str, Task]:
    return abilities_of(context.settings, context.bench, context.model(name))


def _scores(context: Context[FunctionsSettings], name: str) -> pd.DataFrame:
    """All maps of one model."""
    return context.table("scores", model=name)


def _map_cells(context: Context[FunctionsSettings], name: str, by: str) -> list[Cell]:
    """One cell for each ability; one for all of them where the method tells them apart."""
    s, tasks, chosen = context.settings, context.once(_abilities, name), method(by)
    cells = []
    for label, task in {EVERY: together(tasks)}.items() if chosen.per_label else tasks.items():
        about: dict[str, Any] = {"seed": s.seed, "dtype": s.dtype or "default"}
        about |= _label_options(s, by) if chosen.per_label else {}
        if not chosen.per_label:
            about |= {"metric": s.metric or task.metric, "reference": s.reference}
        prints = {"model": context.model(name).fingerprint, "task": task.fingerprint} | versions(by, task)
        kind = "labels" if chosen.per_label else "map"
        cells.append(context.cell(kind, name, label, by, about, prints))
    return cells


def _label_options(settings: FunctionsSettings, by: str) -> dict[str, Any]:
    return {"answer_tokens": settings.answer_tokens} if "answer_tokens" in method(by).options else {}


def map_labels(context: Context[FunctionsSettings], cell: Cell) -> CellResult:
    """The maps of all abilities by a method that tells them apart."""
    s, tasks, display_name = (
        context.settings,
        context.once(_abilities, cell.model),
        context.display_name(cell.model),
    )
    found = label_maps(context, context.model(cell.model), tasks, cell.part, **_label_options(s, cell.part))
    found = {label: replace(scores, model=display_name) for label, scores in found.items()}
    tables = [map_tables(found[label], s.seed, places(found[label], tasks, label)) for label in tasks]
    merged = {name: pd.concat([t[name] for t in tables], ignore_index=True) for name in tables[0]}
    if all("accuracy" in scores.details for scores in found.values()):
        merged["probe"] = probe_rows(found, display_name)
    return CellResult(merged)


def map_ability(context: Context[FunctionsSettings], cell: Cell) -> CellResult:
    """The map of one ability."""
    s, model, task = (
        context.settings,
        context.model(cell.model),
        context.once(_abilities, cell.model)[cell.task],
    )
    with context.progress(f"{cell.part} on {cell.task}", method(cell.part).steps(model, task)) as advance:
        scores = score(
            model, task, cell.part, metric=s.metric, reference=s.reference, seed=s.seed, advance=advance
        )
    scores = replace(scores, model=context.display_name(cell.model), task=cell.task)
    return CellResult(map_tables(scores, s.seed, np.arange(scores.n)), dict(scores.details))


def summarise(context: Context[FunctionsSettings], cell: Cell) -> CellResult:
    own = context.once(_scores, cell.model)
    tables = {"overlap": overlap_rows(own), "agreement": agreement_rows(own)}
    return CellResult({name: table for name, table in tables.items() if len(table)})
