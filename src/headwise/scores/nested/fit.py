"""Training: one strength per component, so that for every k the k strongest explain the behaviour; and its loss.

Each update draws sizes k, takes the mask of the k strongest, and moves the strengths along the gradient of the loss.
All seeds share a pass. At first masks are soft; then the forward pass takes the hard mask and the gradient of the soft
one (straight-through). Related: MAttr (arXiv 2609.25518), Edge Pruning (Bhaskar et al. 2024, arXiv 2406.16778).

The explained effect of a mask is 1 + (m(gates) − m(full)) / effect, effect = mean m(full) − mean m(none): its error is
counted in shares of the effect, so that a loss of 1 is that of a mask that keeps nothing.

S seeds, K sizes per update, G = S·K groups of rows, B examples of a group, N components, U updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from headwise.errors import HeadwiseError
from headwise.scores.gates.fit import Rates
from headwise.scores.gates.row_gradients import batches
from headwise.scores.nested.problem import (
    Problem,
    draw_sizes,
    grid_sizes,
    hard_masks,
    mask_gradient,
    soft_masks,
)
from headwise.settings import Count, Settings, Several, Share, one_of
from headwise.tables.codec import stored

# ---- the loss -----------------------------------------------------------------------------------------


OBJECTIVES = ("match", "track", "most")
"""`match`: the explained effect should be 1, neither less nor more. `track`: also each example's metric should be that
of the whole model, in units of the spread within its family. `most`: as large as possible (what CPR rewards)."""
BAND = 0.1
"""Errors below it count quadratically, larger ones by their size (Huber): a curve that leaves the band around 1 for a
few heads pulls as hard as one that is far away."""


def row_losses(
    errors: np.ndarray, objective: str, of_mean: float, below: float, weights: np.ndarray | float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of each group `[G]`, and its gradient with respect to the errors `[G, B]`.

    errors `[G, B]`: explained effect of every row minus 1. of_mean: the share of the loss that is of the group's mean,
    which is what a curve shows; the rest is the mean of the rows' own losses, which asks for the same behaviour on
    every example and not on average alone. below: how much more an error below 0 counts than one above. weights
    `[G, B]`: factors that take the rows' own errors from shares of the effect to another unit (`track`).
    """
    size = errors.shape[1]
    if objective == "most":
        return -errors.mean(1), np.full(errors.shape, -1.0 / size)
    mean = errors.mean(1)
    single = errors * weights
    losses = of_mean * _huber(mean, below) + (1 - of_mean) * _huber(single, below).mean(1)
    slopes = of_mean * _slope(mean, below)[:, None] + (1 - of_mean) * _slope(single, below) * weights
    return losses, slopes / size


def curve_costs(shares: np.ndarray, objective: str, below: float) -> np.ndarray:
    """How far each of the curves `shares[S, K]` of explained effects is from 1 `[S]`; smaller is better."""
    errors = shares - 1
    far = -errors if objective == "most" else np.abs(errors) * _weight(errors, below)
    costs: np.ndarray = far.mean(1)
    return costs


def _weight(error: np.ndarray, below: float) -> np.ndarray:
    return np.where(error < 0, below, 1.0)


def _huber(error: np.ndarray, below: float) -> np.ndarray:
    size = np.abs(error)
    result: np.ndarray = np.where(size <= BAND, error**2 / (2 * BAND), size - BAND / 2)
    return result * _weight(error, below)


def _slope(error: np.ndarray, below: float) -> np.ndarray:
    return np.clip(error / BAND, -1, 1) * _weight(error, below)


# ---- the training -------------------------------------------------------------------------------------


REFERENCE_UPDATES = 400
"""The number of updates for which `rate` is meant; shorter fits take larger steps."""
FEWEST_UPDATES, FEWEST = 75, 4
"""With a small budget of rows each update first gets smaller, down to so few sizes and examples, before updates get
fewer."""
PRICE = 2.0
"""Loss of a mask that keeps all heads to be avoided."""
_NOISE = 0.01
"""Standard deviation of the strengths at the start: equal ones would be ranked by their place."""


_FOR_MOST: dict[str, Any] = {
    "updates": 500,
    "examples": 4,
    "masks": 1,
    "sizes": "uniform",
    "rate": (0.05, 0.05),
    "temperature": (0.5, 0.5),
    "hard": 1.0,
}
"""Defaults of the objective `most`: those of MAttr, which are better there, and 2,000 rows are enough."""


