"""Heads, orders, gates and score files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.heads import Head, Scores, keep_gates, load_order, mask_gates, save_order, single_gates

ABOUT = {"model": "m", "task": "t", "method": "ablation", "metric": "logit_diff"}


@given(st.integers(0, 999), st.integers(0, 999))
def test_a_head_is_written_and_read_alike(layer, head):
    assert Head.parse(str(Head(layer, head))) == (layer, head)


@pytest.mark.parametrize("text", ["", "L1", "H3", "L1H", "l1h2", "L-1H2", "L1H2x", "12.3", None, 7])
def test_what_is_no_head_is_refused(text):
    with pytest.raises(HeadwiseError, match="L12H3"):
        Head.parse(text)


def test_mask_and_keep_are_complements_and_single_masks_one_each():
    heads = [Head(0, 1), Head(2, 3)]
    assert np.array_equal(mask_gates(heads, (3, 4)) + keep_gates(heads, (3, 4)), np.ones((3, 4)))
    assert mask_gates(heads, (3, 4)).sum() == 10
    one, two = single_gates(heads, (3, 4))
    assert (one[0, 1], one[2, 3], two[0, 1], two[2, 3]) == (0, 1, 1, 0)


def test_a_head_outside_the_model_is_refused():
    with pytest.raises(HeadwiseError, match="L3H0 is outside a model of 3 layers × 4 heads"):
        mask_gates([Head(3, 0)], (3, 4))


def test_values_and_standard_errors_are_those_of_the_examples():
    examples = np.random.default_rng(0).normal(size=(9, 2, 3))
    scores = Scores.from_examples(examples, **ABOUT)
    assert scores["L1H2"] == pytest.approx(sum(e[1][2] for e in examples) / 9)
    by_hand = np.sqrt(sum((e[1][2] - scores["L1H2"]) ** 2 for e in examples) / 8 / 9)
    assert scores.stderr[1, 2] == pytest.approx(by_hand)


def test_orders_by_sign_size_and_hindrance():
    scores = Scores.from_examples(np.array([[[1.0, -3.0, 2.0]]]), **ABOUT)
    assert [h.head for h in scores.order()] == [2, 0, 1]
    assert [h.head for h in scores.order("absolute")] == [1, 2, 0]
    assert [h.head for h in scores.order("hinders")] == [1, 0, 2]
    with pytest.raises(HeadwiseError, match="hinders"):
        scores.order("sideways")


def test_equal_scores_keep_the_order_of_layers_and_heads():
    scores = Scores.from_examples(np.zeros((2, 2, 2)), **ABOUT)
    assert scores.order() == [Head(0, 0), Head(0, 1), Head(1, 0), Head(1, 1)]


def test_heads_that_do_not_exist_are_in_no_order_and_no_table():
    examples = np.ones((3, 2, 2))
    examples[:, 1] = np.nan
    scores = Scores.from_examples(examples, **ABOUT)
    assert scores.order() == [Head(0, 0), Head(0, 1)]
    assert scores.table()["layer"].tolist() == [0, 0]


def test_the_table_has_the_contracts_columns_and_finds_what_is_there():
    rng = np.random.default_rng(1)
    examples = rng.normal(size=(40, 2, 2)) + np.array([[0, 2.0], [0, 0]])
    table = Scores.from_examples(examples, **ABOUT).table()
    assert list(table.columns[:12]) == "model task method layer head score stderr lo hi n p q".split()
    assert ((table["lo"] <= table["score"]) & (table["score"] <= table["hi"])).all()
    assert (table["q"] < 0.05).tolist() == [False, True, False, False]


def test_unsigned_scores_have_no_p_value():
    table = Scores.from_examples(np.ones((5, 1, 2)), signed=False, **ABOUT).table()
    assert table["p"].isna().all()


def test_scores_are_written_and_read_alike(tmp_path):
    examples = np.random.default_rng(2).normal(size=(4, 2, 3))
    scores = Scores.from_examples(examples, details={"rows": 7}, **ABOUT)
    scores.save(tmp_path / "scores.npz")
    back = Scores.load(tmp_path / "scores.npz")
    assert np.array_equal(back.examples, scores.examples)
    assert (back.method, back.metric, back.details["rows"]) == ("ablation", "logit_diff", 7)


def test_a_pickle_is_not_opened_as_scores(tmp_path):
    np.savez(tmp_path / "evil.npz", values=np.array([{}], dtype=object))
    with pytest.raises(HeadwiseError, match=r"not a file written by Scores\.save"):
        Scores.load(tmp_path / "evil.npz")
    with pytest.raises(HeadwiseError, match="no scores at"):
        Scores.load(tmp_path / "absent.npz")


def test_orders_are_written_and_read_alike(tmp_path):
    order = [Head(3, 1), Head(0, 0)]
    save_order(order, tmp_path / "heads.json")
    assert json.loads((tmp_path / "heads.json").read_text()) == ["L3H1", "L0H0"]
    assert load_order(tmp_path / "heads.json") == order


@pytest.mark.parametrize(
    ("text", "said"), [("{", "not JSON"), ("{}", "holds a dict"), ('["x"]', "'x' is not a head")]
)
def test_a_bad_heads_file_says_what_is_wrong(tmp_path, text, said):
    (tmp_path / "heads.json").write_text(text)
    with pytest.raises(HeadwiseError, match=said):
        load_order(tmp_path / "heads.json")


def test_the_table_of_examples_has_every_value_at_its_example_and_head_and_its_means_are_the_scores():
    values = np.random.default_rng(3).normal(size=(5, 2, 3))
    values[:, 1, 2] = np.nan  # a head that the model does not have
    scores = Scores.from_examples(values, model="m", task="t", method="a")
    table = scores.example_table()
    assert len(table) == 5 * 5
    for row in table.itertuples():
        assert row.value == values[row.example, row.layer, row.head]
    means = table.groupby(["layer", "head"])["value"].mean()
    np.testing.assert_allclose(means, scores.table()["score"])
