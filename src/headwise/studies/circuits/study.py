"""The study `circuits`: how few heads explain a behaviour, and does sparse attention need fewer?

Heads are ranked on one half of the examples and swept on the other: an order per model, task and method, a curve per
order, a comparison per pair of models. Tables beside the common ones: `circuits` (how many heads each curve takes, its
areas and the effect it explains), `ratios` (how many times more heads one model of a pair needs than the other),
`members` (which models are shown together), `attention` (the maps of the first heads of each order).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.section import Tables, table_of
from headwise.errors import HeadwiseError
from headwise.heads import Scores
from headwise.model.attention.attention import attention
from headwise.runs import Cell, CellResult
from headwise.scores.registry import own_options, versions
from headwise.studies.base import Study, register
from headwise.studies.circuits.charts import section
from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.circuits.tables import attention_rows, curve_fingerprint, ratio_row, scores_of
from headwise.studies.context import Context
from headwise.studies.tables import fingerprint, input_table, score_result
from headwise.sweeps.curve import renamed
from headwise.sweeps.sweep import default_reference, ranking, sweep
from headwise.tasks import Task

log = logging.getLogger("headwise")


@dataclass(frozen=True)
class Halves:
    """The examples of one model and task."""

    rank: Task
    """The half that ranks the heads."""
    test: Task
    """The half that curves are measured on."""
    rank_numbers: np.ndarray
    """Of the examples of `rank` in the task."""
    test_numbers: np.ndarray
    about: dict[str, Any]
    """The settings that every order and curve depends on."""


def halves(context: Context[CircuitsSettings], model: str, task: str) -> Halves:
    s = context.settings
    examples = context.bench.task(task, context.model(model), s.n, s.seed, s.task_options)
    (rank, test), numbers = examples.halves(), examples.sides()
    references = {s.reference or default_reference(half) for half in (rank, test)}
    reference = references.pop() if len(references) == 1 else "mean"
    about = {"n": s.n, "seed": s.seed, "metric": s.metric or rank.metric}
    about |= {"reference": reference, "dtype": context.dtype(model)}
    return Halves(rank, test, np.array(numbers[0]), np.array(numbers[1]), about)


def stages(context: Context[CircuitsSettings]) -> Iterator[Sequence[Cell]]:
    _check_k(context)
    log.info(_cost(context))
    yield list(_order_cells(context))
    yield _curve_cells(context)
    yield list(_pair_cells(context))


def _check_k(context: Context[CircuitsSettings]) -> None:
    """Refuse numbers of heads that a model does not have."""
    k = context.settings.k
    for name in context.settings.models:
        total = len(context.model(name).heads())
        if max(k, default=0) > total:
            raise HeadwiseError(
                f"k is {', '.join(map(str, k))}; {name} has {total} heads, so k runs from 0 to {total}"
            )


def _cost(context: Context[CircuitsSettings]) -> str:
    """How much is to be computed, in forward rows and tokens."""
    s = context.settings
    rows = tokens = 0
    for model, task in s.curves():
        half = context.once(halves, model, task)
        lengths = [len(context.model(model).tokens(example.prompt)) for example in half.rank]
        task_rows = s.rows_per_example * len(s.orders) * len(s.by) * len(half.test)
        rows += task_rows
        tokens += int(task_rows * np.mean(lengths))
    return (
        f"circuits: heads are ranked by {', '.join(s.orders)} on {s.n - s.n // 2} examples of each task and model; "
        f"the curves are then up to {rows:,} forward rows, about {tokens:,} tokens"
    )


# ---- orders ----------------------------------------------------------------------------------------


def _order_cells(context: Context[CircuitsSettings]) -> Iterator[Cell]:
    for model, task in context.settings.curves():
        half = context.once(halves, model, task)
        prints = {"model": context.model(model).fingerprint, "task": half.rank.fingerprint}
        for method in context.settings.orders:
            about = half.about | {"options": own_options(method, context.settings.method_options)}
            yield context.cell("order", model, task, method, about, prints | versions(method, half.rank))


def rank(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """Scores of all heads on the first half of the examples."""
    s, model, half = context.settings, context.model(cell.model), context.once(halves, cell.model, cell.task)
    how = {
        "metric": s.metric,
        "reference": half.about["reference"],
        **own_options(cell.part, s.method_options),
    }
    scores = context.scores(cell.label, model, half.rank, cell.part, **how)
    numbers = _row_numbers(scores, half.rank_numbers)
    without = int(np.isnan(scores.values[model.exists]).sum())
    if without:  # every head needs a place in an order
        odd = np.flatnonzero(~np.isfinite(scores.examples[:, model.exists]).all(axis=1))
        named = f" (examples {', '.join(map(str, numbers[odd[:8]]))} are not finite)" if len(odd) else ""
        raise HeadwiseError(
            f"{cell.part} gave no finite score for {without} heads of {cell.model} on {cell.task}{named}; use "
            "another metric or reference, or a wider dtype"
        )
    scores = replace(scores, model=context.display_name(cell.model), task=cell.task)
    about = {"model": scores.model, "task": scores.task}
    return score_result(scores, s.seed, numbers, input_table(half.rank, about, "scores", half.rank_numbers))


def _row_numbers(scores: Scores, numbers: np.ndarray) -> np.ndarray:
    """The numbers in the task of the examples behind a score's rows.

    A probe has rows for the examples it held out. Gates have one row per seed, which are counted.
    """
    if scores.details.get("replicates") == "seeds":
        return np.arange(scores.n)
    rows: np.ndarray = numbers[scores.details.get("held_out", slice(None))]
    return rows


# ---- curves ----------------------------------------------------------------------------------------


def _curve_cells(context: Context[CircuitsSettings]) -> list[Cell]:
    s = context.settings
    cells = {}
    for model, task in s.curves():
        half = context.once(halves, model, task)
        for method in s.orders:
            scores = context.once(_ranked, model, task, method)
            for by in s.by:
                # An unsigned score gives one order, however many rankings are asked for.
                by, series = ranking(method, scores.signed, by)
                prints = {"model": context.model(model).fingerprint, "task": half.test.fingerprint}
                prints |= {"order": fingerprint(" ".join(map(str, scores.order(_order_by(by)))))}
                order = {"order": method, "by": by}
                about = half.about | order | {"threshold": s.threshold, "action": s.action, "k": s.k}
                about |= {"points": s.points, "draws": s.draws}
                about |= {"controls": s.controls, "control_points": s.control_points}
                kinds = {"curve": about} | ({"attention": order | {"maps": s.maps}} if s.maps else {})
                for kind, about in kinds.items():
                    part = f"{kind} {series}"
                    cells[model, task, part] = context.cell(kind, model, task, part, about, prints)
    return list(cells.values())


def _ranked(context: Context[CircuitsSettings], model: str, task: str, method: str) -> Scores:
    """The scores of one order cell."""
    return scores_of(context.table("scores", kind="order", model=model, task=task, part=method))


def _order_by(by: str) -> str:
    return "signed" if by == "unsigned" else by


def measure(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """One curve with its controls on the second half of the examples."""
    s, model, half = context.settings, context.model(cell.model), context.once(halves, cell.model, cell.task)
    with context.progress(cell.label, s.rows_per_example * len(half.test)) as advance:
        curve = sweep(
            model,
            half.test,
            context.once(_ranked, cell.model, cell.task, cell.settings["order"]),
            s.action,
            reference=cell.settings["reference"],
            metric=s.metric,
            # The ends are always there: they are known, and the ratio is read between them.
            k=[0, *s.k, len(model.heads())] if s.k else None,
            controls=s.controls,
            draws=s.draws,
            control_points=s.control_points,
            by=_order_by(cell.settings["by"]),
            threshold=s.threshold,
            points=s.points,
            seed=s.seed,
            progress=advance,
        )
    curve = renamed(curve, model=context.display_name(cell.model), task=cell.task)
    examples = curve.example_table()
    examples["example"] = half.test_numbers[examples["example"]]
    summary = pd.DataFrame([{**curve.summary(s.threshold), "examples": half.test.fingerprint}])
    about = {"model": context.display_name(cell.model), "task": cell.task}
    inputs = input_table(half.test, about, "curves", half.test_numbers)
    tables = {"curves": curve.table(), "examples": examples, "circuits": summary, "inputs": inputs}
    return CellResult(tables, curve.details)


def attend(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """Where the first heads of an order look."""
    scores = context.once(_ranked, cell.model, cell.task, cell.settings["order"])
    heads = scores.order(_order_by(cell.settings["by"]))[: context.settings.maps]
    prompt = context.once(halves, cell.model, cell.task).test.examples[0].prompt
    maps = attention(context.model(cell.model), prompt, heads, maps=True)
    series = cell.part.removeprefix("attention ")
    about = {"model": context.display_name(cell.model), "task": cell.task, "series": series}
    return CellResult({"attention": attention_rows(maps, about)})


# ---- pairs -----------------------------------------------------------------------------------------


def _circuits(context: Context[CircuitsSettings]) -> pd.DataFrame:
    return context.table("circuits")


def _curve_rows(context: Context[CircuitsSettings], model: str, task: str, series: str) -> pd.DataFrame:
    """The values behind one curve."""
    examples = context.table("examples", kind="curve", model=model, task=task, part=f"curve {series}")
    return examples[examples["series"] == series]


def _pair_cells(context: Context[CircuitsSettings]) -> Iterator[Cell]:
    s, every_series = context.settings, context.once(_circuits)["series"].unique()
    for number, pair, task in s.panels():
        about = {"pair": number, "members": pair.members, "threshold": s.threshold, "seed": s.seed}
        prints = {
            f"{role}/{series}": curve_fingerprint(context.once(_curve_rows, name, task, series))
            for role, name in pair.members.items()
            for series in every_series
        }
        yield context.cell("pair", pair.dense, task, f"pair {number}", about, prints)


def compare(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """Which models are shown together, and how many times more heads one needs than another."""
    s, circuits, models = context.settings, context.once(_circuits), cell.settings["members"]
    names = {role: context.display_name(model) for role, model in models.items()}
    pair = {"pair": cell.settings["pair"], "task": cell.task}
    tables = {"members": pd.DataFrame([{**pair, "role": role, "model": names[role]} for role in names])}
    groups = {role: context.once(halves, models[role], cell.task).test.shared_groups() for role in models}
    summaries = circuits[circuits["task"] == cell.task].set_index(["series", "model"])
    ratios = []
    # Every two of them are read "the first over the second".
    in_order = [role for role in ("dense", "control", "sparse") if role in models]
    for series in circuits["series"].unique():
        for role, other in combinations(in_order, 2):
            first, second = summaries.loc[(series, names[role])], summaries.loc[(series, names[other])]
            ratio = ratio_row(
                context.once(_curve_rows, models[role], cell.task, series),
                context.once(_curve_rows, models[other], cell.task, series),
                threshold=s.threshold,
                defined=bool(first["defined"] and second["defined"]),
                paired=first["examples"] == second["examples"],
                groups=groups[role],
                other_groups=groups[other],
                seed=s.seed,
            )
            about = {"series": series, "by": first["by"], "compared": f"{role}/{other}"}
            ratios.append({**pair, **about, "model": names[role], "other": names[other], **ratio})
    if ratios:
        tables["ratios"] = pd.DataFrame(ratios).assign(threshold=s.threshold)
    return CellResult(tables)


# ---- notices ---------------------------------------------------------------------------------------


def notices(context: Context[CircuitsSettings], tables: Tables) -> Iterator[str]:
    """Each curve's answer in one sentence, then each ratio's."""
    for row in tables["circuits"].to_dict("records"):
        what = f"{row['model']} on {row['task']}, ranked by {row['series']}"
        if not row["defined"]:
            yield (
                f"{what}: the explained effect is undefined, because {row['metric']} with all heads minus with none "
                f"is {row['effect']:+.3g} [{row['effect_lo']:+.3g}, {row['effect_hi']:+.3g}] and may be 0; use more "
                "examples, or a behaviour that depends on the heads"
            )
            continue
        verb = "explain" if row["action"] == "keep" else "remove"
        sentence = (
            f"{what}: {row['k']:.0f} of {row['of']} heads [{row['k_lo']:.0f}, {row['k_hi']:.0f}] {verb} "
            f"{row['threshold']:.0%} of the effect, n = {row['n']}"
        )
        if row["stays"] > row["k"]:
            sentence += f"; from {row['stays']:.0f} heads on, the share stays above the threshold"
        if row["effect"] < 0:
            sentence += "; the metric is lower with all heads than with none, so the effect is negative"
        yield sentence
    for row in table_of(tables, "ratios").to_dict("records"):
        if row["compared"] == "dense/sparse" and np.isfinite(row["ratio"]):
            yield (
                f"{row['task']}, ranked by {row['series']}: the circuit of {row['model']} has {row['ratio']:.2f}x the "
                f"heads of {row['other']} [{row['lo']:.2f}, {row['hi']:.2f}]"
            )


register(
    Study(
        name="circuits",
        question="How few heads explain the behaviour, and does sparse attention need fewer?",
        settings=CircuitsSettings,
        stages=stages,
        stage_names=lambda settings: ("orders", "curves", "comparison of pairs"),
        compute={"order": rank, "curve": measure, "attention": attend, "pair": compare},
        section=section,
        notices=notices,
    )
)
