"""The study `roles`: does a head help, hinder, or do nothing?

Gates are fitted on one half of each task's examples, in three fits of several seeds (`scores/gating.py`); the
curves are measured on some of the other half. Tables beside the contract's: `gates` and `objective` (how each fit
went), `fits` (where it ended, held-out examples included), `roles` (every seed's label of every head), `shares` (how
many heads have a label always, ever, on average), `order` (whether the curves came out as the roles promise), `joint`
(the most facilitating heads removed together, beside random sets; rank correlation with exact ablation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Scores, mask_gates
from headwise.heads.controls import random_order
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.progress import progress
from headwise.runs import Cell, CellResult, RunFolder, execute, read_table
from headwise.scores import score
from headwise.scores.gates.fit import FitSettings, regulariser, sigmoid
from headwise.scores.gates.gating import FITS, UNIT, one_fit
from headwise.scores.gates.likelihood import GateLikelihood
from headwise.scores.gates.roles import ROLES, majority, most_facilitating, role_labels, role_scores
from headwise.scores.registry import versions
from headwise.studies.base import register
from headwise.studies.figures import save_figures
from headwise.studies.roles import tables
from headwise.studies.roles.charts import charts
from headwise.studies.roles.settings import QUICK_PIECE, RolesSettings, few_tokens, quickened
from headwise.studies.workbench import Workbench
from headwise.tasks import Task
from headwise.tasks.registry import TooFewExamples

TOP = 10
"""Heads removed together in the check against random sets."""
SLOPE_UPDATES = 8
"""By the slopes over the examples of so many updates, heads are told apart whose gates are both wide open."""


@dataclass
class _Place:
    """One model on one task: what the cells of both need."""

    model: Model
    about: dict[str, Any]
    """Columns of every table: the names shown."""
    cell: dict[str, Any]
    """What every cell of this place is keyed by: model, task, settings, fingerprints."""
    fit: FitSettings
    fitted_on: Task
    tested_on: Task
    numbers: list[int]
    """Of the examples in `tested_on`."""
    logits: dict[str, np.ndarray] = field(default_factory=dict)
    """Where each fit ended `[S, L, H]`, as it is known."""

    @property
    def plus(self) -> np.ndarray:
        return sigmoid(self.logits["plus"])

    @property
    def minus(self) -> np.ndarray:
        return sigmoid(self.logits["minus"])


@register("roles", question="Does a head help, hinder, or do nothing?", settings=RolesSettings)
def carry_out(settings: RolesSettings, bench: Workbench, folder: RunFolder) -> None:
    if settings.quick:
        settings = quickened(settings)
    places = _places(settings, bench)
    compute = partial(_compute, settings, bench, places)
    execute(folder, [_cell(p, "free fit") for p in places.values()], compute, progress=bench.progress)
    _read_fits(settings, folder, places, ("free",))
    pulled = [
        _cell(p, f"{name} fit", {"start": p.logits["free"]})
        for p in places.values()
        for name in ("plus", "minus")
    ]
    execute(folder, pulled, compute, progress=bench.progress)
    _read_fits(settings, folder, places, ("plus", "minus"))
    rest = []
    for p in places.values():
        both = {"plus": p.plus, "minus": p.minus}
        rest += [_cell(p, "roles", both), _cell(p, "curves", both, ks=settings.ks)]
        if settings.random_sets:
            rest += [_cell(p, "joint", both, random_sets=settings.random_sets)]
    execute(folder, rest, compute, progress=bench.progress)
    save_figures(folder, charts)
    _tell(folder, settings.quick)


# ---- cells -----------------------------------------------------------------------------------------


def _places(settings: RolesSettings, bench: Workbench) -> dict[tuple[str, str], _Place]:
    shown = bench.shown(settings.models)
    places = {}
    for name in settings.models:
        model = bench.model(name)
        made = {source: _task(settings, bench, model, source) for source in settings.tasks}
        names = [task.name for task in made.values()]
        for source, task in made.items():
            called = task.name if names.count(task.name) == 1 else source
            fit, held_out = settings.fit, settings.held_out
            if settings.quick:
                few = few_tokens(task, model)
                fit, held_out = fit.replaced(batch=min(fit.batch, few)), min(held_out, 2 * few)
            chosen = {
                "n": len(task),
                "held_out": held_out,
                "seed": settings.seed,
                "seeds": settings.seeds,
                "fit": fit.model_dump(),
                "reference": settings.reference,
                "positions": settings.positions,
                "dtype": str(model.dtype).removeprefix("torch."),
            }
            prints = {"model": model.fingerprint, "task": task.fingerprint} | versions("gating", task)
            key = {"model": name, "task": source, "settings": chosen, "fingerprints": prints}
            fitted_on, rest = task.halves()
            tested_on, numbers = rest.take(range(len(rest))[:held_out]), task.sides()[1][:held_out]
            about = {"model": shown[name], "task": called}
            places[name, source] = _Place(model, about, key, fit, fitted_on, tested_on, numbers)
    return places


def _task(settings: RolesSettings, bench: Workbench, model: Model, source: str) -> Task:
    """So many examples as are asked for, or as there are."""
    options = settings.options_of(source)
    try:
        return bench.task(source, model, settings.n, settings.seed, options)
    except TooFewExamples as few:
        if not few.found:
            raise
        return bench.task(source, model, few.found, settings.seed, options)


def _cell(place: _Place, part: str, arrays: Mapping[str, np.ndarray] | None = None, **further: Any) -> Cell:
    """A cell that also depends on `arrays` (through their hash) and on `further` settings."""
    prints = {name: tables.arrays_fingerprint(array) for name, array in (arrays or {}).items()}
    key = place.cell
    return Cell(
        "roles", key["model"], key["task"], part, key["settings"] | further, key["fingerprints"] | prints
    )


def _compute(
    settings: RolesSettings, bench: Workbench, places: dict[tuple[str, str], _Place], cell: Cell
) -> CellResult:
    place = places[cell.model, cell.task]
    if cell.part.endswith(" fit"):
        return _fit(settings, bench, place, cell.part.removesuffix(" fit"))
    if cell.part == "roles":
        return _roles(settings, place)
    if cell.part == "curves":
        return _curves(settings, bench, place)
    return _joint(settings, bench, place)


def _seeds(settings: RolesSettings) -> list[int]:
    return list(range(settings.seed, settings.seed + settings.seeds))


def _read_fits(
    settings: RolesSettings, folder: RunFolder, places: dict[tuple[str, str], _Place], names: tuple[str, ...]
) -> None:
    """Where the fits ended, from the run's own table: a resumed run goes on from exactly there."""
    table = read_table(folder, "gates")
    for place in places.values():
        own = table[(table["model"] == place.about["model"]) & (table["task"] == place.about["task"])]
        for name in names:
            part = own[own["fit"] == name]
            place.logits[name] = tables.final_logits(part, _seeds(settings), place.model.shape)


