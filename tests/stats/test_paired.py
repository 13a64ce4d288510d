"""Paired comparisons against enumeration and simulation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headwise import stats
from headwise.errors import HeadwiseError
from headwise.stats.paired import compare_paired, detectable_by_mcnemar, detectable_mean


@pytest.mark.parametrize("samples", [1, 4])
def test_a_condition_equal_to_another_differs_by_nothing_but_other_problems_might(samples):
    right = np.random.default_rng(0).integers(0, 2, (60, samples))
    found = compare_paired(right, right.copy(), comparisons=2)
    assert (found.difference, found.p) == (0, 1)
    assert found.lo == pytest.approx(-found.hi)
    assert 0.03 < found.hi < 0.06
    assert (found.only_a, found.only_b) == (0, 0)


def test_mcnemar_counts_the_problems_that_come_out_differently():
    a, b = np.zeros(12), np.zeros(12)
    a[:2], b[2:9] = 1, 1
    found = compare_paired(a, b)
    assert (found.only_a, found.only_b, found.n, found.test) == (2, 7, 12, "McNemar")
    assert found.difference == pytest.approx(5 / 12)
    # Under the null each of the nine is heads or tails.
    outcomes = [abs(sum(signs)) for signs in itertools.product((-1, 1), repeat=9)]
    assert found.p == pytest.approx(np.mean([size >= 5 for size in outcomes]))


def test_a_planted_difference_is_found_with_one_answer_and_with_several():
    draw = np.random.default_rng(1)
    hard = draw.random((120, 1))
    a = (draw.random((120, 5)) > hard).astype(float)
    b = (draw.random((120, 5)) > hard - 0.25).astype(float)
    one = compare_paired(a[:, 0], b[:, 0])
    several = compare_paired(a, b)
    for found in (one, several):
        assert found.p < 0.01
        assert found.lo > 0
    assert several.test == "sign flip"
    assert several.hi - several.lo < one.hi - one.lo  # more answers say more


def test_answers_of_one_problem_are_no_independent_evidence():
    """Each problem's five answers are copies: the interval is that of one answer each."""
    draw = np.random.default_rng(2)
    a, b = draw.integers(0, 2, (40, 1)), draw.integers(0, 2, (40, 1))
    once, copied = compare_paired(a, b), compare_paired(a.repeat(5, 1), b.repeat(5, 1))
    assert (copied.lo, copied.hi) == pytest.approx((once.lo, once.hi))


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5])
def test_what_is_called_detectable_is_found_in_four_of_five_repetitions(share):
    n = 60
    difference = detectable_by_mcnemar(n, share)
    together = max(share, difference)
    draw = np.random.default_rng(3)
    for_b = draw.random((4000, n)) < together
    wins = draw.random((4000, n)) < (1 + difference / together) / 2
    b, a = (for_b & wins).sum(1), (for_b & ~wins).sum(1)
    power = np.mean([stats.mcnemar_exact(int(x), int(y)) <= 0.05 for x, y in zip(a, b, strict=True)])
    assert power == pytest.approx(0.8, abs=0.03)


def test_what_is_detectable_among_means_is_found_in_four_of_five_repetitions():
    draw = np.random.default_rng(4)
    spread = draw.normal(0, 0.3, 50)
    difference = detectable_mean(spread)
    repeated = draw.normal(difference, spread.std(ddof=1), (300, 50))
    p = stats.sign_flip(repeated.T, flips=2000)
    assert (p < 0.05).mean() == pytest.approx(0.8, abs=0.07)


def test_more_comparisons_need_larger_differences_and_too_few_problems_find_none():
    assert detectable_by_mcnemar(60, 0.3, level=1 - 0.05 / 3) > detectable_by_mcnemar(60, 0.3)
    assert np.isnan(detectable_by_mcnemar(4, 0.5))
    assert np.isnan(detectable_mean([0.5]))
    assert np.isnan(detectable_mean([0.0, 0.0, 0.0]))


@pytest.mark.parametrize(
    ("a", "b"), [(np.zeros(3), np.zeros(4)), (np.zeros(0), np.zeros(0)), ([np.nan], [1.0])]
)
def test_what_is_not_paired_is_refused(a, b):
    with pytest.raises(HeadwiseError, match=r"same problems|finite numbers"):
        compare_paired(a, b)
