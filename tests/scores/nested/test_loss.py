"""What nested masks minimise, against torch's own Huber loss and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import huber_loss

from headwise.scores.nested.loss import BAND, row_losses

ERRORS = np.random.default_rng(0).normal(scale=0.3, size=(6, 5))


@pytest.mark.parametrize("of_mean", [0.0, 0.5, 1.0])
def test_match_is_the_huber_loss_of_rows_and_of_their_mean(of_mean):
    losses, slopes = row_losses(ERRORS, "match", of_mean)
    errors = torch.tensor(ERRORS, requires_grad=True)

    def huber(x):
        return huber_loss(x, torch.zeros_like(x), delta=BAND, reduction="none") / BAND

    expected = of_mean * huber(errors.mean(1)) + (1 - of_mean) * huber(errors).mean(1)
    np.testing.assert_allclose(losses, expected.detach().numpy(), atol=1e-12)
    expected.sum().backward()
    np.testing.assert_allclose(slopes, errors.grad.numpy(), atol=1e-12)


def test_match_is_smallest_at_the_full_effect_and_as_bad_above_as_below():
    losses = [
        row_losses(np.full((1, 3), error), "match", 0.5)[0].item() for error in (-0.5, -0.05, 0, 0.05, 0.5)
    ]
    assert losses[2] == 0
    assert losses[0] == losses[4] > losses[1] == losses[3] > 0


def test_most_is_the_mean_effect_with_its_sign_turned():
    losses, slopes = row_losses(ERRORS, "most", 0.5)
    np.testing.assert_allclose(losses, -ERRORS.mean(1))
    np.testing.assert_allclose(slopes, -1 / 5)
