"""Statistics against slow plain loops, against scipy, and against what simulation says they must do."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headwise import stats
from headwise.errors import HeadwiseError
from headwise.stats import resampling, significance

settings.register_profile("unhurried", deadline=None)  # a busy machine is no defect
settings.load_profile("unhurried")
NAN = float("nan")
SIGNS_OF_NINE = list(itertools.product((1, -1), repeat=9))
p_lists = st.lists(st.floats(0, 1), min_size=1, max_size=40).map(np.array)


@pytest.fixture
def sample() -> np.ndarray:
    return np.random.default_rng(7).normal(0.3, 1.0, size=(25, 6))


# --- what intervals and tests have in common -----------------------------------------------------------


def test_resamples_do_not_depend_on_how_the_work_is_cut_up(
    sample: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stats.resampled_ratio(sample, sample[:, 0] + 9, draws=500, seed=5)
    p = stats.sign_flip(sample, flips=500, seed=5)
    firm = stats.stability(sample, 2, resamples=300)
    monkeypatch.setattr(resampling, "_BLOCK", 700)  # one column and 28 resamples at once
    np.testing.assert_allclose(stats.resampled_ratio(sample, sample[:, 0] + 9, draws=500, seed=5), whole)
    np.testing.assert_array_equal(stats.sign_flip(sample, flips=500, seed=5), p)
    assert stats.stability(sample, 2, resamples=300) == pytest.approx(firm)


def test_the_trailing_shape_is_kept(sample: np.ndarray) -> None:
    flat = stats.mean_interval(sample)
    square = stats.mean_interval(sample.reshape(25, 2, 3))
    assert square[0].shape == (2, 3)
    np.testing.assert_array_equal(square[0].ravel(), flat[0])
    assert stats.mean_interval(sample[:, 0])[0].shape == ()
    assert stats.sign_flip(sample.reshape(25, 2, 3), flips=50).shape == (2, 3)
    assert stats.mean_interval(np.empty((4, 0)))[0].shape == (0,)


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_a_column_with_a_bad_value_is_nan_and_the_others_are_untouched(
    sample: np.ndarray, bad: float
) -> None:
    spoiled = sample.copy()
    spoiled[4, 2] = bad
    others, group = [0, 1, 3, 4, 5], np.arange(25) // 5
    for clean, dirty in [
        (stats.mean_interval(sample), stats.mean_interval(spoiled)),
        ((stats.sign_flip(sample, flips=300),), (stats.sign_flip(spoiled, flips=300),)),
        (stats.ratio_interval(sample, sample[:, 0] + 3), stats.ratio_interval(spoiled, sample[:, 0] + 3)),
        (stats.mean_interval(sample, groups=group), stats.mean_interval(spoiled, groups=group)),
    ]:
        for before, after in zip(clean, dirty, strict=True):
            assert np.isnan(after[2])
            np.testing.assert_allclose(after[others], before[others])


def test_one_example_gives_no_interval_and_no_crash() -> None:
    one = np.array([[0.4, -2.0]])
    assert np.isnan(stats.mean_interval(one)).all()
    assert np.isnan(stats.share_interval(np.ones((1, 2)))).all()
    assert np.isnan(stats.difference_interval(one, one + 1)).all()
    assert np.isnan(stats.ratio_interval(one, one + 5)).all()
    assert np.isnan(stats.mean_interval(one, groups=["a"])).all()
    assert np.isnan(stats.crossed_interval(one[:, :1])).all()
    assert np.isnan(stats.resampled_interval(np.ones(100), 1)).all()
    assert math.isnan(stats.stability(one, 1))
    assert stats.sign_flip(one).tolist() == [1, 1]
    assert np.isnan(stats.mean_interval(np.empty((0, 3)))).all()
    assert np.isnan(stats.sign_flip(np.empty((0, 3)))).all()


def test_settings_out_of_range_are_refused_with_a_sentence(sample: np.ndarray) -> None:
    with pytest.raises(HeadwiseError, match="between 0 and 1"):
        stats.mean_interval(sample, level=95)
    with pytest.raises(HeadwiseError, match="at least one draw"):
        stats.resampled_ratio(sample, sample[:, 0], draws=0)
    with pytest.raises(HeadwiseError, match="at least one flip"):
        stats.sign_flip(sample, flips=0)
    with pytest.raises(HeadwiseError, match="first axis"):
        stats.mean_interval(np.float64(3))
    with pytest.raises(HeadwiseError, match="equal shapes"):
        stats.difference_interval(sample, sample[:5])
    with pytest.raises(HeadwiseError, match="cluster names"):
        stats.mean_interval(np.ones(3), groups=["a", "b"])
    with pytest.raises(HeadwiseError, match="denominator"):
        stats.ratio_interval(np.ones(20), np.ones(10))


# --- sign flips ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("E", [1, 2, 5, 9])
def test_few_examples_are_tested_against_every_pattern_of_signs(E: int) -> None:
    columns = np.random.default_rng(E).normal(0.4, 1, size=(E, 4))
    expected = []
    for x in columns.T:
        sums = [
            abs(sum(s * v for s, v in zip(signs, x, strict=True)))
            for signs in itertools.product((1, -1), repeat=E)
        ]
        expected.append(sum(s >= abs(sum(x)) - 1e-12 for s in sums) / 2**E)
    np.testing.assert_allclose(stats.sign_flip(columns), expected)


def test_the_exact_test_agrees_with_scipys_permutation_test() -> None:
    x = np.random.default_rng(3).normal(0.5, 1, size=10)
    theirs = scipy.stats.permutation_test((x,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert stats.sign_flip(x) == pytest.approx(theirs.pvalue)


def test_random_flips_come_close_to_the_exact_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = np.random.default_rng(8).normal(0.3, 1, size=(12, 5))
    exact = stats.sign_flip(columns)
    monkeypatch.setattr(significance, "_EXACT_EXAMPLES", 0)
    np.testing.assert_allclose(stats.sign_flip(columns, flips=60_000), exact, atol=0.01)


def test_ties_count_as_extreme_even_where_sums_round_differently() -> None:
    # Six equal values: only the two patterns of one sign reach the observed sum.
    assert stats.sign_flip(np.full(6, 0.1)) == pytest.approx(2 / 64)
    # 0.1 + 0.2 − 0.3 is not 0 in floating point; in truth every |sum| ≥ 0.
    assert stats.sign_flip(np.array([0.1, 0.2, -0.3])) == 1
    wins = np.array([1.0] * 7 + [-1.0] * 3) * 0.1
    assert stats.sign_flip(wins) == pytest.approx(scipy.stats.binomtest(3, 10).pvalue)


def test_tenths_are_tested_as_the_whole_numbers_they_stand_for() -> None:
    # Many patterns of whole numbers reach the same sum; as tenths those sums come out a rounding error apart.
    columns = np.random.default_rng(1).integers(-9, 10, size=(9, 60))
    expected = []
    for x in columns.T.tolist():
        sums = [abs(sum(s * v for s, v in zip(signs, x, strict=True))) for signs in SIGNS_OF_NINE]
        expected.append(sum(s >= abs(sum(x)) for s in sums) / 2**9)
    np.testing.assert_array_equal(stats.sign_flip(columns), expected)
    np.testing.assert_array_equal(stats.sign_flip(columns * 0.1), expected)
    np.testing.assert_array_equal(stats.sign_flip(columns / 3e7), expected)


@pytest.mark.parametrize("E", [8, 40])
def test_a_column_of_zeros_has_p_one(E: int) -> None:
    columns = np.zeros((E, 2))
    columns[:, 1] = 1
    p = stats.sign_flip(columns, flips=2_000)
    assert p[0] == 1
    assert p[1] == (pytest.approx(2 / 2**8) if E == 8 else pytest.approx(1 / 2_001))


def test_p_is_uniform_under_the_null_and_small_under_an_effect() -> None:
    random = np.random.default_rng(11)
    p = stats.sign_flip(random.standard_t(3, size=(30, 2_000)), flips=999)
    assert scipy.stats.kstest(p, "uniform").pvalue > 0.001
    assert 0.035 < (p <= 0.05).mean() < 0.065
    assert (stats.sign_flip(random.normal(1, 1, size=(30, 200))) < 0.05).mean() > 0.98


def test_there_are_enough_flips_for_the_smallest_p_to_survive_correction() -> None:
    columns = np.random.default_rng(0).normal(size=(40, 1_000))
    columns[:, 0] = 1 + 0.01 * columns[:, 0]
    p = stats.sign_flip(columns)
    assert p[0] == pytest.approx(1 / 20_001)
    assert stats.benjamini_hochberg(p)[0] <= 0.05


@given(arrays(float, (6, 2), elements=st.floats(-1e6, 1e6)), st.sampled_from([1e-300, 0.3, 7.0, 1e200]))
def test_p_does_not_depend_on_sign_or_scale(columns: np.ndarray, scale: float) -> None:
    p = stats.sign_flip(columns)
    assert ((p > 0) & (p <= 1)).all()
    np.testing.assert_array_equal(stats.sign_flip(-columns), p)
    columns = np.where(
        np.abs(columns) < 1e-3, 0, columns
    )  # so that nothing is lost below the smallest number
    np.testing.assert_array_equal(stats.sign_flip(columns * scale), stats.sign_flip(columns))


# --- corrections ----------------------------------------------------------------------------------------


@given(p_lists)
def test_benjamini_hochberg_agrees_with_scipy(p: np.ndarray) -> None:
    np.testing.assert_allclose(stats.benjamini_hochberg(p), scipy.stats.false_discovery_control(p))


@given(p_lists)
def test_adjusted_values_keep_the_order_and_never_shrink(p: np.ndarray) -> None:
    for adjusted in (stats.benjamini_hochberg(p), stats.holm(p)):
        assert (adjusted >= p - 1e-15).all()
        assert (adjusted <= 1).all()
        assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()
    assert (stats.holm(p) >= stats.benjamini_hochberg(p) - 1e-15).all()


@given(p_lists, st.floats(0.01, 0.99))
def test_q_rejects_what_the_textbook_step_up_rejects(p: np.ndarray, rate: float) -> None:
    m = len(p)
    ranked = sorted(p)
    passing = [i for i in range(1, m + 1) if ranked[i - 1] * m / i <= rate]
    expected = max(passing, default=0)
    assert (stats.benjamini_hochberg(p) <= rate).sum() >= expected
    assert set(np.flatnonzero(stats.benjamini_hochberg(p) <= rate)) == {
        i for i in range(m) if passing and p[i] <= ranked[expected - 1]
    }


@given(p_lists, st.floats(0.01, 0.99))
def test_holm_rejects_what_the_textbook_step_down_rejects(p: np.ndarray, rate: float) -> None:
    rejected = 0
    for i, value in enumerate(sorted(p)):
        if value * (len(p) - i) > rate:
            break
        rejected += 1
    assert (stats.holm(p) <= rate).sum() == rejected


def test_a_nan_is_no_test() -> None:
    p = np.array([[0.01, NAN], [0.04, 0.03]])
    q = stats.benjamini_hochberg(p)
    assert q.shape == (2, 2)
    np.testing.assert_allclose(q.ravel()[[0, 2, 3]], scipy.stats.false_discovery_control([0.01, 0.04, 0.03]))
    assert np.isnan(q[0, 1])
    assert np.isnan(stats.holm(np.array([NAN, NAN]))).all()
    assert stats.holm(np.array([])).size == 0
    with pytest.raises(HeadwiseError, match="p-values"):
        stats.holm(np.array([1.2]))


# --- paired proportions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [(0, 1), (1, 0), (3, 3), (2, 9), (40, 61), (0, 300), (700, 650)])
def test_mcnemar_is_the_exact_binomial_test_on_discordant_pairs(a: int, b: int) -> None:
    assert stats.mcnemar_exact(a, b) == pytest.approx(scipy.stats.binomtest(a, a + b).pvalue)


def test_mcnemar_without_discordant_pairs_is_one() -> None:
    assert stats.mcnemar_exact(0, 0) == 1
    with pytest.raises(HeadwiseError, match="negative"):
        stats.mcnemar_exact(-1, 3)


@pytest.mark.parametrize(("n", "share"), [(60, 0.4), (500, 0.1)])
def test_the_detectable_difference_is_found_in_four_of_five_simulated_studies(n: int, share: float) -> None:
    d = stats.detectable_difference(n, share)
    random = np.random.default_rng(0)
    studies = random.multinomial(n, [(share + d) / 2, (share - d) / 2, 1 - share], size=4_000)
    found = np.mean([stats.mcnemar_exact(int(a), int(b)) <= 0.05 for a, b, _ in studies])
    assert found == pytest.approx(0.8, abs=0.025)


def test_the_detectable_difference_nears_the_normal_formula_in_large_samples() -> None:
    n, share = 20_000, 0.3
    za, zb = scipy.stats.norm.ppf([0.975, 0.8])
    d = scipy.optimize.brentq(
        lambda d: za * math.sqrt(share) + zb * math.sqrt(share - d * d) - d * math.sqrt(n), 1e-6, share
    )
    assert stats.detectable_difference(n, share) == pytest.approx(d, rel=0.01)
    # In a small sample the exact test is the more cautious.
    assert stats.detectable_difference(50, share) > 0.21


def test_the_detectable_difference_is_nan_where_nothing_could_be_found() -> None:
    assert math.isnan(stats.detectable_difference(20, 0.05))
    assert math.isnan(stats.detectable_difference(500, 0))
    assert stats.detectable_difference(500, 1.0) < stats.detectable_difference(100, 1.0)
    with pytest.raises(HeadwiseError, match="share"):
        stats.detectable_difference(10, 1.5)


# --- agreement ----------------------------------------------------------------------------------------------


def test_jaccard_is_shared_over_all() -> None:
    assert stats.jaccard({1, 2, 3}, [2, 3, 4]) == 0.5
    assert stats.jaccard([], []) == 1
    assert stats.jaccard([1], []) == 0


def test_agreement_is_the_mean_over_all_pairs() -> None:
    assert stats.agreement_of_orders([{1, 2}, {1, 2}, {3, 4}]) == pytest.approx(1 / 3)
    assert math.isnan(stats.agreement_of_orders([{1, 2}]))


@pytest.mark.parametrize("absolute", [False, True])
def test_stability_equals_a_loop_over_the_same_resamples(absolute: bool) -> None:
    random = np.random.default_rng(4)
    examples = random.normal([1, -1, 0.5, 0.4, 0.3, -0.2, 0], 1.0, size=(20, 7))
    examples[3, 6] = NAN  # a column without a rank

    def top(rows: np.ndarray) -> set[int]:
        means = {k: rows[:, k].mean() for k in range(6)}
        return set(sorted(means, key=lambda k: -abs(means[k]) if absolute else -means[k])[:3])

    full = top(examples)
    loop = [
        stats.jaccard(top(examples[i]), full) for i in np.random.default_rng(2).integers(0, 20, (300, 20))
    ]
    found = stats.stability(examples, 3, resamples=300, seed=2, absolute=absolute)
    assert found == pytest.approx(np.mean(loop))
    assert found < 1


def test_stability_is_one_for_heads_far_apart_and_low_for_noise() -> None:
    random = np.random.default_rng(0)
    assert stats.stability(np.arange(30) + random.normal(0, 0.01, (40, 30)), 5) == 1
    assert stats.stability(random.normal(size=(40, 300)), 5) < 0.5
    assert stats.stability(random.normal(size=(40, 3)), 10) == 1
    with pytest.raises(HeadwiseError, match="k ≥ 1"):
        stats.stability(np.ones((4, 4)), 0)


@settings(max_examples=60)
@given(arrays(float, (2, 12), elements=st.integers(-4, 4).map(float)))
def test_rank_correlation_agrees_with_scipy(pair: np.ndarray) -> None:
    found = stats.rank_correlation(*pair)
    if np.ptp(pair[0]) == 0 or np.ptp(pair[1]) == 0:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(scipy.stats.spearmanr(*pair).statistic)


def test_rank_correlation_leaves_out_pairs_with_a_nan() -> None:
    assert stats.rank_correlation(
        np.array([[1, 2], [NAN, 4]]), np.array([[3, NAN], [0, 9]])
    ) == pytest.approx(1)
    assert math.isnan(stats.rank_correlation(np.array([1, NAN]), np.array([1, 2])))
    with pytest.raises(HeadwiseError, match="as many values"):
        stats.rank_correlation(np.ones(3), np.ones(4))


def test_a_staged_sign_flip_of_many_columns_gives_what_one_stage_gives():
    """Columns of noise and of effects; p within what a finite number of flips allows, and few false discoveries."""
    random = np.random.default_rng(0)
    columns = random.normal(size=(20, 1_500))
    columns[:, :60] += 2.0
    staged, whole = stats.sign_flip_staged(columns), stats.sign_flip(columns, flips=30_000, seed=5)
    np.testing.assert_allclose(staged, whole, atol=0.03)  # 10,000 flips: a standard error of .005
    assert (stats.benjamini_hochberg(staged)[:60] < 0.05).all()
    assert (staged[60:] < 0.05).mean() < 0.08
    few = columns[:, :30]
    np.testing.assert_array_equal(stats.sign_flip_staged(few), stats.sign_flip(few))


@pytest.mark.parametrize("examples", [1, 4, 9, 14])
def test_the_smallest_p_of_the_sign_flip_test_is_that_of_values_of_one_sign(examples):
    assert stats.sign_flip(np.ones((examples, 1)))[0] == stats.smallest_p(examples)
