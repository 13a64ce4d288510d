"""`scores_a - scores_b`: paired per example, with intervals and q-values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Scores
from helpers import word_task


def made(values, **about):
    details = about.pop("details", {"examples": "abc"})
    return Scores.from_examples(
        np.asarray(values, float),
        **{
            "model": "m",
            "task": "t",
            "method": "ablation",
            "metric": "logit_diff",
            "details": details,
            **about,
        },
    )


def test_the_difference_is_paired_per_example():
    draw = np.random.default_rng(0)
    shared = draw.normal(0, 5, size=(40, 1, 1))  # a spread that pairing removes
    a = made(shared + draw.normal(0, 0.1, (40, 2, 3)) + np.arange(6).reshape(2, 3) * 0.2, model="tuned")
    b = made(shared + draw.normal(0, 0.1, (40, 2, 3)), model="base")
    difference = a - b
    np.testing.assert_allclose(difference.examples, a.examples - b.examples)
    assert (difference.model, difference.method, difference.signed) == ("tuned − base", "ablation", True)
    table = difference.table()
    for row in table.itertuples():
        test = scipy_stats.ttest_rel(a.examples[:, row.layer, row.head], b.examples[:, row.layer, row.head])
        assert row.score == pytest.approx(difference.values[row.layer, row.head])
        interval = test.confidence_interval()
        assert (row.lo, row.hi) == (
            pytest.approx(interval.low, abs=0.02),
            pytest.approx(interval.high, abs=0.02),
        )
    found = table.loc[table["q"] < 0.05, ["layer", "head"]].to_numpy().tolist()
    assert [0, 0] not in found
    assert len(found) == 5


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"task": "other"}, "different tasks"),
        ({"metric": "logprob"}, "different metrics"),
        ({"details": {"examples": "xyz"}}, "different examples of 't'"),
        ({"details": {"examples": "abc", "replicates": "seeds"}}, "whose rows are examples"),
    ],
)
def test_scores_that_do_not_belong_together_are_refused(about, message):
    values = np.ones((3, 2, 2))
    with pytest.raises(HeadwiseError, match=message):
        made(values) - made(values, **about)


def test_scores_of_an_earlier_version_that_do_not_name_their_examples_can_be_subtracted():
    values = np.ones((3, 2, 2))
    assert (made(values) - made(values, details={})).values.tolist() == [[0, 0], [0, 0]]


def test_other_shapes_and_other_things_are_refused():
    with pytest.raises(HeadwiseError, match="2 layers × 2 heads and m 2 × 3"):
        made(np.ones((3, 2, 2))) - made(np.ones((3, 2, 3)))
    with pytest.raises(HeadwiseError, match="different examples"):
        made(np.ones((3, 2, 2))) - made(np.ones((4, 2, 2)))
    with pytest.raises(TypeError):
        made(np.ones((3, 2, 2))) - 1


def test_two_references_of_one_model_are_compared_and_other_examples_noticed(tiny):
    task = word_task(6)
    zero, mean = (hw.score(tiny, task, reference=reference) for reference in ("zero", "mean"))
    difference = zero - mean
    np.testing.assert_allclose(difference.values, zero.values - mean.values, atol=1e-12)
    assert difference.method == "ablation (zero − mean)"
    other = hw.score(tiny, task.take([5, 4, 3, 2, 1, 0]))
    with pytest.raises(HeadwiseError, match="score both on the same task object"):
        zero - other


def test_a_difference_can_be_saved_and_drawn(tiny, tmp_path):
    task = word_task(3)
    difference = hw.score(tiny, task) - hw.score(tiny, task, reference="mean")
    difference.save(tmp_path / "d.npz")
    np.testing.assert_array_equal(Scores.load(tmp_path / "d.npz").values, difference.values)
    assert difference.plot() is not None


def test_a_difference_has_the_heads_that_both_have(tiny):
    task = word_task(3)
    some = hw.score(tiny, task, heads=["L0H1", "L2H2"])
    assert (hw.score(tiny, task) - some).heads() == [hw.Head(0, 1), hw.Head(2, 2)]


def test_scores_from_a_file_keep_their_groups(tmp_path):
    scores = made(np.ones((4, 2, 2)), groups=("a", "a", "b", None))
    scores.save(tmp_path / "s.npz")
    assert (scores - Scores.load(tmp_path / "s.npz")).groups == ("a", "a", "b", None)
