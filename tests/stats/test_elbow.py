"""How many heads stand out, on curves whose bend is known."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.stats.orders import elbow_count


def farthest_point(curve: np.ndarray) -> int:
    """The slow way: distance of every point to the chord by the cross product of two vectors."""
    ends = np.array([[0, curve[0]], [len(curve) - 1, curve[-1]]], dtype=float)
    chord = ends[1] - ends[0]
    distances = [
        abs(chord[0] * (y - ends[0, 1]) - chord[1] * (x - ends[0, 0])) / np.hypot(*chord)
        for x, y in enumerate(curve)
    ]
    return int(np.argmax(distances))


@pytest.mark.parametrize("large", [1, 3, 20, 97])
def test_a_step_has_its_elbow_where_it_falls(large):
    curve = np.r_[np.full(large, 10.0), np.ones(100 - large)]
    assert elbow_count(np.random.default_rng(large).permutation(curve)) == large


def test_a_smooth_curve_has_its_elbow_at_the_point_farthest_from_the_chord():
    for curve in (1 / np.arange(1.0, 271), np.exp(-np.arange(90.0) / 7), np.geomspace(5, 1e-3, 64)):
        assert elbow_count(curve) == farthest_point(curve) > 0


def test_the_hyperbola_bends_where_its_slope_is_that_of_the_chord():
    """y = 1/x from 1 to N: the slope −1/x² equals the chord's, −1/N, at x = √N."""
    assert elbow_count(1 / np.arange(1.0, 401)) == 20 - 1  # x = 20 is the elbow; 19 points lie before it


def test_sign_scale_and_gaps_do_not_matter():
    scores = np.random.default_rng(0).standard_cauchy((30, 9))
    expected = elbow_count(scores)
    assert elbow_count(-1e-7 * scores) == expected
    assert elbow_count(np.pad(scores, ((0, 2), (0, 0)), constant_values=np.nan)) == expected


@pytest.mark.parametrize(
    "scores", [np.zeros(9), np.full((4, 4), 0.3), np.ones(2), np.array([]), np.arange(10.0)]
)
def test_without_a_bend_no_head_stands_out(scores):
    assert elbow_count(scores) == 0
