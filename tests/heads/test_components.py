"""MLPs and the embeddings beside heads: names, cells of an array, score files and tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.heads import COMPONENTS, Head, Layout, Scores, keep_gates, mask_gates, save_order, single_gates
from headwise.heads.components import kinds_of
from headwise.heads.heads_file import read_heads
from headwise.tables.frames import grid

ABOUT = {"model": "m", "task": "t", "method": "ablation", "metric": "logit_diff"}
HEADS = np.array([[True, True, False], [True, True, True]])  # 2 layers, the first with 2 heads


@pytest.mark.parametrize(
    "component", [Head(12, 3), Head(12, -1), Head(0, -1), Head(0, -2), Head(7, -1000), Head(7, -1012)]
)
def test_a_component_is_written_and_read_alike_without_a_model(component):
    assert Head.parse(str(component)) == component


@pytest.mark.parametrize(
    "text", ["MLP", "mlp3", "MLP-1", "Input", "L0H-1", "input0", "L1KV", "L1KV-1", "l1kv1", "KV1"]
)
def test_what_is_no_component_is_refused(text):
    with pytest.raises(HeadwiseError, match="is not a head"):
        Head.parse(text)


def test_heads_alone_keep_their_shape():
    layout = Layout.of(HEADS)
    assert layout.shape == (2, 3)
    assert layout.listed() == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


def test_every_component_has_a_cell_of_its_own_and_indexes_it():
    layout = Layout.of(HEADS, COMPONENTS)
    assert layout.shape == (2, 5)
    names = ["L0H0", "L0H1", "input", "MLP0", "L1H0", "L1H1", "L1H2", "MLP1"]
    assert list(map(str, layout.listed())) == names
    counted = np.zeros(layout.shape)
    for component in layout.listed():
        counted[component] += 1
    assert np.array_equal(counted, layout.exists)


@pytest.mark.parametrize("kinds", [("mlps",), ("input",), ("heads", "mlps"), ("input", "heads")])
def test_kinds_that_are_not_asked_for_do_not_exist(kinds):
    listed = Layout.of(HEADS, kinds).listed()
    assert set(kinds_of(listed)) == set(kinds)
    assert len(listed) == sum({"heads": 5, "mlps": 2, "input": 1}[kind] for kind in kinds)


def test_gates_over_components_mask_and_keep_them():
    layout = Layout.of(HEADS, COMPONENTS)
    chosen = [Head(1, -1), Head(0, -2)]
    gates = mask_gates(chosen, layout)
    assert np.argwhere(gates == 0).tolist() == [[0, 3], [1, 4]]
    assert np.array_equal(gates + keep_gates(chosen, layout), np.ones((2, 5)))
    one, two = single_gates(chosen, layout)
    assert (one[1, -1], one[0, -2], two[1, -1], two[0, -2]) == (0, 1, 1, 0)


@pytest.mark.parametrize("wrong", [Head(1, -2), Head(2, -1), Head(0, 2)])
def test_a_component_that_the_model_does_not_have_is_refused(wrong):
    with pytest.raises(HeadwiseError, match="has no"):
        mask_gates([wrong], Layout.of(HEADS, COMPONENTS))
    with pytest.raises(HeadwiseError, match="outside a model"):
        mask_gates([Head(0, -1)], (2, 3))


@pytest.fixture
def scores():
    layout = Layout.of(HEADS, COMPONENTS)
    examples = np.where(layout.exists, np.random.default_rng(0).normal(size=(6, 2, 5)), np.nan)
    return Scores.from_examples(examples, **ABOUT, exists=layout.exists, components=COMPONENTS)


def test_scores_of_components_rank_all_of_them_and_find_each_by_name(scores):
    order = scores.order("absolute")
    assert len(order) == 8
    assert abs(scores[order[0]]) == np.nanmax(abs(scores.values))
    assert scores["MLP1"] == scores.values[1, 4] == scores[Head(1, -1)]
    assert scores["input"] == scores.values[0, 3]


def test_scores_of_heads_alone_do_not_answer_for_an_mlp():
    alone = Scores.from_examples(np.ones((2, 2, 3)), **ABOUT)
    with pytest.raises(HeadwiseError, match="of heads alone"):
        alone["MLP1"]
    with pytest.raises(HeadwiseError, match="of heads alone"):
        alone[1, -1]


def test_tables_and_files_keep_components(scores, tmp_path):
    table = scores.table()
    assert table["component"].tolist() == [
        *["head"] * 2, "input", "mlp", *["head"] * 3, "mlp"
    ]  # fmt: skip
    assert table["head"].tolist() == [0, 1, -2, -1, 0, 1, 2, -1]
    scores.save(tmp_path / "s.npz")
    again = Scores.load(tmp_path / "s.npz")
    assert again.order() == scores.order()
    assert tuple(again.components) == COMPONENTS
    table.to_parquet(tmp_path / "scores.parquet")
    assert read_heads(tmp_path / "scores.parquet", 8) == scores.order()
    assert "component" not in Scores.from_examples(np.ones((2, 2, 3)), **ABOUT).table()


def test_the_map_has_a_column_for_the_input_and_one_for_mlps(scores):
    figure = scores.plot()
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "2", "input", "MLP"]
    drawn = np.ma.filled(
        axes.images[0].get_array() if axes.images else axes.collections[0].get_array(), np.nan
    )
    np.testing.assert_allclose(np.asarray(drawn).reshape(2, 5), scores.values)


def test_a_difference_of_scores_needs_the_same_components(scores):
    assert tuple((scores - scores).components) == COMPONENTS
    alone = Scores.from_examples(np.ones((6, 2, 5)), **ABOUT)
    with pytest.raises(HeadwiseError, match="different components"):
        scores - alone


# ---- key/value heads, which stand alone ---------------------------------------------------------------------------

GROUPS = np.array([[0, 0, 0], [0, 0, 1]])


@pytest.fixture
def kv_scores():
    layout = Layout.of(HEADS, ("kv_heads",), GROUPS)
    examples = np.where(layout.exists, np.random.default_rng(1).normal(size=(6, 2, 2)), np.nan)
    return Scores.from_examples(examples, **ABOUT, exists=layout.exists, components=("kv_heads",))


def test_every_key_value_head_has_a_cell():
    layout = Layout.of(HEADS, ("kv_heads",), GROUPS)
    assert layout.exists.tolist() == [[True, False], [True, True]]
    assert list(map(str, layout.listed())) == ["L0KV0", "L1KV0", "L1KV1"]
    assert [one.cell for one in layout.listed()] == [(0, 0), (1, 0), (1, 1)]
    assert layout.modules == []
    assert mask_gates(["L1KV1"], layout).tolist() == [[1, 1], [1, 0]]
    assert single_gates(["L0KV0"], layout).tolist() == [[[0, 1], [1, 1]]]


@pytest.mark.parametrize("wrong", ["L0KV1", "L1H1", "MLP0", "L2KV0"])
def test_what_is_no_key_value_head_is_refused(wrong):
    with pytest.raises(HeadwiseError, match=f"has no component {wrong}"):
        mask_gates([wrong], Layout.of(HEADS, ("kv_heads",), GROUPS))


def test_a_key_value_head_is_no_index_of_an_array():
    """Read as an index it would be another head; so it is too large for any array."""
    with pytest.raises(IndexError):
        np.zeros((30, 900))[Head(1, -1000)]


def test_tables_files_and_maps_keep_key_value_heads(kv_scores, tmp_path):
    table = kv_scores.table()
    assert table["head"].tolist() == [-1000, -1000, -1001]
    assert set(table["component"]) == {"kv_head"}
    np.testing.assert_array_equal(table["score"], kv_scores.values[[0, 1, 1], [0, 0, 1]])
    assert kv_scores["L1KV1"] == kv_scores[1, -1001] == kv_scores.values[1, 1]
    kv_scores.save(tmp_path / "s.npz")
    again = Scores.load(tmp_path / "s.npz")
    assert again.order() == kv_scores.order()
    assert again.components == ("kv_heads",)
    table.to_parquet(tmp_path / "scores.parquet")
    assert read_heads(tmp_path / "scores.parquet", 3) == kv_scores.order()
    save_order(kv_scores.order(), tmp_path / "heads.json")
    assert read_heads(tmp_path / "heads.json") == kv_scores.order()
    assert read_heads("L1KV1,L0KV0") == [(1, -1001), (0, -1000)]
    np.testing.assert_array_equal(grid(table), kv_scores.values)
    axes = kv_scores.plot().axes[0]
    assert axes.get_xlabel() == "Key/value head"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1"]
    assert "3 components" in repr(kv_scores)


def test_scores_of_one_kind_do_not_answer_for_another(kv_scores, scores):
    for one, name in ((kv_scores, "L1H1"), (kv_scores, "MLP0"), (scores, "L1KV1")):
        with pytest.raises(HeadwiseError, match=f"which {name} is not; score it with components="):
            one[name]
    with pytest.raises(HeadwiseError, match="these scores have no L1KV2"):
        kv_scores["L1KV2"]


def test_a_table_of_heads_and_key_value_heads_is_refused(kv_scores, scores, tmp_path):
    pd.concat([kv_scores.table(), scores.table()]).to_parquet(tmp_path / "scores.parquet")
    with pytest.raises(HeadwiseError, match="kv_heads together with heads"):
        read_heads(tmp_path / "scores.parquet", 3)
