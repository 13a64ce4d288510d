"""Contrastive gating: gates that keep one behaviour and lose another (Causal Head Gating, arXiv 2505.13737).

    loss = −logp(A) + max(logp(B) − logp(A), −5) − λ · mean clip(logits),  with logp(A) held fixed inside the max

Tasks that the fit has not seen show whether the gates found a mechanism or only these examples.
S seeds, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError
from headwise.heads import ones
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.scores.gates.fit import Fit, FitSettings, Gradients, fit_logits, random_logits
from headwise.scores.gates.gating import batch_gradients
from headwise.scores.gates.likelihood import GateLikelihood
from headwise.tables.codec import stored
from headwise.tasks.examples import Task

FLOOR = -5.0
"""Nats per token: once B is this much less likely than A, there is nothing more to lose."""


@stored
@dataclass(frozen=True)
class Contrast:
    """Gates that keep `keep` and lose `lose`, and what they do on tasks that the fit has not seen."""

    table: pd.DataFrame
    """Per held-out pair, side (keep, lose) and seed (−1: the ungated model): mean log probability per target token
    and accuracy."""
    fit: Fit

    @property
    def gates(self) -> np.ndarray:
        """Where the fit ended `[S, L, H]`."""
        return self.fit.gates

    def summary(self) -> pd.DataFrame:
        """Mean over seeds and held-out pairs, beside the ungated model."""
        table = self.table.assign(gates=np.where(self.table["seed"] < 0, "none", "contrastive"))
        by_side = table.groupby(["side", "gates"], sort=False)
        return by_side[["mean_logprob", "accuracy"]].mean()


def contrastive(
    model: Model,
    keep: Task,
    lose: Task,
    held_out: Mapping[str, tuple[Task, Task]],
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    settings: FitSettings | None = None,
    floor: float = FLOOR,
    advance: Callable[[int], None] | None = None,
    **engine: Any,
) -> Contrast:
    """Fit gates that make `keep` likely and `lose` unlikely, and test them on the (keep, lose) pairs of `held_out`.

    For instance few-shot against instruction prompts of the same word-mapping tasks: gates fitted on some mappings
    that keep the one way of asking and lose the other, tested on mappings they have not seen. The learning rate
    is `settings.rate`; gates begin at random and are pulled open. engine: `reference`, `batch_tokens` and the other
    options of `headwise.model.measure.engine.Engine`.
    """
    fitted_on = {(e.prompt, e.target) for task in (keep, lose) for e in task}
    for name, pair in held_out.items():
        if any((e.prompt, e.target) in fitted_on for task in pair for e in task):
            raise HeadwiseError(
                f"the held-out pair {name!r} shares an example with what the gates are fitted on; hold out examples "
                "that the fit has not seen"
            )
    chosen = settings or FitSettings()
    kept, lost = (
        batch_gradients(GateLikelihood(model, task, **engine), seeds, chosen.batch, 3 + number)
        for number, task in enumerate((keep, lose))
    )
    gradients = contrast_gradients(kept, lost, floor)
    start = random_logits(model.shape, seeds, chosen.bound)
    fit = fit_logits(gradients, start, model.exists, chosen, sign=1, advance=advance)
    return Contrast(evaluate(model, held_out, fit.gates, seeds, **engine), fit)


def contrast_gradients(keep: Gradients, lose: Gradients, floor: float = FLOOR) -> Gradients:
    """What is maximised, logp(A) − max(logp(B) − logp(A), floor), and its gradient with the inner A held fixed."""

    def gradients(gates: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kept, kept_gradients = keep(gates, active)
        lost, lost_gradients = lose(gates, active)
        gap = lost - kept
        above = (gap > floor)[:, None, None]  # below the floor there is nothing more to lose
        return kept - np.maximum(gap, floor), kept_gradients - above * lost_gradients

    return gradients


def evaluate(
    model: Model,
    pairs: Mapping[str, tuple[Task, Task]],
    gates: np.ndarray,
    seeds: Sequence[int],
    **engine: Any,
) -> pd.DataFrame:
    """Mean log probability per target token and accuracy of every pair's sides under each seed's gates."""
    variants = np.concatenate([ones(model.shape)[None], gates])
    rows = []
    for name, pair in pairs.items():
        for side, task in zip(("keep", "lose"), pair, strict=True):
            means = {}
            for measured in ("mean_logprob", "accuracy"):
                under_gates = Engine(model, task, metric(measured), **engine).measure(variants)
                means[measured] = under_gates.values.mean(axis=1)
            for variant, seed in enumerate([-1, *seeds]):
                row = {"pair": name, "side": side, "task": task.name, "seed": seed, "n": len(task)}
                rows.append(row | {measured: float(values[variant]) for measured, values in means.items()})
    return pd.DataFrame(rows)
