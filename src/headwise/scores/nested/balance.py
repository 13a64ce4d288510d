"""The order of the heads after the circuit: added one by one, they should leave the explained effect where it is.

Once the first few heads explain the behaviour, the others together add nothing, but one by one they help or hinder. A
curve stays at 1 if heads that help and heads that hinder alternate. Training sees this last, because every head counts
little; here it is done directly. At a mask of k heads one backward pass says what each further head would add, to first
order, and the pass itself says where the curve stands; the next few heads are those that keep it nearest to 1.

S seeds, N components, B examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwise.scores.nested.problem import Problem

BELOW = 2.0
"""How many times worse it is to be below 1 than above: a circuit that does less than the model has lost something."""


def balanced_orders(
    problem: Problem, orders: Sequence[np.ndarray], starts: Sequence[int], step: int, numbers: np.ndarray
) -> list[np.ndarray]:
    """Orders `[N]` with the same first heads as `orders`, each up to its start, and the others balanced.

    step: heads that are chosen from one backward pass over the examples `numbers[B]`; all seeds share the pass.
    """
    chosen = [list(order[:start]) for order, start in zip(orders, starts, strict=True)]
    rest = [list(order[start:]) for order, start in zip(orders, starts, strict=True)]
    while any(rest):
        active = [number for number, left in enumerate(rest) if left]
        masks = np.zeros((len(active), problem.size))
        for mask, number in zip(masks, active, strict=True):
            mask[chosen[number]] = 1
        errors, by_mask = problem.gradients(masks, np.tile(numbers, (len(active), 1)))
        for number, error, gains in zip(active, errors.mean(1), by_mask.mean(1), strict=True):
            for _ in range(min(step, len(rest[number]))):
                place = next_head(float(error), gains[rest[number]])
                error = error + gains[rest[number][place]]
                chosen[number].append(rest[number].pop(place))
    return [np.array(order) for order in chosen]


def next_head(error: float, gains: np.ndarray) -> int:
    """Which of the heads that add `gains` to the explained effect brings it nearest to 1; `error`: the effect minus 1.

    >>> next_head(0.0, np.array([0.3, -0.01, 0.2])), next_head(-0.2, np.array([0.3, -0.01, 0.2]))
    (1, 2)
    >>> next_head(0.0, np.array([-0.3, 0.3]))
    1
    """
    after = error + gains
    return int(np.argmin(np.where(after >= 0, after, -BELOW * after)))
