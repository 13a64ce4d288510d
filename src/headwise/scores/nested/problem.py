"""What an order of heads is trained on: the examples, their metric at both ends, and masks as gates.

E examples, N components that are ranked, R rows, L layers, H heads, K sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise import stats
from headwise.model.measure.engine import Engine
from headwise.scores.gates.row_gradients import RowGradients
from headwise.scores.nested.masks import hard_masks
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
        masks = np.concatenate([hard_masks(np.repeat(one[None], len(sizes), 0), sizes) for one in strengths])
        nothing = self.gates(np.zeros((1, self.size)))[0]
        values = self.engine.measure(self.gates(masks), examples, baseline=nothing).values
        gained = (values - self.none[examples]).mean(1)
        shares: np.ndarray = gained / (self.full[examples] - self.none[examples]).mean()
        return shares.reshape(len(strengths), len(sizes))


FEWEST = 8
"""With fewer examples none are held back: the training examples choose as well."""


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
