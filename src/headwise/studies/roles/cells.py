"""The cells of the study `roles`: a free fit, two fits that begin where it ended, then what their gates say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Scores, mask_gates
from headwise.heads.controls import random_order
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.runs import Cell, CellResult
from headwise.scores import score
from headwise.scores.gates.fit import FitSettings, regulariser, sigmoid
from headwise.scores.gates.gating import FITS, UNIT, one_fit
from headwise.scores.gates.likelihood import GateLikelihood
from headwise.scores.gates.roles import ROLES, majority, most_facilitating, role_labels, role_scores
from headwise.scores.registry import versions
from headwise.studies.context import Context
from headwise.studies.roles import tables
from headwise.studies.roles.settings import QUICK_PIECE, RolesSettings, few_tokens
from headwise.studies.workbench import Workbench
from headwise.tasks import Task
from headwise.tasks.registry import TooFewExamples

TOP = 10
"""Heads removed together in the check against random sets."""
SLOPE_UPDATES = 8
"""By the slopes over the examples of so many updates, heads are told apart whose gates are both wide open."""


@dataclass(frozen=True)
class Place:
    """One model on one task."""

    model: Model
    about: dict[str, Any]
    """Columns of every table: the names shown."""
    chosen: dict[str, Any]
    """The settings that every cell depends on."""
    prints: dict[str, str]
    """The fingerprints that every cell depends on."""
    fit: FitSettings
    fitted_on: Task
    tested_on: Task
    numbers: list[int]
    """Of the examples in `tested_on`."""


def places(context: Context[RolesSettings], name: str) -> dict[str, Place]:
    """One model's tasks, by source."""
    s, model = context.settings, context.model(name)
    made = {source: _task(s, context.bench, model, source) for source in s.tasks}
    names = [task.name for task in made.values()]
    found = {}
    for source, task in made.items():
        called = task.name if names.count(task.name) == 1 else source
        fit, held_out = s.fit, s.held_out
        if s.quick:
            few = few_tokens(task, model)
            fit, held_out = fit.replaced(batch=min(fit.batch, few)), min(held_out, 2 * few)
        chosen = {
            "n": len(task),
            "held_out": held_out,
            "seed": s.seed,
            "seeds": s.seeds,
            "fit": fit.model_dump(),
            "reference": s.reference,
            "positions": s.positions,
            "dtype": str(model.dtype).removeprefix("torch."),
        }
        prints = {"model": model.fingerprint, "task": task.fingerprint} | versions("gating", task)
        fitted_on, rest = task.halves()
        tested_on, numbers = rest.take(range(len(rest))[:held_out]), task.sides()[1][:held_out]
        about = {"model": context.display_name(name), "task": called}
        found[source] = Place(model, about, chosen, prints, fit, fitted_on, tested_on, numbers)
    return found


def place(context: Context[RolesSettings], cell: Cell) -> Place:
    return context.once(places, cell.model)[cell.task]


def _task(settings: RolesSettings, bench: Workbench, model: Model, source: str) -> Task:
    """So many examples as are asked for, or as there are."""
    options = settings.options_of(source)
    try:
        return bench.task(source, model, settings.n, settings.seed, options)
    except TooFewExamples as few:
        if not few.found:
            raise
        return bench.task(source, model, few.found, settings.seed, options)


def stages(context: Context[RolesSettings]) -> Iterator[Sequence[Cell]]:
    s = context.settings
    here = [(name, source) for name in s.models for source in context.once(places, name)]
    yield [_cell(context, "fit", *one, "free fit") for one in here]
    yield [
        _cell(context, "fit", *one, f"{name} fit", {"start": context.once(logits, *one, "free")})
        for one in here
        for name in ("plus", "minus")
    ]
    rest = []
    for one in here:
        both = {name: sigmoid(context.once(logits, *one, name)) for name in ("plus", "minus")}
        rest += [_cell(context, "roles", *one, "roles", both)]
        rest += [_cell(context, "curves", *one, "curves", both, ks=s.ks)]
        if s.random_sets:
            rest += [_cell(context, "joint", *one, "joint", both, random_sets=s.random_sets)]
    yield rest


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
    here = context.once(places, model)[task]
    prints = {name: tables.arrays_fingerprint(array) for name, array in (arrays or {}).items()}
    return context.cell(kind, model, task, part, here.chosen | further, here.prints | prints)


