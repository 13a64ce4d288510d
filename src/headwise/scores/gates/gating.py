"""Learned gates: which heads help, which hinder, which do nothing (Causal Head Gating, arXiv 2505.13737).

Three fits of one gate per head: the free fit only makes the targets likely, from random gates; two more begin where it
ended, one that pulls every gate towards 1 (G⁺) and one that pulls every gate towards 0 (G⁻).
S seeds, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError, hint
from headwise.heads import Scores
from headwise.model.model import Model
from headwise.scores.gates.batches import batches
from headwise.scores.gates.fit import Fit, FitSettings, Gradients, fit_gates, random_logits
from headwise.scores.gates.likelihood import GateLikelihood
from headwise.scores.gates.roles import majority, role_labels, role_scores
from headwise.scores.registry import BACKWARD_ROWS, Setup, register, scaled_progress
from headwise.settings import Count
from headwise.tasks import Task

FITS = {"free": 0, "plus": 1, "minus": -1}
"""The three fits and the sign of their pull."""
UNIT = "gate"


class GatingOptions(FitSettings):
    """Options of the method `gating`: those of a fit, and how many there are."""

    seeds: Count = 5
    """Fits that begin from other random gates and see the examples in another order."""


def default_reference(model: Model) -> str:
    """What replaces a head whose gate closes: 0, or its mean output where a norm would undo a common factor."""
    return "mean" if model.capabilities.norm_after_heads else "zero"


def check_reference(model: Model, reference: str) -> None:
    """Refuse gates that a norm makes arbitrary: closed almost and all together, they would change nothing."""
    if reference == "zero" and model.capabilities.norm_after_heads:
        raise HeadwiseError(
            f"{model.name} has a norm after its heads, which undoes a common factor: all gates at .5 give the same "
            f"answers as all gates at 1, so gates learned towards 0 mean nothing; use {hint('reference', 'mean')}"
        )


def one_fit(
    likelihood: GateLikelihood,
    name: str,
    seeds: Sequence[int],
    settings: FitSettings,
    start: np.ndarray | None = None,
    advance: Callable[[int], None] | None = None,
) -> Fit:
    """One of `FITS` for all seeds at once; `start`: the logits `[S, L, H]` that the free fit ended with."""
    model = likelihood.model
    if start is None:
        start = random_logits(model.shape, seeds, settings.bound)
    gradients = batch_gradients(likelihood, seeds, settings.batch, list(FITS).index(name))
    return fit_gates(gradients, start, model.exists, settings, sign=FITS[name], advance=advance)


def batch_gradients(likelihood: GateLikelihood, seeds: Sequence[int], size: int, fit: int) -> Gradients:
    """The likelihood on the next batch of each seed; its examples do not depend on the other seeds."""
    drawn = [batches(len(likelihood.task), size, (seed, 1 + fit)) for seed in seeds]

    def gradients(gates: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return likelihood.gradients(gates, np.stack([next(drawn[seed]) for seed in active]))

    return gradients


def gate_scores(gates: np.ndarray, exists: np.ndarray, reference: str, **names: str) -> Scores:
    """Gates `[S, L, H]` as scores: unsigned, one value per seed. names: model, task and method."""
    examples, details = np.where(exists, gates, np.nan), {"reference": reference}
    return Scores.from_examples(examples, **names, signed=False, metric=UNIT, details=details)


def _rows(model: Model, task: Task, reference: str, options: Mapping[str, Any]) -> float:
    fit = FitSettings(**{name: value for name, value in options.items() if name in FitSettings.model_fields})
    rows = options["seeds"] * min(fit.batch, len(task))
    return float(BACKWARD_ROWS * rows * sum(map(fit.most, FITS.values())))


@register(
    "gating",
    signed=False,
    about="learned gates (Causal Head Gating): facilitation; also interference and irrelevance",
    steps=lambda model, task: len(FITS) * FitSettings().updates,
    rows=_rows,
    options=GatingOptions,
    learned=True,
)
def gating(setup: Setup, seeds: int = 5, **fit: Any) -> np.ndarray:
    """Facilitation G⁻ of every head, from 0 to 1, one value per seed (not per example): unsigned, 1 is needed.

    `details["roles"]` has facilitation, irrelevance and interference of each seed, `details["labels"]` each
    head's most frequent label and `details["agreement"]` the share of seeds that give it, `details["objective"]`
    where each fit ended. `fit`: see `headwise.scores.gates.fit.FitSettings`. The likelihood is the mean
    log probability per target token, whatever the task's metric.

    Cost: three fits of up to 500 updates, each a forward and a backward pass over a batch, all seeds in one pass.
    Known failure: if heads can replace one another, each seed chooses some of them, so one fit is not a
    finding (read the agreement); gates are soft, and a half-open gate can do what neither end does. Models with a
    norm after their heads (Gemma 2 and 3, OLMo 2) need `reference="mean"`.
    """
    check_reference(setup.model, setup.reference)
    settings = FitSettings(**fit)
    numbers = list(range(setup.seed, setup.seed + seeds))
    likelihood = GateLikelihood(setup.model, setup.task, **setup.engine_options)
    # The progress bar is as long as the default schedule.
    default_updates = len(FITS) * FitSettings().updates
    advance = scaled_progress(setup.advance, default_updates / sum(map(settings.most, FITS.values())))
    fits: dict[str, Fit] = {}
    for name in FITS:
        start = None if name == "free" else fits["free"].logits
        fits[name] = one_fit(likelihood, name, numbers, settings, start, advance)
    plus, minus = fits["plus"].gates, fits["minus"].gates
    label, share = majority(role_labels(plus, minus))
    setup.unit = UNIT
    setup.details |= {
        "replicates": "seeds",
        "seeds": numbers,
        "roles": {name: score.tolist() for name, score in role_scores(plus, minus).items()},
        "labels": np.where(setup.model.exists, label, "").tolist(),
        "agreement": share.tolist(),
        "objective": {
            name: [float(fit.objective[count - 1, seed]) for seed, count in enumerate(fit.updates)]
            for name, fit in fits.items()
        },
        "updates": {name: fit.updates.tolist() for name, fit in fits.items()},
    }
    return minus
