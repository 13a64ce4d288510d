"""Agreement of scores, against the same numbers computed by pandas and by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from helpers import word_task


def made(values, *, method="a", signed=True, seed=0, examples=8, noise=0.0, **about):
    """Scores with these values, and examples that scatter around them."""
    values = np.asarray(values, dtype=float)
    scatter = np.random.default_rng(5).standard_normal((examples, *values.shape))
    scatter -= scatter.mean(axis=0)
    return hw.Scores.from_examples(
        values + noise * scatter,
        model="m",
        task="t",
        method=method,
        signed=signed,
        metric="logit_diff",
        details={"seed": seed, "reference": "zero", **about},
    )


A = np.random.default_rng(0).standard_normal((4, 5))
B = np.random.default_rng(1).standard_normal((4, 5)) + A


def test_rank_correlations_are_those_of_pandas():
    found = hw.compare([made(A), made(B, method="b")])
    expected = pd.Series(A.ravel()).corr(pd.Series(B.ravel()), method="spearman")
    assert found.signed.loc["a", "b"] == pytest.approx(expected)
    expected = pd.Series(np.abs(A.ravel())).corr(pd.Series(np.abs(B.ravel())), method="spearman")
    assert found.absolute.loc["b", "a"] == pytest.approx(expected)
    assert np.allclose(np.diag(found.signed), 1)


def test_the_same_heads_with_opposite_signs_agree_in_absolute_value_only():
    found = hw.compare([made(A), made(-A, method="b")])
    assert found.signed.loc["a", "b"] == pytest.approx(-1)
    assert found.absolute.loc["a", "b"] == pytest.approx(1)
    assert found.jaccard.loc["a", "b"] == 1


def test_a_sign_is_not_compared_with_a_score_that_has_none():
    found = hw.compare(
        [made(A), made(np.abs(A), method="b", signed=False), made(A**2, method="c", signed=False)]
    )
    assert np.isnan(found.signed.loc["a", "b"])
    assert found.signed.loc["b", "c"] == pytest.approx(1)
    assert found.absolute.loc["a", "b"] == pytest.approx(1)


def test_top_k_overlap_is_counted_by_hand():
    one, two = np.zeros((2, 5)), np.zeros((2, 5))
    one[0] = [5, -4, 3, 0.2, 0.1]
    two[0] = [5, 0.2, 3, -4, 0.1]
    found = hw.compare([made(one), made(two, method="b")], k=3)
    assert found.jaccard.loc["a", "b"] == pytest.approx(2 / 4)  # H0 and H2 of H0, H1, H2, H3
    assert found.k == 3


def test_stability_falls_with_noise_and_is_one_without():
    scores = [made(A, noise=noise, method=f"noise {noise}") for noise in (0.0, 0.1, 3.0)]
    stable = hw.compare(scores, k=4).stability["resamples"].to_numpy()
    assert stable[0] == 1
    assert 1 >= stable[1] > stable[2] + 0.2


def test_other_seeds_of_the_same_score_are_its_repetitions():
    scores = [made(A, seed=1), made(A, seed=2), made(B, seed=3), made(B, method="b", seed=1)]
    found = hw.compare(scores, k=4)
    tops = [set(s.top(4, "absolute")) for s in scores]
    shared = len(tops[0] & tops[2]) / len(tops[0] | tops[2])
    assert found.stability["seeds"].to_numpy()[:3] == pytest.approx([(1 + 2 * shared) / 3] * 3)
    assert np.isnan(found.stability["seeds"].iloc[3])
    assert list(found.signed.index) == ["a, seed 1", "a, seed 2", "a, seed 3", "b"]


def test_other_examples_under_the_same_seed_are_a_repetition_too():
    assert hw.compare([made(A), made(A, noise=1.0)], k=4).stability["seeds"].to_list() == [1, 1]


def test_the_same_score_twice_is_no_repetition():
    found = hw.compare([made(A), made(A)])
    assert found.stability["seeds"].isna().all()
    assert list(found.signed.index) == ["a (1)", "a (2)"]


def test_options_tell_two_runs_of_one_method_apart(tiny):
    task = word_task(3)
    scores = [hw.score(tiny, task, "attribution", graddrop=g) for g in (False, True)]
    found = hw.compare(scores)
    assert list(found.signed.index) == ["attribution, graddrop=False", "attribution, graddrop=True"]
    assert np.isnan(found.signed.iloc[0, 1])


def test_heads_that_do_not_exist_are_left_out():
    holes = A.copy()
    holes[1] = np.nan
    found = hw.compare([made(holes), made(B, method="b")])
    kept = ~np.isnan(holes)
    expected = pd.Series(A[kept]).corr(pd.Series(B[kept]), method="spearman")
    assert found.signed.loc["a", "b"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scores", "options", "said"),
    [
        ([A], {}, "at least two scores, not 1"),
        ([A, A[:2]], {}, "2 × 5 and 4 × 5 layers × heads"),
        ([A, B], {"k": 21}, "a k from 1 to 20, not 21"),
        ([A, B], {"k": 0}, "a k from 1 to 20, not 0"),
    ],
)
def test_what_cannot_be_compared_is_one_clear_sentence(scores, options, said):
    with pytest.raises(HeadwiseError, match=said):
        hw.compare([made(s) for s in scores], **options)


def test_the_figure_shows_the_numbers_of_the_tables():
    agreement = hw.compare([made(A), made(B, method="b"), made(np.abs(B), method="c", signed=False)])
    figure = agreement.plot(title="Agreement")
    panels = figure.axes[:3]
    for axes, table in zip(panels, (agreement.signed, agreement.absolute, agreement.jaccard), strict=True):
        np.testing.assert_array_equal(np.asarray(axes.images[0].get_array().filled(np.nan)), table.to_numpy())
        written = [text.get_text() for text in axes.texts]
        numbers = table.to_numpy().ravel()
        assert written == [f"{value:.2f}" for value in numbers[np.isfinite(numbers)]]
    assert "Jaccard" in agreement._repr_html_()


def test_a_score_whose_heads_saw_different_examples_has_no_stability_over_examples():
    """Among the few heads that saw all of them, stability would be that of another, smaller question."""
    full = made(A, noise=0.1)
    examples = full.examples.copy()
    examples[4:, 2:] = np.nan
    partly = hw.Scores(A, full.stderr, examples, "m", "t", "b")
    found = hw.compare([full, partly], k=3).stability
    assert np.isfinite(found.loc["a", "resamples"])
    assert np.isnan(found.loc["b", "resamples"])


def test_printed_the_agreement_is_named_tables_with_two_digits():
    found = hw.compare([made(A), made(B, method="b")], k=2)
    lines = repr(found).splitlines()
    assert lines[0] == "rank correlation, signed"
    assert {"Jaccard index of the top 2", "stability of the top 2"} <= set(lines)
    assert f"{found.signed.loc['a', 'b']:.2f}" in lines[2]
