"""Gradients of rows with their own gates: pieces, and the fixed shapes of a GPU, against one row at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.heads import COMPONENTS, HEADS
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.scores.gates.row_gradients import RowGradients, ShapedGradients
from helpers import word_task


def one_by_one(engine, gates, numbers):
    """Each row in a call of its own."""
    each = [engine.row_gradients([number], gate[None]) for number, gate in zip(numbers, gates, strict=True)]
    return np.concatenate([values for values, _ in each]), np.concatenate([slopes for _, slopes in each])


def drawn(engine, count=11):
    random = np.random.default_rng(2)
    numbers = random.integers(0, len(engine.rows), count)
    gates = np.where(engine.layout.exists, random.uniform(0, 1.5, (count, *engine.layout.shape)), 1)
    return gates, numbers


PAIRS = [
    ("zero", "all"),
    ("mean", "all"),
    ("patch", "all"),
    ("position_mean", "all"),
    ("mean", "last"),
    ("patch", "last"),
]


@pytest.mark.parametrize(
    ("reference", "positions", "components"),
    [(*pair, components) for pair in PAIRS for components in (HEADS, COMPONENTS)]
    + [("window:2:1", "all", HEADS), ("window:2:1", "last", HEADS)],
)
def test_every_way_to_run_rows_gives_the_same_gradients(tiny64, components, reference, positions):
    task = word_task(6, equal_length=reference == "position_mean")
    options = {"reference": reference, "positions": positions, "components": components}
    engine = Engine(tiny64, task, metric("logit_diff"), **options)
    gates, numbers = drawn(engine)
    values, slopes = one_by_one(engine, gates, numbers)
    longest = max(len(row.ids) for row in engine.rows)
    assert ShapedGradients.suits(engine)
    for rows in (1, 4, 100):
        pieces = RowGradients(engine, rows * longest)
        np.testing.assert_allclose(pieces(gates, numbers)[0], values, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(pieces(gates, numbers)[1], slopes, rtol=1e-8, atol=1e-11)
        shaped = ShapedGradients(engine, rows * longest, record=False)
        for count in (11, 5):  # fewer rows later on, as when seeds have stopped
            ours = shaped(torch.tensor(gates[:count], device=tiny64.device), numbers[:count])
            np.testing.assert_allclose(ours[0].cpu().numpy(), values[:count], rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(ours[1].cpu().numpy(), slopes[:count], rtol=1e-8, atol=1e-11)


def test_a_metric_that_compares_with_the_full_model_is_not_run_in_shapes(tiny64):
    assert not ShapedGradients.suits(Engine(tiny64, word_task(3), metric("kl")))
