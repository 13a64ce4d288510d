"""Slopes by the gates, where rows of one batch have different numbers of scored positions."""

from __future__ import annotations

import numpy as np
import torch

from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.tasks import Example, Task

UNEQUAL = Task(
    "unequal",
    (
        Example("w03 w07 w05", " w11"),
        Example("w04 w06", " w12 w09 w21 w05"),
        Example("w08 w02 w09 w04", " w03 w10"),
    ),
    "mean_logprob",
)


def test_slopes_of_a_batch_are_those_of_its_rows_alone(tiny64):
    assert len(tiny64.capabilities.narrow) == 2, "without narrowed parts this is no test"
    values, slopes = Engine(tiny64, UNEQUAL, metric("mean_logprob")).gradients()
    for index in range(len(UNEQUAL)):
        alone = Engine(tiny64, UNEQUAL.take([index]), metric("mean_logprob")).gradients()
        np.testing.assert_allclose(values[index], alone[0][0], rtol=1e-9)
        np.testing.assert_allclose(slopes[index], alone[1][0], rtol=1e-6, atol=1e-10)


def test_slopes_of_a_batch_are_small_steps_of_its_gates(tiny64):
    engine = Engine(tiny64, UNEQUAL, metric("mean_logprob"))
    _, slopes = engine.gradients()
    step = 1e-4
    with torch.no_grad():
        for head in tiny64.heads()[::3]:
            ends = np.ones((2, *tiny64.shape))
            ends[:, head.layer, head.head] += (step, -step)
            high, low = engine.measure(ends).values
            np.testing.assert_allclose(
                slopes[:, head.layer, head.head], (high - low) / (2 * step), rtol=1e-4, atol=1e-7
            )
