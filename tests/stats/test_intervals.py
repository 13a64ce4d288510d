"""Intervals against scipy, against formulas written another way, and against what simulation says they must cover."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from headwise import stats
from headwise.stats.intervals import is_share

RANDOM = np.random.default_rng(11)


@pytest.fixture
def sample() -> np.ndarray:
    return np.random.default_rng(7).normal(0.3, 1.0, size=(25, 6))


def covered(interval, truth: float) -> float:
    lo, hi = interval
    return float(((lo <= truth) & (truth <= hi)).mean())


# --- means ----------------------------------------------------------------------------------------------------


def test_the_interval_of_a_mean_is_that_of_scipys_t_test(sample):
    lo, hi = stats.mean_interval(sample, level=0.9)
    theirs = scipy.stats.ttest_1samp(sample, 0).confidence_interval(0.9)
    np.testing.assert_allclose([lo, hi], [theirs.low, theirs.high])


@pytest.mark.parametrize("n", [8, 16, 64])
def test_the_interval_of_a_mean_covers_as_often_as_it_says(n):
    """Plain percentiles of a bootstrap cover 88 % at n = 8."""
    assert 0.945 < covered(stats.mean_interval(RANDOM.normal(size=(n, 20_000))), 0) < 0.955
    skewed = covered(stats.mean_interval(RANDOM.exponential(size=(n, 20_000))), 1)
    assert skewed > (0.87 if n == 8 else 0.90)


def test_a_constant_column_has_an_interval_of_no_width():
    lo, hi = stats.mean_interval(np.full((7, 2), 0.1))
    assert lo.tolist() == hi.tolist() == [0.1, 0.1]


def test_groups_have_the_cluster_robust_error_of_a_regression_on_a_constant():
    cluster = np.array(["a", "b", "b", "c", "c", "c", "d"])
    values = RANDOM.normal(size=7)
    deviation = values - values.mean()
    sums = [deviation[cluster == name].sum() for name in "abcd"]
    error = np.sqrt(sum(one**2 for one in sums) * 4 / 3) / 7
    half = scipy.stats.t.ppf(0.975, 3) * error
    np.testing.assert_allclose(
        stats.mean_interval(values, groups=cluster), [values.mean() - half, values.mean() + half]
    )


# --- shares ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "n"), [(0, 37), (1, 37), (18, 37), (37, 37), (3, 8)])
def test_the_interval_of_a_share_is_that_of_scipys_binomial_test(right, n):
    values = np.repeat([1.0, 0.0], [right, n - right])
    theirs = scipy.stats.binomtest(right, n).proportion_ci(method="wilson")
    np.testing.assert_allclose(stats.share_interval(values), [theirs.low, theirs.high], atol=1e-12)
    np.testing.assert_allclose(stats.metric_interval(values), stats.share_interval(values))


def test_none_of_37_is_not_certain():
    lo, hi = stats.metric_interval(np.zeros(37))
    assert lo == 0
    assert hi == pytest.approx(0.094, abs=5e-4)
    lo, hi = stats.metric_interval(np.ones(37))
    assert hi == 1
    assert lo == pytest.approx(0.906, abs=5e-4)


def test_a_share_of_5_percent_is_covered_with_37_examples():
    values = (RANDOM.random((37, 20_000)) < 0.05).astype(float)
    assert covered(stats.share_interval(values), 0.05) >= 0.93


def test_copies_of_answers_say_nothing_more_about_a_share():
    values = (RANDOM.random(40) < 0.2).astype(float)
    alone = stats.share_interval(values)
    lo, hi = stats.share_interval(np.repeat(values, 5), groups=np.repeat(np.arange(40), 5))
    assert alone[0] - 0.02 < lo <= alone[0]
    assert alone[1] <= hi < alone[1] + 0.02
    naive = stats.share_interval(np.repeat(values, 5))
    assert naive[1] - naive[0] < 0.6 * (hi - lo)
    none = stats.share_interval(np.zeros(40), groups=np.arange(40) // 4)
    assert none[1] > stats.share_interval(np.zeros(10))[1]  # ten groups, with t for z


def test_a_metric_with_other_values_has_the_interval_of_a_mean(sample):
    np.testing.assert_array_equal(stats.metric_interval(sample), stats.mean_interval(sample))
    assert is_share(np.array([0, 1, 1]))
    assert not is_share(np.array([0, 0.5]))
    assert not is_share(np.array([0, np.nan]))


# --- differences ----------------------------------------------------------------------------------------------


def test_the_interval_of_a_difference_is_that_of_the_paired_differences():
    ability = RANDOM.normal(0, 10, size=200)  # what pairing removes
    a, b = ability + RANDOM.normal(0.5, 0.1, 200), ability
    lo, hi = stats.difference_interval(a, b)
    assert 0.45 < lo < 0.5 < hi < 0.55


def test_two_conditions_that_agree_everywhere_may_still_differ():
    same = (RANDOM.random(60) < 0.5).astype(float)
    lo, hi = stats.difference_interval(same, same)
    assert lo == pytest.approx(-hi)
    assert 0.03 < hi < 0.07
    np.testing.assert_allclose(
        stats.crossed_interval(np.stack([same, same]), before=same), (lo, hi), atol=0.005
    )


def test_differences_of_shares_are_covered():
    a, b = (RANDOM.random((2, 40, 20_000)) < np.array([0.1, 0.05])[:, None, None]).astype(float)
    assert covered(stats.difference_interval(a, b), 0.05) > 0.94
    assert covered(stats.effect_interval(a - b), 0.05) > 0.94


def test_a_head_that_changes_nothing_is_exactly_0_unless_answers_are_counted():
    effects = np.stack([RANDOM.normal(size=12), np.zeros(12)], axis=1)
    lo, hi = stats.effect_interval(effects)
    assert (lo[1], hi[1]) == (0, 0)
    lo, hi = stats.effect_interval(np.stack([np.eye(12)[0], np.zeros(12)], axis=1))
    assert lo[1] < 0 < hi[1]


# --- ratios ---------------------------------------------------------------------------------------------------


def test_a_ratio_is_all_values_that_a_paired_t_test_does_not_reject():
    top, bottom = RANDOM.normal(1, 1, size=30), RANDOM.normal(4, 1, size=30)
    ratio = stats.ratio_interval(top, bottom)
    assert ratio.value == pytest.approx(top.sum() / bottom.sum())
    for end in (ratio.lo, ratio.hi):
        assert scipy.stats.ttest_1samp(top - end * bottom, 0).pvalue == pytest.approx(0.05)
    middle = scipy.stats.ttest_1samp(top - (ratio.lo + ratio.hi) / 2 * bottom, 0)
    assert middle.pvalue > 0.05


def test_a_ratio_to_itself_is_one_without_doubt():
    effect = RANDOM.normal(2, 1, 40)
    np.testing.assert_allclose(stats.ratio_interval(effect, effect), 1.0)
    np.testing.assert_allclose(stats.ratio_interval(effect, -effect), -1.0)


def test_a_ratio_over_something_that_may_be_zero_is_undefined():
    small, sure = RANDOM.normal(0.0, 1, 50), RANDOM.normal(5.0, 1, 50)
    assert np.isnan(stats.ratio_interval(sure, small)).all()
    both = stats.ratio_interval(np.stack([sure, sure], 1), np.stack([small, sure], 1))
    assert np.isnan(both.lo[0])
    assert both.value[1] == pytest.approx(1)


def test_resampled_ratios_keep_curves_paired_and_agree_with_the_closed_formula():
    below = RANDOM.uniform(1, 2, 40)
    above = np.stack([0.5 * below + RANDOM.normal(0, 0.3, 40), below], axis=1)
    resampled = stats.resampled_ratio(above, below, seed=4)
    whole = stats.ratio_interval(above, below)
    assert resampled.shape == (10_000, 2)
    np.testing.assert_allclose(
        stats.resampled_interval(resampled[:, 0], 40), (whole.lo[0], whole.hi[0]), atol=0.01
    )
    np.testing.assert_allclose(resampled[:, 1], 1, rtol=1e-12)
    np.testing.assert_allclose(stats.resampled_ratio(2 * above, below, seed=4), 2 * resampled)


@pytest.mark.parametrize("n", [8, 16])
def test_percentiles_of_resamples_are_widened_to_those_of_students_t(n):
    held = []
    for _ in range(600):
        values = RANDOM.normal(3, 1, size=n)
        resampled = stats.resampled_ratio(values[:, None], np.ones(n), draws=1_000)[:, 0]
        held.append([stats.resampled_interval(resampled, n), np.quantile(resampled, [0.025, 0.975])])
    ends = np.array(held)  # 600, method, 2
    expanded, plain = ((ends[:, :, 0] <= 3) & (ends[:, :, 1] >= 3)).mean(axis=0)
    assert plain < expanded
    assert 0.925 < expanded < 0.975


def test_a_resample_that_never_gets_there_counts_as_more_than_all_others():
    values = np.concatenate([np.arange(98.0), [np.nan] * 6])
    lo, hi = stats.resampled_interval(values, 1_000)
    assert lo == 2
    assert np.isnan(hi)


# --- draws and examples ---------------------------------------------------------------------------------------


def test_one_draw_has_the_interval_over_examples(sample):
    row = sample[:, :1].T
    np.testing.assert_allclose(stats.crossed_interval(row), np.ravel(stats.mean_interval(sample[:, 0])))
    right = (row > 0).astype(float)
    np.testing.assert_allclose(stats.crossed_interval(right), stats.share_interval(right[0]))
    below = sample[:, 1] + 9
    np.testing.assert_allclose(
        stats.crossed_interval(row, denominator=below), stats.ratio_interval(sample[:, 0], below)[1:]
    )


def test_rows_that_differ_make_the_crossed_interval_wider():
    table = RANDOM.normal(0, 1, size=(6, 1)) + RANDOM.normal(0, 0.1, size=(6, 50))
    lo, hi = stats.crossed_interval(table)
    flat_lo, flat_hi = stats.mean_interval(table.ravel())
    assert hi - lo > 3 * (flat_hi - flat_lo)


@pytest.mark.parametrize("draws", [3, 5])
def test_the_crossed_interval_covers_over_draws_and_examples(draws):
    held = []
    for _ in range(1_500):
        table = RANDOM.normal(size=(draws, 1)) + RANDOM.normal(size=(1, 16)) + RANDOM.normal(size=(draws, 16))
        lo, hi = stats.crossed_interval(table)
        held.append(lo <= 0 <= hi)
    assert 0.93 < np.mean(held) < 0.985


def test_answers_of_random_draws_that_are_all_wrong_have_a_width():
    lo, hi = stats.crossed_interval(np.zeros((5, 37)))
    assert lo == 0
    assert 0.08 < hi < 0.11