def _seeds(settings: RolesSettings) -> list[int]:
    return list(range(settings.seed, settings.seed + settings.seeds))


def logits(context: Context[RolesSettings], model: str, task: str, name: str) -> np.ndarray:
    """Where a fit ended `[S, L, H]`: a resumed run goes on from exactly there."""
    rows = context.table("gates", model=model, task=task, part=f"{name} fit")
    return tables.final_logits(rows, _seeds(context.settings), context.model(model).shape)


def _gates(context: Context[RolesSettings], cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Where the fits that open and close gates ended, each `[S, L, H]`."""
    plus, minus = (context.once(logits, cell.model, cell.task, name) for name in ("plus", "minus"))
    return sigmoid(plus), sigmoid(minus)


def _likelihood(settings: RolesSettings, here: Place, task: Task) -> GateLikelihood:
    return GateLikelihood(
        here.model,
        task,
        reference=settings.reference,
        positions=settings.positions,
        reference_task=here.fitted_on,
        seed=settings.seed,
        batch_tokens=settings.batch_tokens or (QUICK_PIECE if settings.quick else None),
    )


def fit_gates(context: Context[RolesSettings], cell: Cell) -> CellResult:
    """One fit, of all seeds."""
    settings, here, name = context.settings, place(context, cell), cell.part.removesuffix(" fit")
    seeds = _seeds(settings)
    label = f"{name} fit on {here.about['task']}"
    with context.progress(label, here.fit.most(FITS[name])) as advance:
        fit = one_fit(
            _likelihood(settings, here, here.fitted_on),
            name,
            seeds,
            here.fit,
            context.once(logits, cell.model, cell.task, "free") if name != "free" else None,
            advance,
        )
    ones = np.ones((1, *here.model.shape))
    test = _likelihood(settings, here, here.tested_on)
    held_out = test.values(np.concatenate([ones, fit.gates])).mean(axis=1)
    sign = FITS[name]
    pull, _ = regulariser(fit.logits, here.model.exists, sign, here.fit)
    about = {**here.about, "fit": name}
    heads = here.model.heads()
    return CellResult(
        {
            "gates": tables.gate_rows(fit, seeds, heads, about),
            "objective": tables.objective_rows(fit, seeds, about),
            "fits": tables.fit_rows(
                fit,
                seeds,
                held_out[1:],
                -held_out[1:] - sign * here.fit.strength * pull,
                float(held_out[0]),
                here.fit,
                about,
            ),
        },
        {"updates": fit.updates.tolist()},
    )


def label_heads(context: Context[RolesSettings], cell: Cell) -> CellResult:
    """Each head's role."""
    settings, here = context.settings, place(context, cell)
    model, seeds, heads = here.model, _seeds(settings), here.model.heads()
    plus, minus = _gates(context, cell)
    labels = role_labels(plus, minus)
    label, share = majority(labels)
    scores = Scores.from_examples(
        np.where(model.exists, minus, np.nan), **here.about, method="gating", signed=False, metric=UNIT
    )
    table = scores.table(settings.seed)
    for name, values in role_scores(plus, minus).items():
        table[name] = [float(values[:, layer, head].mean()) for layer, head in heads]
    table["label"] = [str(label[head]) for head in heads]
    table["agreement"] = [float(share[head]) for head in heads]
    return CellResult(
        {
            "scores": table,
            "roles": tables.role_rows(plus, minus, seeds, heads, here.about),
            "shares": tables.share_rows(labels, model.exists, here.about),
        }
    )


def measure_curves(context: Context[RolesSettings], cell: Cell) -> CellResult:
    """All points of all curves of all seeds as one batch of gates."""
    settings, here = context.settings, place(context, cell)
    model, seeds, heads = here.model, _seeds(settings), here.model.heads()
    tested_on = here.tested_on
    ks = sorted({k for k in settings.ks or range(51) if 0 <= k <= len(heads)} | {0})
    later = ks[1:]
    gates = np.stack(
        [
            tables.curve_gates(plus, tables.role_orders(plus, minus, heads), later)
            for plus, minus in zip(*_gates(context, cell), strict=True)
        ]
    )  # S, roles, K, 2, L, H
    flat = gates.reshape(-1, *model.shape)
    label = f"curves on {here.about['task']}"
    with context.progress(label, len(flat) * len(tested_on)) as advance:
        engine = Engine(
            model,
            tested_on,
            metric("logprob"),
            reference=settings.reference,
            positions=settings.positions,
            reference_task=here.fitted_on,
            seed=settings.seed,
            batch_tokens=settings.batch_tokens,
            advance=advance,
        )
        measured = engine.measure(flat).values
    both = measured.reshape(*gates.shape[:4], len(tested_on))  # S, roles, K, 2, E
    y = both[:, :, :, 0] - both[:, :, :, 1]
    # With nothing ablated both sides are the same gates, so the difference is 0 by definition.
    y = np.concatenate([np.zeros_like(y[:, :, :1]), y], axis=2)
    groups = tested_on.shared_groups()
    curves = tables.curve_rows(y, ks, settings.seed, here.about, groups)
    order = pd.DataFrame([here.about | tables.expected_order(curves)])
    return CellResult(
        {
            "curves": curves,
            "examples": tables.curve_examples(y, ks, seeds, here.numbers, here.about, groups),
            "order": order,
        }
    )


def remove_together(context: Context[RolesSettings], cell: Cell) -> CellResult:
    """The ten most facilitating heads removed together, beside random sets of ten; ablation one by one."""
    settings, here = context.settings, place(context, cell)
    plus, minus = _gates(context, cell)
    model, heads = here.model, here.model.heads()
    tested_on = here.tested_on
    order = most_facilitating(heads, minus, _gradients(settings, here, minus), here.fit.bound)
    top = order[: min(TOP, len(heads) // 2)]
    sets = [random_order(heads, f"{settings.seed}/{i}")[: len(top)] for i in range(settings.random_sets)]
    gates = np.stack([mask_gates(chosen, model.shape) for chosen in [top, *sets]])
    how: dict[str, Any] = {
        "reference": settings.reference,
        "positions": settings.positions,
        "reference_task": here.fitted_on,
        "seed": settings.seed,
        "batch_tokens": settings.batch_tokens,
    }
    steps = (len(gates) + len(heads)) * len(tested_on)
    with context.progress(f"ablation on {here.about['task']}", steps) as advance:
        engine = Engine(model, tested_on, metric("logprob"), advance=advance, **how)
        effects = engine.measure(gates).effects  # sets, E
        alone = score(model, tested_on, "ablation", metric="logprob", advance=advance, **how).values
    scores = role_scores(plus.mean(axis=0), minus.mean(axis=0))
    exists = model.exists
    correlation = {
        f"{role}_correlation": stats.rank_correlation(scores[role][exists], alone[exists]) for role in ROLES
    }
    about = {**here.about, "heads": " ".join(map(str, top))}
    return CellResult({"joint": tables.joint_rows(effects[0], effects[1:], correlation, about)})


def _gradients(settings: RolesSettings, here: Place, gates: np.ndarray) -> np.ndarray:
    """Gradients of the likelihood at each seed's own gates `[S, L, H]`, over as many examples as a few updates see."""
    likelihood = _likelihood(settings, here, here.fitted_on)
    some = np.arange(min(SLOPE_UPDATES * here.fit.batch, len(here.fitted_on)))
    parts = np.split(some, range(here.fit.batch, len(some), here.fit.batch))
    found = [likelihood.gradients(gates, np.tile(part, (len(gates), 1)))[1] for part in parts]
    return np.average(found, axis=0, weights=[len(part) for part in parts])
