"""The study `functions`: which heads serve which ability?

Each ability (a label of the examples) gets a map by each method. The probe reads all abilities at once; every
other method is run on one ability's examples. Tables beside the contract's: `elbows` (how many heads stand out,
and how stable they are), `overlap` (how far abilities share them), `agreement` (how far methods agree), `probe`
(how well the probe tells abilities apart, beside its controls).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Scores
from headwise.progress import progress
from headwise.runs import Cell, CellResult, RunFolder, execute, read_table
from headwise.scores import method, score
from headwise.scores.probe.probe import check_labels, probe
from headwise.scores.registry import versions
from headwise.stats.elbow import elbow_count
from headwise.studies.abilities import abilities_of, sources, together
from headwise.studies.base import register
from headwise.studies.figures import save_figures
from headwise.studies.functions.charts import charts
from headwise.studies.functions.findings import READABLE
from headwise.studies.functions.settings import FunctionsSettings
from headwise.studies.functions.tables import (
    agreement_rows,
    overlap_rows,
    scores_fingerprint,
    significant_heads,
)
from headwise.studies.score.study import example_table
from headwise.studies.workbench import Workbench
from headwise.tasks import Task

QUICK = 12
"""Most examples per ability with `quick`."""
EVERY = "all"
"""What the task of a cell or a row is called where it is about all abilities together."""


@register("functions", question="Which heads serve which ability?", settings=FunctionsSettings)
def carry_out(settings: FunctionsSettings, bench: Workbench, folder: RunFolder) -> None:
    if settings.quick:
        settings = settings.at_most(n=QUICK)
    by_model = {}
    for name in settings.models:
        by_model[name] = abilities_of(settings, bench, bench.model(name))
        if "probe" in settings.methods:
            every = together(by_model[name])
            labels = [label for label, task in by_model[name].items() for _ in task]
            check_labels(labels, ", ".join(sources(settings)), every.groups())
    cells = [
        cell
        for name, tasks in by_model.items()
        for cell in _cells(settings, bench.model(name).fingerprint, name, tasks)
    ]
    execute(folder, cells, partial(_compute, settings, bench, by_model), progress=bench.progress)
    scores = read_table(folder, "scores")
    shown = bench.shown(settings.models)
    summaries = [
        Cell(
            "functions",
            name,
            EVERY,
            "summary",
            {},
            {"scores": scores_fingerprint(scores[scores["model"] == shown[name]])},
        )
        for name in by_model
    ]
    execute(folder, summaries, partial(_summary, scores, shown), progress=False)
    save_figures(folder, charts)
    _tell(folder)


def _cells(settings: FunctionsSettings, fingerprint: str, model: str, tasks: dict[str, Task]) -> list[Cell]:
    cells = []
    dtype = settings.dtype or "default"
    for name in settings.methods:
        if name == "probe":
            about: dict[str, Any] = {
                "seed": settings.seed,
                "answer_tokens": settings.answer_tokens,
                "dtype": dtype,
            }
            everything = together(tasks)
            prints = {"model": fingerprint, "task": everything.fingerprint} | versions(name, everything)
            cells.append(Cell("functions", model, EVERY, name, about, prints))
            continue
        for label, task in tasks.items():
            about = {
                "seed": settings.seed,
                "metric": settings.metric or task.metric,
                "reference": settings.reference,
                "dtype": dtype,
            }
            prints = {"model": fingerprint, "task": task.fingerprint} | versions(name, task)
            cells.append(Cell("functions", model, label, name, about, prints))
    return cells


def _compute(
    settings: FunctionsSettings, bench: Workbench, by_model: dict[str, dict[str, Task]], cell: Cell
) -> CellResult:
    model, tasks = bench.model(cell.model), by_model[cell.model]
    shown = bench.shown(settings.models)[cell.model]
    if cell.part == "probe":
        every = together(tasks)
        with progress("probe of all abilities", len(every), show=bench.progress) as advance:
            found = probe(
                model, every, answer_tokens=settings.answer_tokens, seed=settings.seed, advance=advance
            )
        # The order of the tables is that of the abilities, whatever the probe's own.
        found = {label: replace(found[label], model=shown) for label in tasks}
        tables = [
            _tables(found[label], settings.seed, _places(found[label], tasks, label)) for label in tasks
        ]
        merged = {name: pd.concat([t[name] for t in tables], ignore_index=True) for name in tables[0]}
        merged["probe"] = _probe_rows(found, shown)
        return CellResult(merged, {})
    task = tasks[cell.task]
    with progress(
        f"{cell.part} on {cell.task}", method(cell.part).steps(model, task), show=bench.progress
    ) as advance:
        scores = score(
            model,
            task,
            cell.part,
            metric=settings.metric,
            reference=settings.reference,
            seed=settings.seed,
            advance=advance,
        )
    scores = replace(scores, model=shown, task=cell.task)
    return CellResult(_tables(scores, settings.seed, np.arange(scores.n)), dict(scores.details))


def _tables(scores: Scores, seed: int, places: np.ndarray) -> dict[str, pd.DataFrame]:
    """Scores, the examples behind them (numbered by `places` in the ability's list), and the elbow."""
    heads = scores.heads()
    signs = scores.details.get("signs")
    table = scores.table(seed)
    table["signed"] = scores.signed
    # The probe's number is a size; its own sign is kept beside it.
    table["sign"] = pd.array(
        [signs[h.layer][h.head] for h in heads] if signs else [pd.NA] * len(heads), dtype="Int8"
    )
    examples = example_table(scores)
    examples["example"] = places.astype(np.int32)[examples["example"].to_numpy()]
    count = elbow_count(scores.values)
    stable = float("nan")
    if count:
        stable = stats.stability(scores.examples, count, groups=scores.groups, seed=seed, absolute=True)
    elbow = {
        "model": scores.model,
        "task": scores.task,
        "method": scores.method,
        "heads": count,
        "of": len(heads),
        "significant": significant_heads(table),
        "stability": stable,
        "n": scores.n,
    }
    return {
        "scores": table,
        "examples": examples,
        "elbows": pd.DataFrame([elbow]).astype({"significant": "Int32"}),
    }


def _places(scores: Scores, tasks: dict[str, Task], label: str) -> np.ndarray:
    """The held-out examples' numbers in their own ability's list, as the causal methods count them."""
    before = 0
    for other, task in tasks.items():
        if other == label:
            break
        before += len(task)
    return np.array(scores.details["held_out"]) - before


def _probe_rows(found: dict[str, Scores], model: str) -> pd.DataFrame:
    """How well the probe tells abilities apart: over all of them, then each ability's own accuracy."""
    report = next(iter(found.values())).details
    shared = ("chance", "shuffled", "shuffled_lo", "shuffled_hi", "bag_of_words")
    first = {"model": model, "task": EVERY, "accuracy": report["accuracy"]}
    first |= {name: report[name] for name in ("lo", "hi", *shared)} | {"n": report["tested_on"]}
    first |= {name: report[name] for name in ("trained_on", "stopped_by", "classes", "epochs")}
    rest = [
        {"model": model, "task": label, "accuracy": scores.details["own_accuracy"], "n": scores.n}
        for label, scores in found.items()
    ]
    rows = pd.DataFrame([first, *rest])
    whole = ["n", "trained_on", "stopped_by", "classes", "epochs"]
    floats = [name for name in rows.columns if name not in ("model", "task", *whole)]
    return rows.astype(dict.fromkeys(whole, "Int32") | dict.fromkeys(floats, "float64"))


def _summary(scores: pd.DataFrame, shown: dict[str, str], cell: Cell) -> CellResult:
    own = scores[scores["model"] == shown[cell.model]]
    tables = {"overlap": overlap_rows(own), "agreement": agreement_rows(own)}
    return CellResult({name: table for name, table in tables.items() if len(table)})


def _tell(folder: RunFolder) -> None:
    """The probe's worth, in one sentence per model."""
    if "probe" not in folder.written:
        return
    table = read_table(folder, "probe")
    for row in table[table["task"] == EVERY].to_dict("records"):
        folder.notice(
            f"probe of {row['model']}: {row['accuracy']:.0%} of {row['n']} held-out examples right, chance "
            f"{row['chance']:.0%}, shuffled labels {row['shuffled']:.0%}, bag of words {row['bag_of_words']:.0%}; "
            f"{READABLE}"
        )
