"""The study `roles`: does a head help, interfere, or do nothing?

Gates are fitted on one half of each task's examples, in three fits of several seeds (`scores/gates/gating.py`): a free
fit, and two that begin where it ended. The curves are measured on some of the other half. Tables beside the
common ones: `gates` and `objective` (how each fit went), `fits` (where it ended, held-out examples included), `roles`
(every seed's label of every head), `shares` (how many heads have a label in every seed, in at least one, on average),
`order` (whether the curves have the expected order), `joint` (the most facilitating heads removed together, beside
random sets; rank correlation with exact ablation).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.charts.section import Tables, table_of
from headwise.heads import Scores, mask_gates
from headwise.heads.controls import random_heads
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.runs import Cell, CellResult
from headwise.scores import score
from headwise.scores.gates.fit import FitSettings, regulariser, sigmoid
from headwise.scores.gates.gating import FITS, UNIT, check_reference, default_reference, one_fit
from headwise.scores.gates.likelihood import GateLikelihood
from headwise.scores.gates.roles import ROLES, majority, most_facilitating, role_labels, role_scores
from headwise.scores.registry import versions
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.head_cards import card_cell, make_cards, strongest
from headwise.studies.roles import tables as rows
from headwise.studies.roles.charts import section
from headwise.studies.roles.findings import joint_sentence, order_sentence
from headwise.studies.roles.settings import QUICK_PIECE, RolesSettings, few_tokens
from headwise.studies.tables import fingerprint, input_table
from headwise.studies.workbench import Workbench
from headwise.tasks import Task
from headwise.tasks.registry import TooFewExamples

TOP = 10
"""Heads removed together in the check against random sets."""
GRADIENT_UPDATES = 8
"""Heads whose gates are both wide open are ranked by gradients over the examples of so many updates."""


@dataclass(frozen=True)
class Case:
    """One model on one task."""

    model: Model
    about: dict[str, Any]
    """Columns of every table: the display names."""
    chosen: dict[str, Any]
    """The settings that every cell depends on."""
    prints: dict[str, str]
    """The fingerprints that every cell depends on."""
    fit: FitSettings
    fitted_on: Task
    tested_on: Task
    numbers: list[int]
    """Of the examples in `tested_on`."""
    how: dict[str, Any]
    """How gates act, for an engine."""

    def likelihood(self, settings: RolesSettings, task: Task) -> GateLikelihood:
        piece = settings.batch_tokens or (QUICK_PIECE if settings.quick else None)
        return GateLikelihood(self.model, task, **self.how | {"batch_tokens": piece})


def cases(context: Context[RolesSettings], model: str) -> dict[str, Case]:
    """One model's tasks, by source."""
    s, loaded = context.settings, context.model(model)
    tasks = {source: _task(s, context.bench, loaded, source) for source in s.tasks}
    names = [task.name for task in tasks.values()]
    return {
        source: _case(context, model, task, task.name if names.count(task.name) == 1 else source)
        for source, task in tasks.items()
    }


def _case(context: Context[RolesSettings], name: str, task: Task, display_name: str) -> Case:
    s, model = context.settings, context.model(name)
    fit, held_out = s.fit, s.held_out
    if s.quick:
        few = few_tokens(task, model)
        fit, held_out = fit.replaced(batch=min(fit.batch, few)), min(held_out, 2 * few)
    reference = s.reference or default_reference(model)
    check_reference(model, reference)
    how: dict[str, Any] = {"reference": reference, "positions": s.positions}
    chosen: dict[str, Any] = {"n": len(task), "held_out": held_out, "seed": s.seed, "seeds": s.seeds}
    chosen |= {"fit": fit.model_dump(), "dtype": context.dtype(name), **how}
    prints = {"model": model.fingerprint, "task": task.fingerprint} | versions("gating", task)
    fitted_on, rest = task.halves()
    tested_on, numbers = rest.take(range(len(rest))[:held_out]), task.sides()[1][:held_out]
    about = {"model": context.display_name(name), "task": display_name}
    how |= {"reference_task": fitted_on, "seed": s.seed, "batch_tokens": s.batch_tokens}
    return Case(model, about, chosen, prints, fit, fitted_on, tested_on, numbers, how)