def _likelihood(settings: RolesSettings, place: _Place, task: Task) -> GateLikelihood:
    return GateLikelihood(
        place.model,
        task,
        reference=settings.reference,
        positions=settings.positions,
        reference_task=place.fitted_on,
        seed=settings.seed,
        batch_tokens=settings.batch_tokens or (QUICK_PIECE if settings.quick else None),
    )


def _fit(settings: RolesSettings, bench: Workbench, place: _Place, name: str) -> CellResult:
    seeds = _seeds(settings)
    label = f"{name} fit on {place.about['task']}"
    with progress(label, place.fit.most(FITS[name]), show=bench.progress) as advance:
        fit = one_fit(
            _likelihood(settings, place, place.fitted_on),
            name,
            seeds,
            place.fit,
            place.logits.get("free") if name != "free" else None,
            advance,
        )
    ones = np.ones((1, *place.model.shape))
    test = _likelihood(settings, place, place.tested_on)
    held_out = test.values(np.concatenate([ones, fit.gates])).mean(axis=1)
    sign = FITS[name]
    pull, _ = regulariser(fit.logits, place.model.exists, sign, place.fit)
    about = {**place.about, "fit": name}
    heads = place.model.heads()
    return CellResult(
        {
            "gates": tables.gate_rows(fit, seeds, heads, about),
            "objective": tables.objective_rows(fit, seeds, about),
            "fits": tables.fit_rows(
                fit,
                seeds,
                held_out[1:],
                -held_out[1:] - sign * place.fit.strength * pull,
                float(held_out[0]),
                place.fit,
                about,
            ),
        },
        {"updates": fit.updates.tolist()},
    )


def _roles(settings: RolesSettings, place: _Place) -> CellResult:
    model, seeds, heads = place.model, _seeds(settings), place.model.heads()
    plus, minus = place.plus, place.minus
    labels = role_labels(plus, minus)
    label, share = majority(labels)
    scores = Scores.from_examples(
        np.where(model.exists, minus, np.nan), **place.about, method="gating", signed=False, metric=UNIT
    )
    table = scores.table(settings.seed)
    for name, values in role_scores(plus, minus).items():
        table[name] = [float(values[:, layer, head].mean()) for layer, head in heads]
    table["label"] = [str(label[head]) for head in heads]
    table["agreement"] = [float(share[head]) for head in heads]
    return CellResult(
        {
            "scores": table,
            "roles": tables.role_rows(plus, minus, seeds, heads, place.about),
            "shares": tables.share_rows(labels, model.exists, place.about),
        }
    )


