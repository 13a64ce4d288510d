"""One fit of gates by gradient: Adam on the gates' logits, a linear schedule, and a rule for when to stop.

    loss = −likelihood(G) − λ · mean over heads of clip(logits, ±4),   G = sigmoid(logits)

S seeds are fitted side by side and share every pass; no number of one depends on another.
S seeds, U updates, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from pydantic import AfterValidator, NonNegativeFloat, PositiveFloat
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.heads import Order
from headwise.settings import Count, Settings, Several, one_of
from headwise.tables.codec import stored
from headwise.tables.frames import long_table

CLIPS = ("two_sided", "one_sided")

Gradients = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Gates `[S', L, H]` and the numbers `[S']` of their fits -> what is maximised `[S']`, its gradient `[S', L, H]`."""


def _first_and_last(rates: tuple[float, ...]) -> tuple[float, ...]:
    if len(rates) != 2:
        raise HeadwiseError(
            f"a fit takes two learning rates above 0, the first and the last, not {list(rates)}"
        )
    return rates


Rates = Annotated[Several[PositiveFloat], AfterValidator(_first_and_last)]


class FitSettings(Settings):
    """How gates are fitted; the defaults are the paper's schedule (arXiv 2505.13737) with the mean regulariser."""

    updates: Count = 500
    """Maximum number of updates of each fit."""
    first_updates: Count | None = None
    """Maximum number of updates of the first, unregularised fit; null: as many as `updates`."""
    batch: Count = 64
    """Examples per update and seed."""
    first_rate: Rates = (0.1, 0.01)
    """Learning rate of the first, unregularised fit: at the first and at the last update."""
    rate: Rates = (0.5, 0.1)
    """Learning rate of the two regularised fits: at the first and at the last update."""
    strength: PositiveFloat = 0.1
    """λ: strength of the regularisation, in nats per token for a mean logit of one."""
    bound: PositiveFloat = 4.0
    """Gate logits are clipped at ± this value in the regulariser."""
    clip: Annotated[str, one_of("clip", lambda: CLIPS)] = "two_sided"
    """`two_sided`: no regularisation beyond either bound, so only the likelihood can move a gate that starts there;
    `one_sided`: no regularisation beyond the bound in its own direction."""
    gradient_norm: PositiveFloat | None = None
    """Gradient clipping: maximum norm of the gradient of one seed; the authors' code uses 1."""
    stop: NonNegativeFloat | None = 0.002
    """Early stopping: a window of updates is calm if it adds less than this share of the improvement so far, and at
    most this share of the gates cross .5 in it; null: no early stopping."""
    calm: Count = 4
    """Number of consecutive calm windows after which a fit stops."""
    window: Count = 25
    """Updates per window, and updates of the final decay of the learning rate before an early stop."""
    keep: Count = 25
    """Interval in updates at which the gates are stored for the trajectory."""

    def most(self, sign: int) -> int:
        """The most updates of the fit with this pull."""
        return self.updates if sign or self.first_updates is None else self.first_updates


@stored
@dataclass
class Fit:
    """What a fit ended with, and how it got there."""

    logits: np.ndarray  # S, L, H
    likelihood: np.ndarray
    """`[U, S]`: on each update's examples, before the update; NaN after a seed has stopped."""
    objective: np.ndarray  # U, S: −likelihood − λ · mean clip(logits), which is minimised
    rates: np.ndarray  # U, S
    updates: np.ndarray  # S: how many each seed took
    kept: dict[int, np.ndarray]
    """The logits after so many updates, `[S, L, H]`; a seed that has stopped stays where it was."""

    @property
    def gates(self) -> np.ndarray:
        return sigmoid(self.logits)

    def tables(
        self, seeds: Sequence[int], heads: Order, columns: Mapping[str, Any]
    ) -> dict[str, pd.DataFrame]:
        """How the fit went: `gates` has the kept part of the trajectory (a row per seed, update and head), `objective`
        every update of every seed. columns: those that both begin with."""
        layers, numbers = np.array(heads).T
        steps = sorted(self.kept)
        logits = np.stack([self.kept[step][:, layers, numbers] for step in steps], axis=1)  # S, steps, heads
        axes: list[dict[str, Any]] = [{"seed": seeds}, {"step": steps}, {"layer": layers, "head": numbers}]
        gates = long_table(columns, axes, {"logit": logits, "gate": sigmoid(logits)})
        values = {"rate": self.rates.T, "likelihood": self.likelihood.T, "objective": self.objective.T}
        updates = long_table(columns, [{"seed": seeds}, {"update": range(len(self.objective))}], values)
        done = updates["update"] < np.repeat(self.updates, len(self.objective))
        return {"gates": gates, "objective": updates[done].reset_index(drop=True)}


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def random_logits(shape: tuple[int, int], seeds: Sequence[int], bound: float) -> np.ndarray:
    """Random start of the first fit: gates uniform between those of ± `bound`, as logits `[S, L, H]`.

    Beyond the bound nothing would pull a gate that the likelihood does not depend on: it would keep its random value,
    and a head that does nothing would be called needed or harmful.
    """
    low, high = sigmoid(np.array([-bound, bound])).tolist()
    drawn = np.stack([np.random.default_rng([seed, 0]).uniform(low, high, shape) for seed in seeds])
    logits: np.ndarray = np.log(drawn) - np.log1p(-drawn)
    return logits


