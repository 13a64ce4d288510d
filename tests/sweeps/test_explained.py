"""What is read off a curve, against loops that walk along it."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.sweeps.explained import areas, heads_needed, knee_points, resampled_needs, spread_points


def walked(k, shares, threshold, stays=False):
    """Head by head along the straight lines between the points."""
    every = range(int(k[0]), int(k[-1]) + 1)
    heights = [np.interp(one, k, shares) for one in every]
    if stays:
        below = [one for one, height in zip(every, heights, strict=True) if height < threshold - 1e-12]
        answer = below[-1] + 1 if below else every[0]
        return answer if answer <= every[-1] else np.nan
    return next((one for one, h in zip(every, heights, strict=True) if h >= threshold - 1e-12), np.nan)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("stays", [False, True])
def test_heads_needed_is_what_walking_along_the_curve_finds(seed, stays):
    draw = np.random.default_rng(seed)
    k = np.array([0, *sorted(draw.choice(np.arange(1, 40), 9, replace=False)), 40])
    shares = np.concatenate([[0], draw.uniform(-0.3, 1.4, 9), [1]])
    for threshold in (0.2, 0.9, 1.0):
        assert heads_needed(k, shares, threshold, stays=stays) == walked(k, shares, threshold, stays)


def test_heads_needed_of_many_curves_is_that_of_each():
    draw = np.random.default_rng(0)
    k, shares = np.arange(8), draw.uniform(-0.5, 1.5, (50, 8))
    for stays in (False, True):
        together = heads_needed(k, shares, 0.9, stays=stays)
        alone = [heads_needed(k, one, 0.9, stays=stays) for one in shares]
        np.testing.assert_array_equal(together, alone)
    assert np.isnan(together).any()  # a curve that ends below never stays
    assert not np.isnan(together).all()


def test_areas_are_those_of_triangles_and_rectangles():
    k = np.array([0, 5, 10])
    cpr, cmd = areas(k, np.array([0, 1, 1]), 10)
    assert (cpr, cmd) == (pytest.approx(0.75), pytest.approx(0.25))
    cpr, cmd = areas(k, np.array([0, 2, 1]), 10)  # parts that outdo the whole raise one and not the other
    assert (cpr, cmd) == (pytest.approx(1.25), pytest.approx(0.75))


def test_heads_needed_in_resamples_are_those_of_a_plain_bootstrap():
    draw = np.random.default_rng(1)
    k = np.array([0, 2, 5, 9])
    effect = draw.uniform(1, 3, 12)
    gains = np.stack(
        [np.zeros(12), 0.5 * effect + draw.normal(0, 1, 12), 0.8 * effect + draw.normal(0, 1, 12), effect]
    )
    ours = resampled_needs(k, gains, effect, 0.9)
    rows = [draw.integers(0, 12, 12) for _ in range(4000)]
    plain = [walked(k, gains[:, r].mean(1) / effect[r].mean(), 0.9) for r in rows]
    for number in range(1, 10):
        assert np.mean(ours == number) == pytest.approx(np.mean(np.array(plain) == number), abs=0.04)


def test_all_of_the_effect_is_reached_with_all_heads_in_every_resample():
    draw = np.random.default_rng(2)
    effect = draw.uniform(1, 3, 15)
    gains = np.stack([np.zeros(15), 0.5 * effect, effect])
    assert (resampled_needs(np.array([0, 4, 9]), gains, effect, 1.0) == 9).all()


@pytest.mark.parametrize(("total", "points"), [(270, 25), (16, 25), (1, 8), (1024, 8)])
def test_points_are_spread_from_none_to_all(total, points):
    found = spread_points(total, points)
    assert found[0] == 0
    assert found[-1] == total
    assert found == sorted(set(found))
    assert len(found) <= points
    if total > points:  # closer together where heads are few
        assert found[2] - found[1] < found[-1] - found[-2]


@pytest.mark.parametrize("knee", [3, 40, 133, 262])
def test_two_rounds_near_the_knee_find_it_to_the_head(knee):
    """A curve of 270 heads that jumps at one of them, found with 25 points."""
    k = np.array(spread_points(270, 9))
    for points in (8, 8):
        k = np.sort(np.concatenate([k, knee_points(k, (k >= knee).astype(float), 0.9, points)]))
    assert len(k) == len(set(k)) <= 25
    assert knee in k
    assert knee - 1 in k


def test_a_curve_that_comes_back_is_looked_at_in_both_places():
    k = np.array(spread_points(100, 9))

    def height(x):
        return np.where(x < 20, x / 20, np.where(x < 60, 0.5, 1.0))

    further = knee_points(k, height(k), 0.9, 8)
    first = heads_needed(k, height(k), 0.9)
    last = heads_needed(k, height(k), 0.9, stays=True)
    assert last >= first
    assert any(abs(one - last) < 12 for one in further)
    assert not set(further) & set(k)


def test_a_curve_without_numbers_is_not_refined():
    assert knee_points(np.array([0, 5, 10]), np.array([np.nan] * 3), 0.9, 6) == []
