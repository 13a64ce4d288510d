"""Learned gates: which heads help, which hinder, which do nothing (Causal Head Gating, arXiv 2505.13737).

Three fits of one gate per head: the free fit only makes the targets likely, from random gates; two more begin where it
ended, one that pulls every gate towards 1 (G⁺) and one that pulls every gate towards 0 (G⁻). Both ends say what a head
is called.
S seeds, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError, hint
from headwise.heads import Head, Scores
from headwise.model.model import Model
from headwise.progress import scaled_progress
from headwise.scores.gates.fit import Fit, FitSettings, Gradients, fit_logits, random_logits
from headwise.scores.gates.likelihood import GateLikelihood
from headwise.scores.gates.row_gradients import batches
from headwise.scores.registry import BACKWARD_ROWS, Setup, register
from headwise.settings import Count
from headwise.tasks import Task

# ---- from two gates to a role: `plus` is the one pulled towards 1, `minus` the one pulled towards 0 ----------------

ROLES = ("facilitation", "irrelevance", "interference")
"""The three scores, in the order of the figures."""
LABELS = ("facilitating", "irrelevant", "interfering", "undecided", "anomalous")
"""What a head may be called: by the role that reaches the threshold, or by what went wrong."""
THRESHOLD = 0.5


def role_scores(plus: np.ndarray, minus: np.ndarray) -> dict[str, np.ndarray]:
    """The three scores of Causal Head Gating (arXiv 2505.13737), each from 0 to 1.

    Facilitation G⁻: stays open although pulled shut. Interference 1 − G⁺: shut although pulled open.
    Irrelevance G⁺·(1 − G⁻): goes wherever it is pulled.

    >>> {name: float(score) for name, score in role_scores(np.array(1.0), np.array(0.0)).items()}
    {'facilitation': 0.0, 'irrelevance': 1.0, 'interference': 0.0}
    """
    return {"facilitation": minus, "irrelevance": plus * (1 - minus), "interference": 1 - plus}


def role_labels(plus: np.ndarray, minus: np.ndarray) -> np.ndarray:
    """One of `LABELS` per head: the role whose score reaches .5; the larger one where two do.

    `anomalous` (G⁺ < .5 < G⁻) would have to hinder and help at once: a fit that has not settled.

    >>> role_labels(np.array([0.9, 0.9, 0.1, 0.6, 0.1]), np.array([0.8, 0.1, 0.1, 0.4, 0.9])).tolist()
    ['facilitating', 'irrelevant', 'interfering', 'undecided', 'anomalous']
    """
    scores = np.stack(list(role_scores(plus, minus).values()))
    best = np.array(LABELS[:3])[scores.argmax(axis=0)]
    decided = np.where(scores.max(axis=0) >= THRESHOLD, best, "undecided")
    labels: np.ndarray = np.where((plus < THRESHOLD) & (minus > THRESHOLD), "anomalous", decided)
    return labels


def majority(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each head's most frequent label over seeds `labels[S, ...]`, and the share of seeds that give it.

    A tie goes to `undecided`: half the seeds are no finding.
    """
    counts = np.stack([(labels == label).sum(axis=0) for label in LABELS])
    most = counts.max(axis=0)
    tied = (counts == most).sum(axis=0) > 1
    winner = np.where(tied, "undecided", np.array(LABELS)[counts.argmax(axis=0)])
    return winner, most / len(labels)


def most_facilitating(
    heads: Sequence[Head], minus: np.ndarray, gradients: np.ndarray, bound: float
) -> list[Head]:
    """`heads` by their mean facilitation over seeds, `minus[S, L, H]`; equal ones by `gradients`.

    Beyond the bound nothing pulls a gate shut any more: its value shows how long it was pushed, not how much its head
    does. All such gates count as equal, and their heads are ranked by the gradient of the likelihood at these gates,
    `gradients[S, L, H]`: a first-order estimate of what closing them would cost.
    """
    open_enough = 1 / (1 + np.exp(-bound))
    facilitation = np.minimum(minus, open_enough).mean(axis=0).round(6)
    gradient = gradients.mean(axis=0)
    return sorted(heads, key=lambda head: (-facilitation[head], -gradient[head]))


def always_and_ever(labels: np.ndarray, exists: np.ndarray) -> list[dict[str, float | int | str]]:
    """For each label: heads that have it in every seed, in some seed, and in the average seed.

    In the paper most heads facilitate or interfere in some seed and few in all: a single fit is no finding.
    """
    counted = {label: (labels == label)[:, exists] for label in LABELS}  # S, heads
    return [
        {
            "label": label,
            "always": int(has.all(axis=0).sum()),
            "ever": int(has.any(axis=0).sum()),
            "mean": float(has.sum(axis=1).mean()),
            "heads": int(exists.sum()),
            "seeds": len(labels),
        }
        for label, has in counted.items()
    ]


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
    return fit_logits(gradients, start, model.exists, settings, sign=FITS[name], advance=advance)


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
    steps=lambda *_: len(FITS) * FitSettings().updates,
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