def regulariser(
    logits: np.ndarray, exists: np.ndarray, sign: int, settings: FitSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Mean over heads of the clipped logits `[S]`, and its gradient `[S, L, H]`; `sign` is that of the pull."""
    low, high = -settings.bound, settings.bound
    if settings.clip == "one_sided":
        low, high = (-np.inf, high) if sign > 0 else (low, np.inf)
    inside = (logits >= low) & (logits <= high) & exists
    count = exists.sum()
    mean = np.where(exists, np.clip(logits, low, high), 0).sum(axis=(1, 2)) / count
    return mean, inside / count


def fit_logits(
    gradients: Gradients,
    start: np.ndarray,
    exists: np.ndarray,
    settings: FitSettings,
    *,
    sign: int,
    advance: Callable[[int], None] | None = None,
) -> Fit:
    """Gates that maximise the value of `gradients` plus `sign`·λ times the regulariser (−1, 0 or +1), from `start`."""
    updates, strength = settings.most(sign), sign * settings.strength
    first, last = settings.rate if sign else settings.first_rate
    seeds = [_Seed(logits, np.linspace(first, last, updates)) for logits in start]
    likelihoods, objectives, rates = np.full((3, updates, len(seeds)), np.nan)
    taken = np.zeros(len(seeds), dtype=int)
    fit = Fit(start.copy(), likelihoods, objectives, rates, taken, {0: start.copy()})
    for update in range(updates):
        active = np.array([number for number, seed in enumerate(seeds) if not seed.done])
        if not len(active):
            break
        logits = fit.logits[active]
        gates = sigmoid(logits)
        likelihood, gradient = gradients(gates, active)
        pull, pulled = regulariser(logits, exists, sign, settings)
        uphill = gradient * gates * (1 - gates) + strength * pulled  # by the logits
        objective = -likelihood - strength * pull
        if not np.isfinite(objective).all():
            raise HeadwiseError(
                f"the objective is not finite after {update} updates; use float32 or bfloat16, or smaller rates"
            )
        fit.likelihood[update, active], fit.objective[update, active] = likelihood, objective
        fit.rates[update, active] = [seeds[number].rate for number in active]
        fit.updates[active] = update + 1
        for number, step in zip(active, np.where(exists, uphill, 0), strict=True):
            fit.logits[number] = seeds[number].step(step, settings.gradient_norm)
            seeds[number].watch(fit.objective[: update + 1, number], exists, settings)
        if (update + 1) % settings.keep == 0 or update + 1 == updates:
            fit.kept[update + 1] = fit.logits.copy()
        if advance:
            advance(1)
    fit.kept[int(taken.max())] = fit.logits.copy()
    if advance:
        advance(updates - int(taken.max()))
    return fit


class _Seed:
    """The optimiser of one seed, its position in the schedule, and whether its objective has flattened."""

    def __init__(self, logits: np.ndarray, schedule: np.ndarray) -> None:
        self.logits: Tensor = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
        self.optimiser = torch.optim.Adam([self.logits])
        self.schedule = schedule
        self.taken = self._calm = 0
        self._open_before = logits > 0

    @property
    def rate(self) -> float:
        return float(self.schedule[self.taken])

    @property
    def done(self) -> bool:
        return self.taken >= len(self.schedule)

    def step(self, uphill: np.ndarray, longest: float | None) -> np.ndarray:
        """One update; returns the logits."""
        if longest is not None:
            uphill = uphill * min(1.0, longest / (float(np.linalg.norm(uphill)) + 1e-12))
        self.optimiser.param_groups[0]["lr"] = self.rate
        self.logits.grad = torch.from_numpy(-uphill)
        self.optimiser.step()
        self.taken += 1
        return self.logits.detach().numpy().copy()

    def watch(self, objective: np.ndarray, exists: np.ndarray, settings: FitSettings) -> None:
        """At the end of a window: after enough calm windows, cool down to the last rate, then stop."""
        window, share = settings.window, settings.stop
        if share is None or self.taken % window or self.done:
            return
        is_open = self.logits.detach().numpy() > 0
        crossed = float((is_open != self._open_before)[exists].mean())
        self._open_before = is_open
        calm = flattened(objective, window, share) and crossed <= share
        self._calm = self._calm + 1 if calm else 0
        if self._calm >= settings.calm and len(self.schedule) - self.taken > window:
            cooling = np.linspace(self.rate, self.schedule[-1], window)
            self.schedule = np.concatenate([self.schedule[: self.taken], cooling])


def flattened(objective: np.ndarray, window: int, share: float) -> bool:
    """Whether the last window's mean is better than the one before by less than `share` of all that was gained.

    >>> flattened(np.concatenate([np.linspace(5, 1, 50), np.ones(50)]), 25, 0.01)
    True
    >>> flattened(np.linspace(5, 1, 100), 25, 0.01)
    False
    """
    if len(objective) < 2 * window:
        return False
    before, now = objective[-2 * window : -window].mean(), objective[-window:].mean()
    gained = objective[:window].mean() - now
    return bool(before - now <= share * max(gained, 0.0))
