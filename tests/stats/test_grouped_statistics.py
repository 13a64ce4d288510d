"""Examples that share a group: groups are resampled and flipped, and count once. Without groups nothing changes."""

from __future__ import annotations

import numpy as np
import pytest

from headwise import stats
from headwise.errors import HeadwiseError
from headwise.stats.paired import compare_paired
from headwise.stats.resampling import group_codes, standard_error

COPIES = 4
ONE_BY_ONE = np.random.default_rng(7).normal(0.3, 1.0, size=(18, 5))
COPIED = np.repeat(ONE_BY_ONE, COPIES, axis=0)
OWNER = np.repeat(np.arange(18), COPIES)


@pytest.mark.parametrize("groups", [None, list(range(18)), [None] * 18, [f"g{i}" for i in range(18)]])
def test_without_shared_groups_every_number_is_the_same_to_the_bit(groups):
    below = ONE_BY_ONE[:, 0] + 9
    for with_groups, without in [
        (stats.mean_interval(ONE_BY_ONE, groups=groups), stats.mean_interval(ONE_BY_ONE)),
        (stats.ratio_interval(ONE_BY_ONE, below, groups=groups), stats.ratio_interval(ONE_BY_ONE, below)),
        (stats.resampled_ratio(ONE_BY_ONE, below, groups=groups), stats.resampled_ratio(ONE_BY_ONE, below)),
        (stats.crossed_interval(ONE_BY_ONE.T, groups=groups), stats.crossed_interval(ONE_BY_ONE.T)),
        (stats.share_interval(ONE_BY_ONE > 0, groups=groups), stats.share_interval(ONE_BY_ONE > 0)),
    ]:
        assert np.array_equal(with_groups, without)
    assert np.array_equal(stats.sign_flip(ONE_BY_ONE, groups=groups), stats.sign_flip(ONE_BY_ONE))
    assert stats.stability(ONE_BY_ONE, 2, groups=groups) == stats.stability(ONE_BY_ONE, 2)
    plain = ONE_BY_ONE.std(axis=0, ddof=1) / np.sqrt(18)
    np.testing.assert_allclose(standard_error(ONE_BY_ONE, group_codes(groups, 18)), plain, rtol=1e-14)


def test_copies_of_examples_say_no_more_than_the_examples():
    """Every function on copies, grouped by what they are copies of, gives what it gives without the copies."""
    alike = {"rtol": 1e-9, "atol": 1e-12}
    for found, expected in [
        (stats.mean_interval(COPIED, groups=OWNER), stats.mean_interval(ONE_BY_ONE)),
        (
            stats.difference_interval(COPIED, COPIED**2, groups=OWNER),
            stats.difference_interval(ONE_BY_ONE, ONE_BY_ONE**2),
        ),
        (
            stats.ratio_interval(COPIED, COPIED[:, 0] + 9, groups=OWNER),
            stats.ratio_interval(ONE_BY_ONE, ONE_BY_ONE[:, 0] + 9),
        ),
        (
            stats.resampled_ratio(COPIED, COPIED[:, 0] + 9, groups=OWNER),
            stats.resampled_ratio(ONE_BY_ONE, ONE_BY_ONE[:, 0] + 9),
        ),
        (
            stats.crossed_interval(COPIED.T, groups=OWNER),
            stats.crossed_interval(ONE_BY_ONE.T),
        ),
        (
            stats.crossed_interval(COPIED.T, denominator=COPIED[:, 0] + 9, groups=OWNER),
            stats.crossed_interval(ONE_BY_ONE.T, denominator=ONE_BY_ONE[:, 0] + 9),
        ),
        (stats.sign_flip(COPIED, groups=OWNER), stats.sign_flip(ONE_BY_ONE)),
        (standard_error(COPIED, group_codes(OWNER, len(OWNER))), standard_error(ONE_BY_ONE)),
        (stats.stability(COPIED, 2, groups=OWNER), stats.stability(ONE_BY_ONE, 2)),
    ]:
        np.testing.assert_allclose(found, expected, **alike)


def test_grouped_intervals_are_wider_by_the_root_of_the_group_size_and_naive_ones_cover_too_seldom():
    """20 groups of 9 examples that are all alike, drawn around 0: how often does each interval hold the 0?"""
    random = np.random.default_rng(1)
    group = np.repeat(np.arange(20), 9)
    columns = np.repeat(
        random.normal(size=(20, 400)), 9, axis=0
    )  # a column is a repetition of the experiment
    columns += random.normal(scale=0.05, size=columns.shape)
    (lo, hi), (low, high) = (stats.mean_interval(columns, groups=groups) for groups in (None, group))
    assert np.median((high - low) / (hi - lo)) == pytest.approx(np.sqrt(9), rel=0.1)
    naive, grouped = (((lower < 0) & (upper > 0)).mean() for lower, upper in ((lo, hi), (low, high)))
    assert naive < 0.6
    assert 0.92 < grouped < 0.98
    p_naive, p_grouped = (stats.sign_flip(columns, groups=groups, flips=999) for groups in (None, group))
    assert (p_naive < 0.05).mean() > 0.4
    assert (p_grouped < 0.05).mean() < 0.09


def test_the_sign_of_a_whole_group_is_flipped():
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])[:, None]
    groups = ["a", "a", "b", "b", "c", None]
    sums = np.array([3.0, 7.0, 5.0, 6.0])
    signs = np.array(np.meshgrid(*[[1, -1]] * 4)).reshape(4, -1)
    by_hand = (np.abs(sums @ signs) >= sums.sum() - 1e-9).mean()
    assert stats.sign_flip(values, groups=groups) == pytest.approx(by_hand)


def test_one_group_has_no_interval():
    assert np.isnan(stats.mean_interval(np.arange(4.0), groups=["a"] * 4)).all()
    assert np.isnan(stats.crossed_interval(np.arange(4.0)[None], groups=["a"] * 4)).all()
    assert np.isnan(standard_error(np.arange(4.0), group_codes(["a"] * 4, 4)))
    assert np.isnan(stats.stability(ONE_BY_ONE, 2, groups=["a"] * 18))
    with pytest.raises(HeadwiseError, match="18 values need as many"):
        stats.mean_interval(ONE_BY_ONE, groups=["a"])


def test_paired_conditions_count_groups_of_problems_once():
    random = np.random.default_rng(4)
    a, b = (random.integers(0, 2, (24, 1)).astype(float) for _ in range(2))
    alone = compare_paired(a, b)
    assert alone == compare_paired(a, b, groups=list(range(24)))
    assert alone.test == "McNemar"
    owner = np.repeat(np.arange(24), 3)
    copied = compare_paired(a.repeat(3, axis=0), b.repeat(3, axis=0), groups=owner)
    assert copied.test == "sign flip"
    assert (copied.lo, copied.hi) == (pytest.approx(alone.lo), pytest.approx(alone.hi))
    assert copied.p == pytest.approx(float(stats.sign_flip(b - a)[0]))
    naive = compare_paired(a.repeat(3, axis=0), b.repeat(3, axis=0))
    assert copied.hi - copied.lo > 1.5 * (naive.hi - naive.lo)
    several = compare_paired(a.repeat(2, axis=1), b.repeat(2, axis=1))
    assert copied.detectable == pytest.approx(several.detectable)