class NestedFit(Settings):
    """How an order is trained. With the objective `most` other defaults hold (`_FOR_MOST`)."""

    updates: Count = REFERENCE_UPDATES
    """Maximum number of updates."""
    examples: Count = 8
    """Examples per update and seed."""
    masks: Count = 8
    """Circuit sizes k per update, all run on the same examples: an update has examples × masks rows per seed."""
    sizes: Annotated[str, one_of("sizes", lambda: ("mixed", "uniform"))] = "mixed"
    """Whether half of the sizes (`mixed`) or all are drawn uniformly."""
    rows: Count | None = None
    """Maximum number of rows of one seed in backward passes; null: as many as the updates have."""
    objective: Annotated[str, one_of("objective", lambda: OBJECTIVES)] = "match"
    """`match`: the explained effect should be 1 at every k; `track`: also, each example's metric should be that of the
    whole model, in units of the spread within its family; `most`: as large as possible (what CPR rewards)."""
    of_mean: Share = 0.5
    """Share of the loss that is of the mean over an update's examples; the rest is of each example by itself."""
    below: Annotated[float, Field(ge=1)] = 4.0
    """How much more an explained effect below 1 counts than one above: a curve that dips is no longer a circuit."""
    avoid: Several[str] = ()
    """Heads that a mask pays for (L23H3, …), in order to find a circuit that does without them. Keeping all of them
    costs as much as an explained effect of half of what it should be."""
    rate: Rates = (0.1, 0.01)
    """Learning rate of Adam at the first and at the last update of 400; shorter fits take larger steps."""
    temperature: Rates = (1.0, 0.1)
    """Temperature of the soft masks at the first and at the last update."""
    hard: Share = 0.33
    """Share of the updates after which the forward pass takes hard masks."""
    checks: Count = 10
    """How often the order is tried on the held-back examples; the best one is kept."""
    patience: Count = 4
    """Early stopping: number of consecutive checks without improvement."""
    grid: Annotated[int, Field(ge=4)] = 16
    """Circuit sizes of a check."""

    @model_validator(mode="before")
    @classmethod
    def _of_objective(cls, given: Any) -> Any:
        most = isinstance(given, dict) and given.get("objective") == "most"
        return {**_FOR_MOST, **given} if most else given

    @property
    def sized(self) -> NestedFit:
        """The same with as many updates as the rows allow, and larger steps where they are few."""
        examples, masks, updates = self.examples, self.masks, self.updates
        if self.rows is not None:
            each = self.rows // FEWEST_UPDATES
            masks = min(masks, max(FEWEST, each // examples))
            examples = min(examples, max(FEWEST, each // masks))
            updates = max(1, min(updates, self.rows // (examples * masks)))
        larger = min(4.0, max(1.0, np.sqrt(REFERENCE_UPDATES / updates)))
        rate = tuple(float(larger * one) for one in self.rate)
        return self.replaced(examples=examples, masks=masks, updates=updates, rate=rate, rows=None)


@stored
@dataclass
class SeedFit:
    """Where the training of one seed ended, and how it got there."""

    strengths: np.ndarray  # N: those of the best check
    flat: np.ndarray  # N: share of the rows on which the slope was exactly 0
    losses: list[float] = field(default_factory=list)
    """The loss on each update's examples, before the update."""
    checks: list[tuple[int, float]] = field(default_factory=list)
    """(update, cost on the held-back examples) of every check."""
    cost: float = np.inf
    """The smallest cost of a check."""


def fit_orders(
    problem: Problem,
    start: np.ndarray,
    seeds: Sequence[int],
    settings: NestedFit,
    advance: Callable[[int], None] | None = None,
) -> list[SeedFit]:
    """The strengths of every seed, trained from `start[N]`; seeds share each pass but no example and no size."""
    chosen = settings.sized
    run = _Training(problem, start, seeds, chosen)
    if start.any():  # a start that knows something is an order to beat
        run.check(0)
    every = max(1, -(-chosen.updates // chosen.checks))
    for update in range(chosen.updates):
        run.step(update)
        last = update + 1 == chosen.updates
        if last or ((update + 1) % every == 0 and update >= chosen.hard * chosen.updates):
            run.check(update + 1)
        if advance:
            advance(1)
        if not len(run.active):
            if advance:
                advance(chosen.updates - update - 1)
            break
    for fit in run.fits:
        fit.flat = fit.flat / len(fit.losses)
    return run.fits


class _Training:
    """The strengths of all seeds, their optimiser, and what each has seen."""

    def __init__(
        self, problem: Problem, start: np.ndarray, seeds: Sequence[int], settings: NestedFit
    ) -> None:
        self.problem, self.settings = problem, settings
        self.random = [np.random.default_rng([seed, 5]) for seed in seeds]
        noise = np.stack([one.normal(0, _NOISE, problem.size) for one in self.random])
        self.strengths = start[None] + noise
        self.fits = [SeedFit(one.copy(), np.zeros(problem.size)) for one in self.strengths]
        self.active = np.arange(len(seeds))
        self._examples = [batches(len(problem.train), settings.examples, (seed, 6)) for seed in seeds]
        self._first, self._second = np.zeros_like(self.strengths), np.zeros_like(self.strengths)
        self._waited = np.zeros(len(seeds), dtype=int)

    def step(self, update: int) -> None:
        """One update of every seed that has not stopped."""
        s, problem = self.settings, self.problem
        done = update / max(1, s.updates - 1)
        temperature = float(np.exp(np.interp(done, [0, 1], np.log(s.temperature))))
        drawn = [draw_sizes(self.random[i], s.masks, problem.size, s.sizes) for i in self.active]
        sizes = np.concatenate(drawn)
        numbers = np.repeat([problem.train[next(self._examples[i])] for i in self.active], s.masks, axis=0)
        strengths = np.repeat(self.strengths[self.active], s.masks, axis=0)  # G, N
        soft = soft_masks(strengths, sizes, temperature)
        masks = hard_masks(strengths, sizes) if update >= s.hard * s.updates else soft
        errors, by_mask = problem.gradients(masks, numbers)
        flat = (by_mask == 0).reshape(len(self.active), -1, problem.size).mean(1)
        losses, slopes = row_losses(errors, s.objective, s.of_mean, s.below, row_weights(problem, s, numbers))
        losses = losses + (masks * problem.prices).sum(1)
        if not np.isfinite(losses).all():
            raise HeadwiseError(
                f"the loss is not finite after {update} updates; use float32 or bfloat16, or another metric"
            )
        by_mask = (slopes[:, :, None] * by_mask).sum(1) + problem.prices
        gradient = mask_gradient(soft, by_mask, temperature)
        per_seed = gradient.reshape(len(self.active), s.masks, -1).mean(1)
        self._move(per_seed, update, float(np.interp(done, [0, 1], s.rate)))
        for i, loss, zeros in zip(
            self.active, losses.reshape(len(self.active), -1).mean(1), flat, strict=True
        ):
            self.fits[i].losses.append(float(loss))
            self.fits[i].flat += zeros

    def _move(self, gradient: np.ndarray, update: int, rate: float) -> None:
        """Adam (Kingma and Ba 2015, arXiv 1412.6980)."""
        first, second = self._first, self._second
        first[self.active] = 0.9 * first[self.active] + 0.1 * gradient
        second[self.active] = 0.99 * second[self.active] + 0.01 * gradient**2
        mean = first[self.active] / (1 - 0.9 ** (update + 1))
        size = np.sqrt(second[self.active] / (1 - 0.99 ** (update + 1)))
        self.strengths[self.active] -= rate * mean / (size + 1e-8)

    def check(self, update: int) -> None:
        """Try the orders on the held-back examples; keep the best of each seed, and stop those that no longer gain."""
        s = self.settings
        costs = order_costs(self.problem, self.strengths[self.active], s, s.grid, self.problem.held)
        for i, cost in zip(self.active, costs, strict=True):
            fit = self.fits[i]
            fit.checks.append((update, float(cost)))
            self._waited[i] += 1
            if cost < fit.cost:
                fit.cost, fit.strengths = float(cost), self.strengths[i].copy()
                self._waited[i] = 0
        self.active = self.active[self._waited[self.active] < s.patience]


def row_weights(problem: Problem, settings: NestedFit, numbers: np.ndarray) -> np.ndarray | float:
    """How much the own error of each of these examples counts, in shares of the effect."""
    return abs(problem.effect) / problem.spreads[numbers] if settings.objective == "track" else 1.0


def order_costs(
    problem: Problem, strengths: np.ndarray, settings: NestedFit, grid: int, examples: np.ndarray
) -> np.ndarray:
    """How far the curve of each of `strengths[S, N]` is from 1 on these examples `[S]`; smaller is better.

    The mean over sizes that stand half at even steps of log k and half at even steps of k. For `track` the loss of
    training, which counts each example's error as well as that of the mean. Heads to be avoided are paid for.
    """
    sizes = grid_sizes(grid, problem.size)
    paid = np.stack([hard_masks(np.repeat(one[None], len(sizes), 0), sizes).mean(0) for one in strengths])
    paid = (paid * problem.prices).sum(1)
    if settings.objective == "track":
        errors = (problem.kept(strengths, sizes, examples) - problem.full[examples]) / problem.effect
        weights = row_weights(problem, settings, examples)
        losses = row_losses(errors, "track", settings.of_mean, settings.below, weights)[0]
        costs: np.ndarray = losses.reshape(len(strengths), len(sizes)).mean(1)
        return costs + paid
    shares = problem.explained(strengths, sizes, examples)
    return curve_costs(shares, settings.objective, settings.below) + paid
