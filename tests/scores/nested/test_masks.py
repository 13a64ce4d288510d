"""Top-k masks against sorting, a root finder and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit

from headwise.scores.nested.problem import draw_sizes, grid_sizes, hard_masks, mask_gradient, soft_masks

STRENGTHS = np.random.default_rng(0).normal(size=(5, 12))
SIZES = np.array([1, 3, 6, 10, 11])


def test_a_hard_mask_keeps_the_k_largest_and_equal_ones_by_their_place():
    masks = hard_masks(STRENGTHS, SIZES)
    for mask, strengths, k in zip(masks, STRENGTHS, SIZES, strict=True):
        assert set(np.flatnonzero(mask)) == set(sorted(range(12), key=lambda i: -strengths[i])[:k])
    assert hard_masks(np.zeros((1, 4)), np.array([2])).tolist() == [[1, 1, 0, 0]]


@pytest.mark.parametrize("temperature", [3.0, 1.0, 0.1, 0.01])
def test_a_soft_mask_is_a_sigmoid_whose_sum_is_k(temperature):
    masks = soft_masks(STRENGTHS, SIZES, temperature)
    np.testing.assert_allclose(masks.sum(1), SIZES, atol=1e-5)
    for mask, strengths, k in zip(masks, STRENGTHS, SIZES, strict=True):
        tau = brentq(lambda t, s, k: expit((s - t) / temperature).sum() - k, -200, 200, (strengths, k), 1e-13)
        np.testing.assert_allclose(mask, expit((strengths - tau) / temperature), atol=1e-6)


def test_a_cold_soft_mask_is_the_hard_one():
    np.testing.assert_allclose(soft_masks(STRENGTHS, SIZES, 1e-3), hard_masks(STRENGTHS, SIZES), atol=1e-3)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_the_gradient_of_a_soft_mask_includes_that_of_its_threshold(temperature):
    """Central differences of a smooth function of the mask, one strength at a time."""
    weights = np.random.default_rng(1).normal(size=STRENGTHS.shape)

    def value(strengths):
        return (weights * soft_masks(strengths, SIZES, temperature) ** 2).sum(1)

    soft = soft_masks(STRENGTHS, SIZES, temperature)
    ours = mask_gradient(soft, 2 * weights * soft, temperature)
    step = 1e-3 * temperature
    for i in range(12):
        nudge = np.zeros(12)
        nudge[i] = step
        slopes = (value(STRENGTHS + nudge) - value(STRENGTHS - nudge)) / (2 * step)
        np.testing.assert_allclose(ours[:, i], slopes, atol=2e-4 / temperature)
    np.testing.assert_allclose(ours.sum(1), 0, atol=1e-9)  # all strengths moved alike change no mask


def test_a_mask_that_is_as_good_as_hard_has_no_gradient_and_no_division_by_zero():
    soft = soft_masks(10 * STRENGTHS, SIZES, 1e-3)
    with np.errstate(all="raise"):
        assert not mask_gradient(np.round(soft), np.ones_like(soft), 1e-3).any()


def test_half_of_the_drawn_sizes_are_uniform_and_half_log_uniform():
    random = np.random.default_rng(3)
    drawn = np.concatenate([draw_sizes(random, 4, 270) for _ in range(5000)])
    assert (drawn.min(), drawn.max()) == (1, 269)
    for limit in (2, 16, 135):
        expected = (np.log(limit) / np.log(270) + (limit - 1) / 269) / 2
        assert (drawn < limit).mean() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("count", [1, 4])
def test_all_of_the_drawn_sizes_are_uniform_where_that_is_asked(count):
    random = np.random.default_rng(3)
    drawn = np.concatenate([draw_sizes(random, count, 270, "uniform") for _ in range(5000)])
    assert (drawn.min(), drawn.max()) == (1, 269)
    for limit in (16, 135):
        assert (drawn < limit).mean() == pytest.approx((limit - 1) / 269, abs=0.02)


@pytest.mark.parametrize("total", [2, 3, 9, 270])
def test_sizes_are_never_none_or_all(total):
    drawn = np.concatenate([draw_sizes(np.random.default_rng(seed), 3, total) for seed in range(50)])
    for sizes in (drawn, grid_sizes(16, total)):
        assert sizes.min() >= 1
        assert sizes.max() <= total - 1
    assert len(grid_sizes(16, total)) <= 16