def case_of(context: Context[RolesSettings], cell: Cell) -> Case:
    return context.once(cases, cell.model)[cell.task]


def _task(settings: RolesSettings, bench: Workbench, model: Model, source: str) -> Task:
    """As many examples as are asked for, or as there are."""
    options = settings.options_of(source)
    try:
        return bench.task(source, model, settings.n, settings.seed, options)
    except TooFewExamples as few:
        if not few.count:
            raise
        return bench.task(source, model, few.count, settings.seed, options)


def stages(context: Context[RolesSettings]) -> Iterator[Sequence[Cell]]:
    s = context.settings
    pairs = [(model, source) for model in s.models for source in context.once(cases, model)]
    yield [_cell(context, "fit", *pair, "free fit") for pair in pairs]
    yield [
        _cell(context, "fit", *pair, f"{name} fit", {"start": context.once(logits, *pair, "free")})
        for pair in pairs
        for name in ("plus", "minus")
    ]
    cells = []
    for pair in pairs:
        gates = {name: sigmoid(context.once(logits, *pair, name)) for name in ("plus", "minus")}
        cells += [_cell(context, "roles", *pair, "roles", gates)]
        cells += [_cell(context, "curves", *pair, "curves", gates, ks=s.k)]
        if s.random_sets:
            # `controls` tells these random sets from earlier ones, which could hold heads of the top ten.
            sets: dict[str, Any] = {"random_sets": s.random_sets, "controls": "disjoint"}
            cells += [_cell(context, "joint", *pair, "joint", gates, **sets)]
    yield cells
    if s.cards:
        of_heads = [_card_cell(context, *pair) for pair in pairs]
        yield [cell for cell in of_heads if cell is not None]


def _card_cell(context: Context[RolesSettings], model: str, source: str) -> Cell | None:
    """Cards of the most facilitating heads."""
    case = context.once(cases, model)[source]
    scores = context.table("scores", model=model, task=source, kind="roles")
    how = {name: case.how[name] for name in ("reference", "positions")}
    return card_cell(context, model, source, case.tested_on, strongest(scores, context.settings.cards), how)


def cards(context: Context[RolesSettings], cell: Cell) -> CellResult:
    how = {name: cell.settings[name] for name in ("reference", "positions")}
    return make_cards(context, cell, case_of(context, cell).tested_on, **how)


def _cell(
    context: Context[RolesSettings],
    kind: str,
    model: str,
    task: str,
    part: str,
    arrays: Mapping[str, np.ndarray] | None = None,
    **further: Any,
) -> Cell:
    """A cell that also depends on `arrays` (through their hash) and on `further` settings."""
    case = context.once(cases, model)[task]
    prints = {name: fingerprint(str(array.shape), array) for name, array in (arrays or {}).items()}
    return context.cell(kind, model, task, part, case.chosen | further, case.prints | prints)


def _seeds(settings: RolesSettings) -> list[int]:
    return list(range(settings.seed, settings.seed + settings.seeds))


def logits(context: Context[RolesSettings], model: str, task: str, name: str) -> np.ndarray:
    """Where a fit ended `[S, L, H]`: a resumed run goes on from exactly there."""
    gates = context.table("gates", model=model, task=task, part=f"{name} fit")
    return rows.final_logits(gates, _seeds(context.settings), context.model(model).shape)


