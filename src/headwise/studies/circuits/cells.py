"""The cells of the study `circuits`: an order per model, task and method, a curve per order, a comparison per pair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError
from headwise.heads import Order, Scores
from headwise.model.attention.attention import attention
from headwise.runs import Cell, CellResult
from headwise.scores import method, score
from headwise.scores.registry import own_options, versions
from headwise.studies.circuits.settings import ROLES, CircuitsSettings
from headwise.studies.circuits.tables import (
    attention_rows,
    curve_fingerprint,
    order_fingerprint,
    ratio_row,
    scores_of,
)
from headwise.studies.context import Context
from headwise.studies.score.tables import example_table
from headwise.sweeps.curve import renamed
from headwise.sweeps.sweep import CONTROL_POINTS, default_reference, most_rows, ranking, sweep
from headwise.tasks import Task

QUICK_CONTROL_POINTS = 5
"""Numbers of heads at which controls are measured with `quick`."""


@dataclass(frozen=True)
class Place:
    """One model on one task."""

    found: Task
    """The examples that rank the heads."""
    tested: Task
    """The examples that curves are measured on."""
    found_numbers: np.ndarray
    """Of the examples in `found`."""
    tested_numbers: np.ndarray
    reference: str
    about: dict[str, Any]
    """What every order and curve depends on."""


def place(context: Context[CircuitsSettings], model: str, task: str) -> Place:
    s = context.settings
    whole = context.bench.task(task, context.model(model), s.n, s.seed, s.task_options)
    (found, tested), numbers = whole.halves(), whole.sides()
    references = {s.reference or default_reference(half) for half in (found, tested)}
    reference = references.pop() if len(references) == 1 else "mean"
    about = {
        "n": s.n,
        "seed": s.seed,
        "metric": s.metric or found.metric,
        "reference": reference,
        "dtype": str(context.model(model).dtype).removeprefix("torch."),
    }
    return Place(found, tested, np.array(numbers[0]), np.array(numbers[1]), reference, about)


def check_k(context: Context[CircuitsSettings]) -> None:
    """Refuse numbers of heads that a model does not have."""
    k = context.settings.k
    for name in context.settings.models:
        total = len(context.model(name).heads())
        if max(k, default=0) > total or min(k, default=0) < 0:
            raise HeadwiseError(
                f"k is {', '.join(map(str, k))}; {name} has {total} heads, so k runs from 0 to {total}"
            )


def cost(context: Context[CircuitsSettings]) -> str:
    """How much is to be done, in the unit that time is made of."""
    s = context.settings
    rows = tokens = 0
    for model, task in s.curves():
        here = context.once(place, model, task)
        lengths = [len(context.model(model).tokens(example.prompt)) for example in here.found]
        of_task = _rows_of_curve(s) * len(s.orders) * len(s.by) * len(here.tested)
        rows += of_task
        tokens += int(of_task * np.mean(lengths))
    return (
        f"circuits: heads are ranked by {', '.join(s.orders)} on {s.n - s.n // 2} examples of each task and model; "
        f"the curves are then up to {rows:,} forward rows, about {tokens:,} tokens"
    )


def _rows_of_curve(s: CircuitsSettings) -> int:
    """Forward rows of one example, at most."""
    return most_rows(len(s.k) or s.points, len(s.controls), s.draws, _control_points(s))


def _control_points(settings: CircuitsSettings) -> int:
    return QUICK_CONTROL_POINTS if settings.quick else CONTROL_POINTS


# ---- orders ----------------------------------------------------------------------------------------


def order_cells(context: Context[CircuitsSettings]) -> Iterator[Cell]:
    for model, task in context.settings.curves():
        here = context.once(place, model, task)
        prints = {"model": context.model(model).fingerprint, "task": here.found.fingerprint}
        for name in context.settings.orders:
            about = here.about | {"options": own_options(name, context.settings.method_options)}
            yield context.cell("order", model, task, name, about, prints | versions(name, here.found))


def rank(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """Scores of all heads on the first half of the examples."""
    s, model, here = context.settings, context.model(cell.model), context.once(place, cell.model, cell.task)
    with context.progress(cell.label, method(cell.part).steps(model, here.found)) as advance:
        scores = score(
            model,
            here.found,
            cell.part,
            metric=s.metric,
            reference=here.reference,
            seed=s.seed,
            advance=advance,
            **own_options(cell.part, s.method_options),
        )
    numbers = _row_numbers(scores, here.found_numbers)
    without = int(np.isnan(scores.values[model.exists]).sum())
    if without:  # an order needs a place for every head
        odd = np.flatnonzero(~np.isfinite(scores.examples[:, model.exists]).all(axis=1))
        named = f" (examples {', '.join(map(str, numbers[odd[:8]]))} are not finite)" if len(odd) else ""
        raise HeadwiseError(
            f"{cell.part} gave no finite score for {without} heads of {cell.model} on {cell.task}{named}; use "
            "another metric or reference, or a wider dtype"
        )
    scores = replace(scores, model=context.display_name(cell.model), task=cell.task)
    examples = example_table(scores)
    examples["example"] = numbers[examples["example"]]
    return CellResult({"scores": scores.table(s.seed), "examples": examples}, dict(scores.details))


# ---- curves ----------------------------------------------------------------------------------------


def curve_cells(context: Context[CircuitsSettings]) -> list[Cell]:
    s = context.settings
    cells = {}
    for model, task in s.curves():
        here = context.once(place, model, task)
        for name in s.orders:
            ranked = context.once(_ranked, model, task, name)
            for by in s.by:
                # An unsigned score gives one order, however many rankings are asked for.
                by, series = ranking(name, ranked.signed, by)
                order = ranked.order(by if by != "unsigned" else "signed")
                prints = {"model": context.model(model).fingerprint, "task": here.tested.fingerprint}
                prints |= {"order": order_fingerprint(order)}
                about = here.about | {"order": name, "by": by, "threshold": s.threshold}
                about |= {"action": s.action, "k": s.k, "points": s.points, "draws": s.draws}
                about |= {"controls": s.controls, "control_points": _control_points(s)}
                part = f"curve {series}"
                cells[model, task, part] = context.cell("curve", model, task, part, about, prints)
                if s.maps:
                    part = f"attention {series}"
                    about = {"order": name, "by": by, "maps": s.maps}
                    cells[model, task, part] = context.cell("attention", model, task, part, about, prints)
    return list(cells.values())


def _ranked(context: Context[CircuitsSettings], model: str, task: str, name: str) -> Scores:
    """What one order cell has found."""
    return scores_of(context.table("scores", kind="order", model=model, task=task, part=name))


def _order(context: Context[CircuitsSettings], cell: Cell) -> tuple[Scores, str]:
    """The scores that a curve goes by, and how they rank."""
    by = cell.settings["by"]
    scores = context.once(_ranked, cell.model, cell.task, cell.settings["order"])
    return scores, by if by != "unsigned" else "signed"


def measure(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """One curve with its controls on the second half of the examples."""
    s, model, here = context.settings, context.model(cell.model), context.once(place, cell.model, cell.task)
    scores, by = _order(context, cell)
    with context.progress(cell.label, _rows_of_curve(s) * len(here.tested)) as advance:
        found = sweep(
            model,
            here.tested,
            scores,
            s.action,
            reference=cell.settings["reference"],
            metric=s.metric,
            # The ends are always there: they are known, and the ratio is read between them.
            k=[0, *s.k, len(model.heads())] if s.k else None,
            controls=s.controls,
            draws=s.draws,
            control_points=_control_points(s),
            by=by,
            threshold=s.threshold,
            points=s.points,
            seed=s.seed,
            advance=advance,
        )
    found = renamed(found, model=context.display_name(cell.model), task=cell.task)
    examples = found.example_table()
    examples["example"] = here.tested_numbers[examples["example"]]
    summary = pd.DataFrame([{**found.summary(s.threshold), "examples": here.tested.fingerprint}])
    return CellResult({"curves": found.table(), "examples": examples, "circuits": summary}, found.details)


def attend(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """Where the first heads of an order look."""
    scores, by = _order(context, cell)
    heads: Order = scores.order(by)[: context.settings.maps]
    prompt = context.once(place, cell.model, cell.task).tested.examples[0].prompt
    seen = attention(context.model(cell.model), prompt, heads, maps=True)
    series = cell.part.removeprefix("attention ")
    about = {"model": context.display_name(cell.model), "task": cell.task, "series": series}
    return CellResult({"attention": attention_rows(seen, about)})


# ---- pairs -----------------------------------------------------------------------------------------


def _sizes(context: Context[CircuitsSettings]) -> pd.DataFrame:
    return context.table("circuits")


def pair_cells(context: Context[CircuitsSettings]) -> Iterator[Cell]:
    s, series_of_all = context.settings, list(dict.fromkeys(context.once(_sizes)["series"]))
    for number, pair, task in s.panels():
        about = {"pair": number, "members": pair.members, "threshold": s.threshold, "seed": s.seed}
        prints = {
            f"{role}/{series}": curve_fingerprint(context.once(_curve_rows, name, task, series))
            for role, name in pair.members.items()
            for series in series_of_all
        }
        yield context.cell("pair", pair.dense, task, f"pair {number}", about, prints)


def compare(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """Which models are shown together, and how many times more heads one needs than another."""
    s, summary, given = context.settings, context.once(_sizes), cell.settings["members"]
    members = {role: context.display_name(given[role]) for role in ROLES if role in given}
    groups = {
        role: context.once(place, name, cell.task).tested.shared_groups() for role, name in given.items()
    }
    pair = {"pair": cell.settings["pair"], "task": cell.task}
    rows = [{**pair, "role": role, "model": model} for role, model in members.items()]
    tables = {"members": pd.DataFrame(rows)}
    ratios = []
    of_task = summary[summary["task"] == cell.task].set_index(["series", "model"])
    for series in dict.fromkeys(summary["series"]):
        for (role, model), (other_role, other) in combinations(_from_dense(members), 2):
            first, second = of_task.loc[(series, model)], of_task.loc[(series, other)]
            found = ratio_row(
                context.once(_curve_rows, given[role], cell.task, series),
                context.once(_curve_rows, given[other_role], cell.task, series),
                threshold=s.threshold,
                defined=bool(first["defined"] and second["defined"]),
                paired=first["examples"] == second["examples"],
                groups=groups[role],
                other_groups=groups[other_role],
                seed=s.seed,
            )
            about = {"series": series, "by": first["by"], "compared": f"{role}/{other_role}"}
            ratios.append({**pair, **about, "model": model, "other": other, **found})
    if ratios:
        tables["ratios"] = pd.DataFrame(ratios).assign(threshold=s.threshold)
    return CellResult(tables)


def _row_numbers(scores: Scores, numbers: np.ndarray) -> np.ndarray:
    """Which examples of the task are behind the rows of a score, found on those of these `numbers`.

    A probe has rows for what it held out. Where rows are no examples (gates have one per seed) they are counted.
    """
    if scores.details.get("replicates") == "seeds":
        return np.arange(scores.n)
    own: np.ndarray = numbers[scores.details.get("held_out", slice(None))]
    return own


def _from_dense(members: dict[str, str]) -> list[tuple[str, str]]:
    """(role, model) such that every pair of them is read "the first over the second": dense, control, sparse."""
    return [(role, members[role]) for role in ("dense", "control", "sparse") if role in members]


def _curve_rows(context: Context[CircuitsSettings], model: str, task: str, series: str) -> pd.DataFrame:
    """The values behind one curve."""
    examples = context.table("examples", kind="curve", model=model, task=task, part=f"curve {series}")
    return examples[examples["series"] == series]
