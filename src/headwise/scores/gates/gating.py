"""Learned gates: which heads help, which hinder, which do nothing (Causal Head Gating, arXiv 2505.13737).

Three fits of one gate per head: one that only wants the targets likely, from random gates; then, both begun from
it, one that pulls every gate towards 1 (G⁺) and one that pulls it towards 0 (G⁻).
S seeds, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headwise.scores.gates.batches import Batches
from headwise.scores.gates.fit import Fit, FitSettings, Slopes, fit_gates, random_logits
from headwise.scores.gates.likelihood import GateLikelihood
from headwise.scores.gates.roles import majority, role_labels, role_scores
from headwise.scores.registry import Setup, register
from headwise.settings import Count

FITS = {"free": 0, "plus": 1, "minus": -1}
"""The three fits and the sign of their pull."""
UNIT = "gate"


class GatingOptions(FitSettings):
    """Options of the method `gating`: those of a fit, and how many there are."""

    seeds: Count = 5
    """Fits that begin from other random gates and see the examples in another order."""


def one_fit(
    likelihood: GateLikelihood,
    name: str,
    seeds: Sequence[int],
    settings: FitSettings,
    start: np.ndarray | None = None,
    advance: Callable[[int], None] | None = None,
) -> Fit:
    """One of `FITS` for all seeds at once; `start` are the logits `[S, L, H]` that the free fit ended with."""
    model = likelihood.model
    if start is None:
        assert name == "free", "the fits that pull begin where the free one ended"
        start = random_logits(model.shape, seeds, settings.bound)
    sign = FITS[name]
    slopes = own_batches(likelihood, seeds, settings.batch, list(FITS).index(name))
    return fit_gates(slopes, start, model.exists, settings, sign=sign, advance=advance)


def own_batches(likelihood: GateLikelihood, seeds: Sequence[int], size: int, fit: int) -> Slopes:
    """The likelihood on each seed's own next batch; which examples come does not depend on the other seeds."""
    drawn = [Batches(len(likelihood.task), size, (seed, 1 + fit)) for seed in seeds]

    def slopes(gates: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return likelihood.slopes(gates, np.stack([drawn[place].next() for place in places]))

    return slopes


@register(
    "gating",
    signed=False,
    about="learned gates: facilitation (stays open although pulled shut), with interference and irrelevance",
    steps=lambda model, task: len(FITS) * FitSettings().updates,
    options=GatingOptions,
)
def gating(setup: Setup, seeds: int = 5, **fit: Any) -> np.ndarray:
    """Facilitation G⁻ of every head, from 0 to 1, one value per seed (not per example): unsigned, 1 is needed.

    `details["roles"]` has facilitation, irrelevance and interference of each seed, `details["labels"]` each
    head's most frequent label and `details["agreement"]` the share of seeds that give it, `details["objective"]`
    where each fit ended. `fit`: see `headwise.scores.gates.fit.FitSettings`. The likelihood is the mean
    log probability per target token, whatever the task's metric.

    Cost: three fits of up to 500 updates, each a forward and a backward pass over a batch, all seeds in one pass.
    Known failure: where heads can stand in for one another, each seed picks some of them, so one fit is not a
    finding (read the agreement); gates are soft, and a half-open gate can do what neither end does.
    """
    settings = FitSettings(**fit)
    numbers = list(range(setup.seed, setup.seed + seeds))
    likelihood = GateLikelihood(
        setup.model,
        setup.task,
        reference=setup.reference,
        positions=setup.positions,
        reference_task=setup.reference_task,
        seed=setup.seed,
        batch_tokens=setup.batch_tokens,
    )
    fits: dict[str, Fit] = {}
    advance = _spread(
        setup.advance, len(FITS) * FitSettings().updates / sum(map(settings.most, FITS.values()))
    )
    for name in FITS:
        start = None if name == "free" else fits["free"].logits
        fits[name] = one_fit(likelihood, name, numbers, settings, start, advance)
    plus, minus = fits["plus"].gates, fits["minus"].gates
    setup.unit = UNIT
    setup.details |= _details(plus, minus, fits, setup.model.exists, numbers)
    return minus


def _details(
    plus: np.ndarray, minus: np.ndarray, fits: dict[str, Fit], exists: np.ndarray, seeds: list[int]
) -> dict[str, Any]:
    labels = role_labels(plus, minus)
    label, share = majority(labels)
    ends = {
        name: [float(fit.objective[count - 1, seed]) for seed, count in enumerate(fit.updates)]
        for name, fit in fits.items()
    }
    return {
        "replicates": "seeds",
        "seeds": seeds,
        "roles": {name: score.tolist() for name, score in role_scores(plus, minus).items()},
        "labels": np.where(exists, label, "").tolist(),
        "agreement": share.tolist(),
        "objective": ends,
        "updates": {name: fit.updates.tolist() for name, fit in fits.items()},
    }


def _spread(advance: Callable[[int], None] | None, steps: float) -> Callable[[int], None] | None:
    """Reports `steps` per update, in whole numbers: a progress bar is as long as the default schedule."""
    if advance is None:
        return None
    done = 0.0

    def report(count: int) -> None:
        nonlocal done
        before, done = done, done + count * steps
        advance(round(done) - round(before))

    return report