def _gates(context: Context[RolesSettings], cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Where the fits that open and close gates ended, each `[S, L, H]`."""
    plus, minus = (context.once(logits, cell.model, cell.task, name) for name in ("plus", "minus"))
    return sigmoid(plus), sigmoid(minus)


def fit_gates(context: Context[RolesSettings], cell: Cell) -> CellResult:
    """One fit, of all seeds."""
    s, case, name = context.settings, case_of(context, cell), cell.part.removesuffix(" fit")
    seeds, sign, likelihood = _seeds(s), FITS[name], case.likelihood(s, case.fitted_on)
    start = context.once(logits, cell.model, cell.task, "free") if name != "free" else None
    with context.progress(f"{name} fit on {case.about['task']}", case.fit.most(sign)) as advance:
        fit = one_fit(likelihood, name, seeds, case.fit, start, advance)
    ungated = np.ones((1, *case.model.shape))
    test = case.likelihood(s, case.tested_on)
    held_out = test.values(np.concatenate([ungated, fit.gates])).mean(axis=1)
    pull, _ = regulariser(fit.logits, case.model.exists, sign, case.fit)
    about = {**case.about, "fit": name}
    ends = rows.fit_rows(fit, seeds, case.fit.window, about).assign(
        held_out_objective=-held_out[1:] - sign * case.fit.strength * pull,
        held_out_likelihood=held_out[1:],
        ungated_likelihood=float(held_out[0]),
    )
    tables = {"gates": rows.gate_rows(fit, seeds, case.model.heads(), about)}
    tables |= {"objective": rows.objective_rows(fit, seeds, about), "fits": ends}
    return CellResult(tables, {"updates": fit.updates.tolist()})


def label_heads(context: Context[RolesSettings], cell: Cell) -> CellResult:
    """Each head's role."""
    s, case = context.settings, case_of(context, cell)
    model, heads = case.model, case.model.heads()
    plus, minus = _gates(context, cell)
    labels = role_labels(plus, minus)
    label, share = majority(labels)
    gates = np.where(model.exists, minus, np.nan)
    replaced_by = {"reference": case.how["reference"]}
    scores = Scores.from_examples(
        gates, **case.about, method="gating", signed=False, metric=UNIT, details=replaced_by
    )
    table = scores.table(s.seed)
    for name, values in role_scores(plus, minus).items():
        table[name] = [float(values[:, layer, head].mean()) for layer, head in heads]
    table["label"] = [str(label[head]) for head in heads]
    table["agreement"] = [float(share[head]) for head in heads]
    tables = {"scores": table, "roles": rows.role_rows(plus, minus, _seeds(s), heads, case.about)}
    return CellResult(tables | {"shares": rows.share_rows(labels, model.exists, case.about)})


def measure_curves(context: Context[RolesSettings], cell: Cell) -> CellResult:
    """All points of all curves of all seeds as one batch of gates."""
    s, case = context.settings, case_of(context, cell)
    model, heads, tested_on = case.model, case.model.heads(), case.tested_on
    ks = sorted({k for k in s.k or range(51) if 0 <= k <= len(heads)} | {0})
    gates = np.stack(
        [
            rows.curve_gates(plus, rows.role_orders(plus, minus, heads), ks[1:])
            for plus, minus in zip(*_gates(context, cell), strict=True)
        ]
    )  # S, roles, K, 2, L, H
    flat = gates.reshape(-1, *model.shape)
    with context.progress(f"curves on {case.about['task']}", len(flat) * len(tested_on)) as advance:
        engine = Engine(model, tested_on, metric("logprob"), advance=advance, **case.how)
        measured = engine.measure(flat).values
    both = measured.reshape(*gates.shape[:4], len(tested_on))  # S, roles, K, 2, E
    y = both[:, :, :, 0] - both[:, :, :, 1]
    # With nothing ablated both sides are the same gates, so the difference is 0 by definition.
    y = np.concatenate([np.zeros_like(y[:, :, :1]), y], axis=2)
    groups = tested_on.shared_groups()
    curves = rows.curve_rows(y, ks, case.about, groups)
    examples = rows.curve_examples(y, ks, _seeds(s), case.numbers, case.about, groups)
    order = pd.DataFrame([case.about | rows.expected_order(curves) | {"reference": case.how["reference"]}])
    inputs = input_table(tested_on, case.about, "curves", case.numbers)
    return CellResult({"curves": curves, "examples": examples, "order": order, "inputs": inputs})


def remove_together(context: Context[RolesSettings], cell: Cell) -> CellResult:
    """The ten most facilitating heads removed together, beside random sets of ten others; ablation one by one."""
    s, case = context.settings, case_of(context, cell)
    plus, minus = _gates(context, cell)
    model, heads, tested_on = case.model, case.model.heads(), case.tested_on
    order = most_facilitating(heads, minus, _gradients(s, case, minus), case.fit.bound)
    top = order[: min(TOP, len(heads) // 2)]
    sets = [random_heads(heads, top, f"{s.seed}/{i}").heads for i in range(s.random_sets)]
    gates = np.stack([mask_gates(chosen, model.shape) for chosen in [top, *sets]])
    steps = (len(gates) + len(heads)) * len(tested_on)
    with context.progress(f"ablation on {case.about['task']}", steps) as advance:
        engine = Engine(model, tested_on, metric("logprob"), advance=advance, **case.how)
        effects = engine.measure(gates).effects  # sets, E
        alone = score(model, tested_on, "ablation", metric="logprob", progress=advance, **case.how).values
    scores, exists = role_scores(plus.mean(axis=0), minus.mean(axis=0)), model.exists
    correlation = {
        f"{role}_correlation": stats.rank_correlation(scores[role][exists], alone[exists]) for role in ROLES
    }
    about = {**case.about, "heads": " ".join(map(str, top))}
    return CellResult(
        {"joint": rows.joint_rows(effects[0], effects[1:], correlation, about, tested_on.shared_groups())}
    )


def _gradients(settings: RolesSettings, case: Case, gates: np.ndarray) -> np.ndarray:
    """Gradients of the likelihood at each seed's own gates `[S, L, H]`, over the examples of a few updates."""
    likelihood = case.likelihood(settings, case.fitted_on)
    some = np.arange(min(GRADIENT_UPDATES * case.fit.batch, len(case.fitted_on)))
    parts = np.split(some, range(case.fit.batch, len(some), case.fit.batch))
    gradients = [likelihood.gradients(gates, np.tile(part, (len(gates), 1)))[1] for part in parts]
    return np.average(gradients, axis=0, weights=[len(part) for part in parts])


def notices(context: Context[RolesSettings], tables: Tables) -> Iterator[str]:
    """What replaced ablated heads, where that is not the same for all models; then for each model and task: did the
    curves come out as expected, and how far do seeds agree?"""
    for name in context.settings.models:
        if context.settings.reference is None and default_reference(context.model(name)) != "zero":
            yield (
                f"{context.display_name(name)}: a closed gate gives the head's mean output, not 0, because a norm "
                "after the heads undoes a common factor on them"
            )
    shares = tables["shares"].set_index(["model", "task", "label"]).sort_index()
    for row in tables["order"].to_dict("records"):
        yield f"{row['task']}, {row['model']}: {order_sentence(row)}"
        by_label = shares.loc[row["model"], row["task"]]
        counted = "; ".join(
            f"{by_label.loc[label, 'always']} {label} in every seed, {by_label.loc[label, 'ever']} in at least one"
            for label in ("facilitating", "interfering", "irrelevant")
        )
        seeds, heads = by_label["seeds"].iloc[0], by_label["heads"].iloc[0]
        yield f"{row['task']}, {row['model']}: of {heads} heads over {seeds} seeds, {counted}"
    if not context.settings.quick:  # whose few held-out examples may be harder than the others
        yield from rows.overfitted(tables["fits"])
    for row in table_of(tables, "joint").to_dict("records"):
        yield f"{row['task']}, {row['model']}: {joint_sentence(row)}"


register(
    Study(
        name="roles",
        question="Does a head help, interfere, or do nothing?",
        settings=RolesSettings,
        stages=stages,
        stage_names=lambda settings: (
            "free fits",
            "fits of both signs",
            "roles and curves",
            *(["cards"] if settings.cards else []),
        ),
        compute={
            "fit": fit_gates,
            "roles": label_heads,
            "curves": measure_curves,
            "joint": remove_together,
            "card": cards,
        },
        section=section,
        notices=notices,
    )
)