def _curves(settings: RolesSettings, bench: Workbench, place: _Place) -> CellResult:
    """All points of all curves of all seeds as one batch of gates."""
    model, seeds, heads = place.model, _seeds(settings), place.model.heads()
    tested_on = place.tested_on
    ks = sorted({k for k in settings.ks or range(51) if 0 <= k <= len(heads)} | {0})
    later = ks[1:]
    gates = np.stack(
        [
            tables.curve_gates(plus, tables.role_orders(plus, minus, heads), later)
            for plus, minus in zip(place.plus, place.minus, strict=True)
        ]
    )  # S, roles, K, 2, L, H
    flat = gates.reshape(-1, *model.shape)
    label = f"curves on {place.about['task']}"
    with progress(label, len(flat) * len(tested_on), show=bench.progress) as advance:
        engine = Engine(
            model,
            tested_on,
            metric("logprob"),
            reference=settings.reference,
            positions=settings.positions,
            reference_task=place.fitted_on,
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
    curves = tables.curve_rows(y, ks, settings.seed, place.about, groups)
    order = pd.DataFrame([place.about | tables.expected_order(curves)])
    return CellResult(
        {
            "curves": curves,
            "examples": tables.curve_examples(y, ks, seeds, place.numbers, place.about, groups),
            "order": order,
        }
    )


def _joint(settings: RolesSettings, bench: Workbench, place: _Place) -> CellResult:
    """The ten most facilitating heads removed together, beside random sets of ten; ablation one by one."""
    model, heads = place.model, place.model.heads()
    tested_on = place.tested_on
    order = most_facilitating(heads, place.minus, _slopes(settings, place, place.minus), place.fit.bound)
    top = order[: min(TOP, len(heads) // 2)]
    sets = [random_order(heads, f"{settings.seed}/{i}")[: len(top)] for i in range(settings.random_sets)]
    gates = np.stack([mask_gates(chosen, model.shape) for chosen in [top, *sets]])
    how: dict[str, Any] = {
        "reference": settings.reference,
        "positions": settings.positions,
        "reference_task": place.fitted_on,
        "seed": settings.seed,
        "batch_tokens": settings.batch_tokens,
    }
    steps = (len(gates) + len(heads)) * len(tested_on)
    with progress(f"ablation on {place.about['task']}", steps, show=bench.progress) as advance:
        engine = Engine(model, tested_on, metric("logprob"), advance=advance, **how)
        effects = engine.measure(gates).effects  # sets, E
        alone = score(model, tested_on, "ablation", metric="logprob", advance=advance, **how).values
    scores = role_scores(place.plus.mean(axis=0), place.minus.mean(axis=0))
    exists = model.exists
    correlation = {
        f"{role}_correlation": stats.rank_correlation(scores[role][exists], alone[exists]) for role in ROLES
    }
    about = {**place.about, "heads": " ".join(map(str, top))}
    return CellResult({"joint": tables.joint_rows(effects[0], effects[1:], correlation, about)})


def _slopes(settings: RolesSettings, place: _Place, gates: np.ndarray) -> np.ndarray:
    """Slopes of the likelihood at each seed's own gates `[S, L, H]`, over as many examples as a few updates see."""
    likelihood = _likelihood(settings, place, place.fitted_on)
    some = np.arange(min(SLOPE_UPDATES * place.fit.batch, len(place.fitted_on)))
    parts = np.split(some, range(place.fit.batch, len(some), place.fit.batch))
    found = [likelihood.slopes(gates, np.tile(part, (len(gates), 1)))[1] for part in parts]
    return np.average(found, axis=0, weights=[len(part) for part in parts])


# ---- what the user sees ----------------------------------------------------------------------------


def _tell(folder: RunFolder, quick: bool) -> None:
    """For each model and task: did the curves come out as expected, and how far do seeds agree?"""
    shares = read_table(folder, "shares")
    for row in read_table(folder, "order").to_dict("records"):
        folder.notice(f"{row['task']}, {row['model']}: {tables.order_sentence(row)}")
        own = shares[(shares["model"] == row["model"]) & (shares["task"] == row["task"])].set_index("label")
        counted = ", ".join(
            f"{label} {own.loc[label, 'always']} always / {own.loc[label, 'ever']} ever"
            for label in ("facilitating", "interfering", "irrelevant")
        )
        seeds, heads = own["seeds"].iloc[0], own["heads"].iloc[0]
        folder.notice(f"{row['task']}, {row['model']}: of {heads} heads over {seeds} seeds {counted}")
    if not quick:  # whose few held-out examples may be harder than the others
        for sentence in tables.overfitted(read_table(folder, "fits")):
            folder.notice(sentence)
    if "joint" in folder.written:
        for row in read_table(folder, "joint").to_dict("records"):
            folder.notice(
                f"{row['task']}, {row['model']}: removing the most facilitating heads together costs "
                f"{row['effect']:.2f} nats, more than {row['larger_than']:.1%} of {row['sets']} random sets (mean "
                f"{row['random_mean']:.2f}); rank correlation of facilitation with exact ablation "
                f"{row['facilitation_correlation']:+.2f}"
            )
