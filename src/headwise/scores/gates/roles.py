"""From two learned gates to a head's role: does it help, interfere, or do nothing?

S seeds, L layers, H heads. `plus` is the gate that was pulled towards 1 (keep what does no harm), `minus` the one
pulled towards 0 (remove what is not needed).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwise.heads import Head

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
