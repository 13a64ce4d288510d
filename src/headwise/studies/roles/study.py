"""The study `roles`: does a head help, interfere, or do nothing?

Gates are fitted on one half of each task's examples, in three fits of several seeds (`scores/gates/gating.py`): a free
fit, and two that begin where it ended. The curves are measured on some of the other half. Tables beside the
common ones: `gates` and `objective` (how each fit went), `fits` (where it ended, held-out examples included), `roles`
(every seed's label of every head), `shares` (how many heads have a label in every seed, in at least one, on average),
`order` (whether the curves have the expected order), `joint` (the most facilitating heads removed together, beside
random sets; rank correlation with exact ablation).

S seeds, L layers, H heads, K points of a curve, E examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import mask_gates
from headwise.heads.controls import random_heads
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.progress import Advance
from headwise.runs import Call, Job, step
from headwise.runs.step import BACKWARD
from headwise.scores import score
from headwise.scores.gates.fit import Fit, FitSettings, regulariser
from headwise.scores.gates.gating import (
    FITS,
    ROLES,
    always_and_ever,
    check_reference,
    default_reference,
    gate_scores,
    majority,
    most_facilitating,
    one_fit,
    role_labels,
    role_scores,
)
from headwise.scores.gates.likelihood import GateLikelihood
from headwise.scores.registry import method as method_named
from headwise.studies.base import study
from headwise.studies.plan import some_heads
from headwise.studies.roles.curves import curve_gates, curve_rows, expected_order
from headwise.studies.roles.section import section
from headwise.studies.roles.settings import QUICK_PIECE, RolesSettings, few_tokens
from headwise.studies.run import Pair, Run
from headwise.studies.steps import input_table, make_cards, top_cards
from headwise.studies.workbench import Workbench
from headwise.tables.codec import stored
from headwise.tables.frames import long_table
from headwise.tasks import Task
from headwise.tasks.registry import TooFewExamples

TOP = 10
"""Heads removed together in the check against random sets."""
GRADIENT_UPDATES = 8
"""Heads whose gates are both wide open are ranked by gradients over the examples of so many updates."""


@dataclass(frozen=True, eq=False)
class Case:
    """One model on one task: what every step depends on."""

    model: Model
    fitted_on: Task
    tested_on: Task
    """Examples of the other half."""
    fit: FitSettings
    seeds: tuple[int, ...]
    reference: str
    positions: Any
    columns: dict[str, str] = field(compare=False)
    """What the tables call the model and the task."""
    batch_tokens: int | None = field(compare=False)
    """Most tokens of one backward pass; None for what suits the device."""

    @property
    def ablation(self) -> dict[str, Any]:
        """How gates act, for an engine."""
        options = {"reference": self.reference, "positions": self.positions, "seed": self.seeds[0]}
        return options | {"reference_task": self.fitted_on}

    @property
    def update_rows(self) -> int:
        """Forward rows of one update of a fit."""
        return len(self.seeds) * min(self.fit.batch, len(self.fitted_on))

    def likelihood(self, task: Task, advance: Advance | None = None) -> GateLikelihood:
        options = self.ablation | {"batch_tokens": self.batch_tokens, "advance": advance}
        return GateLikelihood(self.model, task, **options)


def plan(run: Run, s: RolesSettings) -> Iterator[Call[Any]]:
    for case in _cases(run, s):
        gates = np.ones((len(case.seeds), *case.model.shape))
        yield from (fit_gates(case, name) for name in FITS)
        yield measure_curves(case, gates, gates, _ks(s, case))
        if s.random_sets:
            yield remove_together(case, gates, gates, s.random_sets)
        if s.cards:
            yield make_cards(case.model, case.tested_on, some_heads(case.model, s.cards))


def _cases(run: Run, s: RolesSettings) -> list[Case]:
    pairs = run.pairs(task=lambda source, model: _task(s, run.bench, model, source))
    return [_case(s, pair) for pair in pairs]


def _ks(s: RolesSettings, case: Case) -> list[int]:
    return sorted({k for k in s.k or range(51) if 0 <= k <= len(case.model.heads())} | {0})


@study("Does a head help, interfere, or do nothing?", RolesSettings, section, plan)
def roles(run: Run, s: RolesSettings) -> None:
    cases = _cases(run, s)
    for case in cases:
        if s.reference is None and case.reference != "zero":
            run.say(
                f"{case.columns['model']}: a closed gate gives the head's mean output, not 0, because a norm after the "
                "heads undoes a common factor on them"
            )

    fits = dict(run.all({(case, "free"): fit_gates(case, "free") for case in cases}, "free fits"))
    signed = {
        (case, name): fit_gates(case, name, fits[case, "free"].fit.logits)
        for case in cases
        for name in ("plus", "minus")
    }
    fits |= run.all(signed, "fits of both signs")
    for (case, name), ended in fits.items():
        columns = case.columns | {"fit": name}
        run.tables(ended.fit.tables(case.seeds, case.model.heads(), columns))
        run.table("fits", pd.DataFrame({**columns, **ended.seeds}))
        if name == "plus" and not s.quick:  # whose few held-out examples may be harder than the others
            run.say_of(case.columns, *overfitted(ended.seeds))

    calls: dict[tuple[Case, str], Call[Any]] = {}
    gates = {case: (fits[case, "plus"].fit.gates, fits[case, "minus"].fit.gates) for case in cases}
    for case in cases:
        calls[case, "curves"] = measure_curves(case, *gates[case], _ks(s, case))
        if s.random_sets:
            calls[case, "joint"] = remove_together(case, *gates[case], s.random_sets)
    measured = run.all(calls, "curves and joint ablation")

    cards = []
    for case in cases:
        labelled, curves = role_tables(case, *gates[case]), measured[case, "curves"]
        run.tables(labelled)
        run.tables(curves, **case.columns)
        run.table("inputs", input_table(case.tested_on, "curves").assign(**case.columns))
        order = case.columns | expected_order(curves["curves"])
        run.table("order", pd.DataFrame([order | {"reference": case.reference}]))
        if s.random_sets:
            run.table("joint", pd.DataFrame({**case.columns, **measured[case, "joint"]}))
        card_options = {"reference": case.reference, "positions": case.positions, "seed": s.seed}
        heads = labelled["scores"]
        cards.append((case.columns, top_cards(case.model, case.tested_on, heads, s.cards, **card_options)))
    run.add_cards(cards)


def _task(settings: RolesSettings, bench: Workbench, model: Model, source: str) -> Task:
    """As many examples as are asked for, or as there are."""
    options = settings.options_of(source)
    try:
        return bench.task(source, model, settings.n, settings.seed, options)
    except TooFewExamples as few:
        if not few.count:
            raise
        return bench.task(source, model, few.count, settings.seed, options)


def _case(s: RolesSettings, pair: Pair) -> Case:
    model, fit, held_out = pair.model, s.fit, s.held_out
    if s.quick:
        few = few_tokens(pair.task, model)
        fit, held_out = fit.replaced(batch=min(fit.batch, few)), min(held_out, 2 * few)
    reference = s.reference or default_reference(model)
    check_reference(model, reference)
    fitted_on, rest = pair.task.halves()
    tested_on = rest.take(range(len(rest))[:held_out])
    seeds = tuple(range(s.seed, s.seed + s.seeds))
    batch_tokens = s.batch_tokens or (QUICK_PIECE if s.quick else None)
    return Case(model, fitted_on, tested_on, fit, seeds, reference, s.positions, pair.columns, batch_tokens)


# ---- fits ------------------------------------------------------------------------------------------


@stored
@dataclass(frozen=True)
class Ended:
    """One fit of all seeds, and where it ended."""

    fit: Fit
    seeds: pd.DataFrame
    """A row per seed: how many updates, the means over the last window of them, and the same on held-out examples."""


@step(
    version=lambda **_: method_named("gating").version,
    cost=lambda case, name, **_: (
        case.fit.most(FITS[name]) * case.update_rows + (1 + len(case.seeds)) * len(case.tested_on)
    ),
    label="{name} fit on {case.columns[task]} with {case.columns[model]}",
    unit=BACKWARD,
)
def fit_gates(job: Job, case: Case, name: str, start: np.ndarray | None = None) -> Ended:
    """One of `FITS`, of all seeds; start: the logits that the free fit ended with."""
    sign, settings, rows = FITS[name], case.fit, case.update_rows
    likelihood = case.likelihood(case.fitted_on)
    fit = one_fit(likelihood, name, case.seeds, settings, start, lambda updates: job.advance(updates * rows))
    ungated = np.ones((1, *case.model.shape))
    test = case.likelihood(case.tested_on, job.advance)
    held_out = test.values(np.concatenate([ungated, fit.gates])).mean(axis=1)
    pull, _ = regulariser(fit.logits, case.model.exists, sign, settings)
    last = [(slice(max(0, count - settings.window), count), i) for i, count in enumerate(fit.updates)]
    seeds = {
        "seed": np.asarray(case.seeds, dtype=np.int32),
        "updates": fit.updates.astype(np.int32),
        "stopped_early": fit.updates < len(fit.objective),
        "objective": [float(fit.objective[end].mean()) for end in last],
        "likelihood": [float(fit.likelihood[end].mean()) for end in last],
        "held_out_objective": -held_out[1:] - sign * settings.strength * pull,
        "held_out_likelihood": held_out[1:],
        "ungated_likelihood": float(held_out[0]),
    }
    return Ended(fit, pd.DataFrame(seeds))


def overfitted(seeds: pd.DataFrame) -> list[str]:
    """A sentence if gates that are pulled open help their own examples and harm held-out ones."""
    fitted, held_out, ungated = (seeds[f"{of}likelihood"].mean() for of in ("", "held_out_", "ungated_"))
    if not held_out < ungated < fitted:
        return []
    return [
        f"the gates OVERFIT: log probability per token {fitted:.2f} nats on the examples they were fitted to, "
        f"{held_out:.2f} on held-out ones ({ungated:.2f} without gates); use more examples: a larger n, or your own "
        "file"
    ]


# ---- roles -----------------------------------------------------------------------------------------


def role_tables(case: Case, plus: np.ndarray, minus: np.ndarray) -> dict[str, pd.DataFrame]:
    """Each head's role, from where the fits that open and close gates ended, each `[S, L, H]`.

    `scores`: the mean over seeds, and the label of most; `roles`: every seed; `shares`: heads that have a label always,
    ever, and in the average seed.
    """
    heads, exists = case.model.heads(), case.model.exists
    layers, numbers = np.array(heads).T
    estimates, labels = role_scores(plus, minus), role_labels(plus, minus)
    label, share = majority(labels)
    scores = gate_scores(minus, exists, case.reference, method="gating", **case.columns).table(case.seeds[0])
    scores = scores.assign(
        **{role: [float(values[:, i, j].mean()) for i, j in heads] for role, values in estimates.items()},
        label=label[layers, numbers],
        agreement=share[layers, numbers],
    )
    every = {"plus": plus, "minus": minus, **estimates, "label": labels}
    axes: list[dict[str, Any]] = [{"seed": case.seeds}, {"layer": layers, "head": numbers}]
    of_seeds = long_table(
        case.columns, axes, {name: array[:, layers, numbers] for name, array in every.items()}
    )
    shares = pd.DataFrame([{**case.columns, **row} for row in always_and_ever(labels, exists)])
    return {
        "scores": scores,
        "roles": of_seeds,
        "shares": shares.assign(share=shares["mean"] / shares["heads"]),
    }


# ---- curves ----------------------------------------------------------------------------------------


@step(
    cost=lambda case, ks, **_: (
        len(case.seeds) * len(ROLES) * 2 * sum(k > 0 for k in ks) * len(case.tested_on)
    ),
    label="curves on {case.columns[task]} with {case.columns[model]}",
)
def measure_curves(
    job: Job, case: Case, plus: np.ndarray, minus: np.ndarray, ks: Sequence[int]
) -> dict[str, pd.DataFrame]:
    """The tables `curves` and `examples`: all points of all curves of all seeds as one batch of gates.

    ks: numbers of ablated heads, 0 first.
    """
    tested_on, groups = case.tested_on, case.tested_on.shared_groups()
    of_seeds = zip(plus, minus, strict=True)
    gates = np.stack([curve_gates(*gates, case.model.heads(), ks[1:]) for gates in of_seeds])
    engine = Engine(case.model, tested_on, metric("logprob"), advance=job.advance, **case.ablation)
    measured = engine.measure(gates.reshape(-1, *case.model.shape)).values
    both = measured.reshape(*gates.shape[:4], len(tested_on))  # S, roles, K, 2, E
    y = both[:, :, :, 0] - both[:, :, :, 1]
    # With nothing ablated both sides are the same gates, so the difference is 0 by definition.
    y = np.concatenate([np.zeros_like(y[:, :, :1]), y], axis=2)
    numbers: dict[str, Any] = {"example": tested_on.numbers}
    numbers |= {} if groups is None else {"group": np.array(groups, dtype=object)}
    axes: list[dict[str, Any]] = [{"draw": case.seeds}, {"series": ROLES}, {"k": ks}, numbers]
    examples = long_table({"action": "mask", "metric": "logprob"}, axes, {"value": y})
    return {"curves": curve_rows(y, ks, groups).assign(reference=case.reference), "examples": examples}


# ---- the most facilitating heads together ----------------------------------------------------------


@step(
    cost=lambda case, random_sets, **_: (
        len(case.seeds) * _gradient_examples(case)
        + (1 + random_sets + len(case.model.heads())) * len(case.tested_on)
    ),
    label="joint ablation on {case.columns[task]} with {case.columns[model]}",
)
def remove_together(
    job: Job, case: Case, plus: np.ndarray, minus: np.ndarray, random_sets: int
) -> pd.DataFrame:
    """The ten most facilitating heads removed together, beside random sets of ten others; ablation one by one."""
    model, heads, tested_on = case.model, case.model.heads(), case.tested_on
    order = most_facilitating(heads, minus, _gradients(job, case, minus), case.fit.bound)
    top = order[: min(TOP, len(heads) // 2)]
    sets = [random_heads(heads, top, f"{case.seeds[0]}/{i}").heads for i in range(random_sets)]
    gates = np.stack([mask_gates(chosen, model.shape) for chosen in [top, *sets]])
    engine = Engine(model, tested_on, metric("logprob"), advance=job.advance, **case.ablation)
    effects = engine.measure(gates).effects  # sets, E
    alone = score(
        model, tested_on, "ablation", metric="logprob", progress=job.advance, **case.ablation
    ).values
    row = {"heads": " ".join(map(str, top))} | joint_row(effects[0], effects[1:], tested_on.shared_groups())
    for role, estimates in role_scores(plus.mean(axis=0), minus.mean(axis=0)).items():
        row[f"{role}_correlation"] = stats.rank_correlation(estimates[model.exists], alone[model.exists])
    return pd.DataFrame([row | {"reference": case.reference}])


def _gradient_examples(case: Case) -> int:
    return min(GRADIENT_UPDATES * case.fit.batch, len(case.fitted_on))


def _gradients(job: Job, case: Case, gates: np.ndarray) -> np.ndarray:
    """Gradients of the likelihood at each seed's own gates `[S, L, H]`, over the examples of a few updates."""
    likelihood, count, size = case.likelihood(case.fitted_on), _gradient_examples(case), case.fit.batch
    parts = np.split(np.arange(count), range(size, count, size))
    gradients = [likelihood.gradients(gates, np.tile(part, (len(gates), 1)))[1] for part in parts]
    job.advance(len(gates) * count)
    return np.average(gradients, axis=0, weights=[len(part) for part in parts])


def joint_row(
    top: np.ndarray, sets: np.ndarray, groups: Sequence[str | None] | None = None
) -> dict[str, Any]:
    """The joint effect of the most facilitating heads `[E]` beside that of random sets `[sets, E]`."""
    effects = sets.mean(axis=1)
    lo, hi = map(float, stats.mean_interval(top, groups=groups))
    beside = {"random_mean": float(effects.mean()), "random_p99": float(np.quantile(effects, 0.99))}
    beside |= {"larger_than": float((top.mean() > effects).mean()), "sets": len(effects), "n": len(top)}
    return {"effect": float(top.mean()), "lo": lo, "hi": hi, **beside}
