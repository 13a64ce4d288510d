"""What an order of heads is trained on: the examples, their metric at both ends, and masks as gates.

Hard top-k masks are for the forward pass, soft ones have the gradient that trains the order.

E examples, N components that are ranked, R rows, S seeds, L layers, H heads, K sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headwise import stats
from headwise.model.measure.engine import Engine
from headwise.scores.gates.row_gradients import RowGradients
from headwise.tasks.examples import Task


@dataclass
class Problem:
    """One task under one model and reference, with the examples to train on and those held back."""

    engine: Engine
    exists: np.ndarray
    """`[L, H]`: the components that are ranked; all others are left as they are."""
    train: np.ndarray
    """Numbers of the examples that training sees."""
    held: np.ndarray
    """Numbers of the examples that choose between checkpoints and seeds. The same ones where there are too few."""
    full: np.ndarray  # E: the metric with every component
    none: np.ndarray  # E: with every ranked component replaced by the reference
    rows: int = 0
    """Rows of backward passes so far."""
    prices: np.ndarray | float = 0.0  # N
    """What a mask pays for keeping each component, in units of the loss: not 0 for those that are to be avoided."""

    @classmethod
    def of(cls, engine: Engine, exists: np.ndarray, share: float, seed: int) -> Problem:
        """share: of the examples that are held back."""
        ends = np.stack([np.where(exists, 0.0, 1.0), np.ones(exists.shape)])
        none, full = engine.measure(ends).values
        train, held = split(engine.task, share, seed)
        return cls(engine, exists, train, held, full, none)

    def __post_init__(self) -> None:
        self._gradients = RowGradients(self.engine)

    @property
    def size(self) -> int:
        """N: how many components are ranked."""
        return int(self.exists.sum())

    @property
    def effect(self) -> float:
        """m(full) − m(none), the mean over all examples: positive where the metric is higher with all components."""
        return float((self.full - self.none).mean())

    @cached_property
    def spreads(self) -> np.ndarray:
        """For each example the standard deviation of m(full) within its family `[E]`, not below a share of the effect.

        The mean over facets of the deviation within its level; a level with few examples has that of all examples.
        """
        whole = self.full.std()
        by_facet = []
        for levels in self.engine.task.families().values():
            spreads = np.full(len(self.full), whole)
            for members in levels.values():
                if len(members) >= FEWEST:
                    spreads[members] = self.full[members].std()
            by_facet.append(spreads)
        spreads = np.mean(by_facet, axis=0) if by_facet else np.full(len(self.full), whole)
        return np.maximum(spreads, SMALLEST_SPREAD * abs(self.effect))

    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the effect over examples (or their groups)."""
        groups = self.engine.task.shared_groups()
        lo, hi = stats.mean_interval(self.full - self.none, groups=groups)
        return float(lo), float(hi)

    def gates(self, masks: np.ndarray) -> np.ndarray:
        """Masks `[R, N]` as gates `[R, L, H]`."""
        gates = np.ones((len(masks), *self.exists.shape))
        gates[:, self.exists] = masks
        return gates

    def gradients(self, masks: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Explained effect minus 1 of groups of rows `[G, B]`, and its gradient by the masks `[G, B, N]`.

        masks `[G, N]`: one per group; numbers `[G, B]`: the examples of each group.
        """
        per_row = np.repeat(masks, numbers.shape[1], axis=0)
        flat = numbers.ravel()
        values, gradients = self._gradients(self.gates(per_row), flat)
        self.rows += len(flat)
        errors = (values - self.full[flat]) / self.effect
        by_mask = gradients[:, self.exists] / self.effect
        return errors.reshape(numbers.shape), by_mask.reshape(*numbers.shape, -1)

    def explained(self, strengths: np.ndarray, sizes: np.ndarray, examples: np.ndarray) -> np.ndarray:
        """Explained effect `[S, K]` of the first k components of each of `strengths[S, N]`, on these examples.

        A ratio of means over the examples.
        """
        gained = (self.kept(strengths, sizes, examples) - self.none[examples]).mean(1)
        shares: np.ndarray = gained / (self.full[examples] - self.none[examples]).mean()
        return shares.reshape(len(strengths), len(sizes))

    def kept(self, strengths: np.ndarray, sizes: np.ndarray, examples: np.ndarray) -> np.ndarray:
        """The metric of these examples with the first k components of each of `strengths[S, N]` kept `[S·K, E]`."""
        masks = np.concatenate([hard_masks(np.repeat(one[None], len(sizes), 0), sizes) for one in strengths])
        nothing = self.gates(np.zeros((1, self.size)))[0]
        return self.engine.measure(self.gates(masks), examples, baseline=nothing).values


FEWEST = 8
"""With fewer examples none are held back (the training examples choose as well), and a level has no spread of its
own."""
SMALLEST_SPREAD = 0.1
"""The least spread of a family, in shares of the mean effect: where all examples are alike, errors below it are
small."""


def split(task: Task, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the examples to train on and of those held back; groups are not divided."""
    groups: list[Any] = task.groups()
    names = list(dict.fromkeys(groups))
    wanted = round(share * len(task))
    everything = np.arange(len(task))
    if len(task) < FEWEST or len(names) < 2 or wanted < 1:
        return everything, everything
    held: set[Any] = set()
    for index in np.random.default_rng([seed, 11]).permutation(len(names)):
        if sum(group in held for group in groups) < wanted and len(held) < len(names) - 1:
            held.add(names[index])
    inside = np.array([group in held for group in groups])
    return everything[~inside], everything[inside]


# ---- top-k masks --------------------------------------------------------------------------------------


_BISECTIONS = 30


def hard_masks(strengths: np.ndarray, k: np.ndarray) -> np.ndarray:
    """1 for the k largest of each row of `strengths[R, N]`, 0 for the others; equal ones by their place.

    >>> hard_masks(np.array([[0.1, 0.9, 0.5]]), np.array([2])).tolist()
    [[0.0, 1.0, 1.0]]
    """
    ranks = np.empty(strengths.shape, dtype=int)
    places = np.broadcast_to(np.arange(strengths.shape[1]), strengths.shape)
    np.put_along_axis(ranks, np.argsort(-strengths, axis=1, kind="stable"), places, axis=1)
    return (ranks < np.asarray(k)[:, None]).astype(float)


def soft_masks(strengths: np.ndarray, k: np.ndarray, temperature: float) -> np.ndarray:
    """a = sigmoid((s − τ) / T) for `strengths[R, N]`, with τ of each row such that Σ a = k; τ by bisection."""
    low = strengths.min(1) - 40 * temperature
    high = strengths.max(1) + 40 * temperature
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        over = _sigmoid((strengths - middle[:, None]) / temperature).sum(1) > k
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    return _sigmoid((strengths - ((low + high) / 2)[:, None]) / temperature)


def mask_gradient(soft: np.ndarray, by_mask: np.ndarray, temperature: float) -> np.ndarray:
    """The gradient with respect to the strengths `[R, N]`, from that with respect to the mask.

    τ moves with s: dτ/ds = w / Σw, w = a(1 − a). Where a mask is as good as hard (Σw near 0), nothing flows.
    """
    w = soft * (1 - soft)
    total = w.sum(1, keepdims=True)
    mean = np.divide((w * by_mask).sum(1, keepdims=True), total, out=np.zeros_like(total), where=total > 1e-9)
    gradient: np.ndarray = np.where(total > 1e-9, w * (by_mask - mean), 0.0) / temperature
    return gradient


def draw_sizes(random: np.random.Generator, count: int, total: int, kind: str = "mixed") -> np.ndarray:
    """`count` sizes of circuits k from 1 to `total` − 1, half of them drawn log-uniformly, half uniformly; or all
    uniformly.

    Log-uniform sizes put the first few heads in order, uniform ones keep the curve at 1 once it is there.
    """
    most = max(1, total - 1)
    spread = (random.permutation(count) + random.uniform(size=count)) / count  # one from each part of (0, 1)
    logarithmic = np.exp(spread * np.log(most + 1))
    uniform = 1 + spread * most
    logs = (random.permutation(count) % 2 == 0) & (kind == "mixed")
    return np.clip(np.where(logs, logarithmic, uniform).astype(int), 1, most)


def grid_sizes(count: int, total: int) -> np.ndarray:
    """At most `count` sizes from 1 to `total` − 1: half at even steps of the logarithm, half at even steps.

    >>> grid_sizes(8, 100).tolist()
    [1, 4, 13, 20, 40, 42, 59, 79]
    """
    most = max(1, total - 1)
    half = max(2, count // 2)
    logarithmic = np.exp((np.arange(half) + 0.25) / half * np.log(most))
    uniform = (np.arange(half) + 1) / (half + 1) * most
    return np.unique(np.clip(np.round(np.concatenate([logarithmic, uniform])).astype(int), 1, most))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = 0.5 * (1 + np.tanh(0.5 * x))
    return result
