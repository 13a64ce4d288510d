"""What nested masks minimise, against torch's own Huber loss and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import huber_loss

from headwise.scores.nested.fit import BAND, curve_costs, row_losses

ERRORS = np.random.default_rng(0).normal(scale=0.3, size=(6, 5))


@pytest.mark.parametrize("of_mean", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("below", [1.0, 4.0])
def test_match_is_the_huber_loss_of_rows_and_of_their_mean(of_mean, below):
    losses, slopes = row_losses(ERRORS, "match", of_mean, below)
    errors = torch.tensor(ERRORS, requires_grad=True)

    def huber(x):
        loss = huber_loss(x, torch.zeros_like(x), delta=BAND, reduction="none") / BAND
        return loss * (1 + (below - 1) * (x < 0))

    expected = of_mean * huber(errors.mean(1)) + (1 - of_mean) * huber(errors).mean(1)
    np.testing.assert_allclose(losses, expected.detach().numpy(), atol=1e-12)
    expected.sum().backward()
    np.testing.assert_allclose(slopes, errors.grad.numpy(), atol=1e-12)


def test_match_is_smallest_at_the_full_effect_and_four_times_worse_below():
    levels = (-0.5, -0.05, 0, 0.05, 0.5)
    losses = [row_losses(np.full((1, 3), error), "match", 0.5, 4.0)[0].item() for error in levels]
    assert losses[2] == 0
    assert losses[0] == 4 * losses[4] > losses[1] == 4 * losses[3] > 0


def test_the_cost_of_a_curve_counts_what_it_lacks_more_than_what_it_has_too_much():
    dips, rises = np.array([[1.0, 0.8, 1.0]]), np.array([[1.0, 1.2, 1.0]])
    assert curve_costs(dips, "match", 4.0) == pytest.approx(4 * curve_costs(rises, "match", 4.0))
    assert curve_costs(dips, "match", 1.0) == pytest.approx(0.2 / 3)
    assert curve_costs(rises, "most", 4.0) == pytest.approx(-0.2 / 3)


def test_most_is_the_mean_effect_with_its_sign_turned():
    losses, slopes = row_losses(ERRORS, "most", 0.5, 4.0)
    np.testing.assert_allclose(losses, -ERRORS.mean(1))
    np.testing.assert_allclose(slopes, -1 / 5)


@pytest.mark.parametrize("of_mean", [0.0, 0.5])
def test_the_gradient_with_weights_is_that_of_finite_differences(of_mean):
    weights = np.random.default_rng(1).uniform(0.5, 8, size=ERRORS.shape)
    _, slopes = row_losses(ERRORS, "track", of_mean, 4.0, weights)
    for row in range(ERRORS.shape[1]):
        nudge = np.zeros(ERRORS.shape)
        nudge[:, row] = 1e-6
        above, below = (
            row_losses(ERRORS + sign * nudge, "track", of_mean, 4.0, weights)[0] for sign in (1, -1)
        )
        np.testing.assert_allclose(slopes[:, row], (above - below) / 2e-6, atol=1e-5)
    assert np.abs(slopes - row_losses(ERRORS, "match", of_mean, 4.0)[1]).max() > 0.1
