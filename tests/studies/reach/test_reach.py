"""The study `reach` on a model whose far-seeing heads are known, and its counts of key/value heads and cache."""

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import KV_HEADS, Head
from headwise.runs import read_table
from headwise.studies.reach.kept import Cache, drawn_sets, far_points, first_sets, group_of
from headwise.studies.reach.section import charts
from headwise.tasks.plain_text import text_by_position
from helpers import make_word_tokenizer, run_on, word_model
from planted import far_model, far_words, written

REFERENCE = {"reference": "window", "window": 8, "sink": 1, "progress": False}


@pytest.fixture(scope="module")
def grouped():
    """Four layers of four heads that share two key/value heads."""
    return word_model("llama", name="grouped", num_attention_heads=4, num_key_value_heads=2)


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory):
    model, far, _ = far_model(make_word_tokenizer(), seed=1)
    folder, task = tmp_path_factory.mktemp("reach"), far_words(24)
    settings = {
        "tasks": [written(task, folder / "far.jsonl")], "n": 24, "methods": ["ablation", "attribution", "pattern"],
        "window": 8, "sink": 1, "budget": 0.4, "transfer": [], "length": 60, "texts": 3, "points": 8, "draws": 2,
    }  # fmt: skip
    return model, far, task, run_on("reach", folder / "run", model, **settings)


def test_a_run_without_an_effect_and_without_foils_has_its_maps_and_no_curves(carried_out):
    *_, run = carried_out
    tables = {name: read_table(run, name) for name in ("reach", "needed", "text", "scores")}
    before = {chart.name for chart in charts(tables)}
    empty = tables["reach"].assign(explained=np.nan, accuracy=np.nan)
    assert {chart.name for chart in charts({**tables, "reach": empty})} == before - {"far-1-far-reach"}


def test_the_share_of_the_cache_is_what_its_heads_store():
    cache = Cache(tuple(Head(0, -1000 - k) for k in range(6)), sink=2, window=8)
    for tokens in (5, 30, 400):
        shares = []
        for far in range(7):
            stored = sum(sum(k < far or i < 2 or tokens - i <= 8 for i in range(tokens)) for k in range(6))
            shares.append(stored / (6 * tokens))
        np.testing.assert_allclose(cache.share(np.arange(7), tokens), shares)
        for budget in (0.4, 0.77, 1.0):
            if budget >= shares[0] < 1:
                assert cache.far(budget, tokens) == sum(share <= budget + 1e-9 for share in shares) - 1
    with pytest.raises(
        HeadwiseError, match="a budget of 2% of the cache is less than the first 2 and the last 8"
    ):
        cache.far(0.02, 400)


def test_sets_touch_so_many_key_value_heads_and_draws_match_layers(grouped):
    order = hw.score(grouped, [("the cat saw", " dog", " cat")] * 1, "random", progress=False).order()
    for far, heads in zip((0, 1, 3, 8), first_sets(grouped, order, (0, 1, 3, 8)), strict=True):
        touched = {(head.layer, head.head // 2) for head in heads}
        assert len(touched) == far
        rest = order[len(heads) :]
        assert heads == order[: len(heads)]
        assert not rest or (rest[0].layer, rest[0].head // 2) not in touched
    groups = grouped.layout(KV_HEADS).listed()
    assert {group_of(grouped, head) for head in order} == set(groups)
    drawn = drawn_sets(grouped, "kv_heads", "random_layer", [groups[0], groups[4]], (1, 2), "0")
    assert drawn == [[groups[1]], [groups[1], groups[5]]]  # the others of layers 0 and 2
    random = drawn_sets(grouped, "heads", "random", order, (2,), "0")[0]
    assert len(random) == 4
    assert len({group_of(grouped, head) for head in random}) == 2
    assert far_points(8, 5, 6) == sorted({0, 6, 8, *far_points(8, 5)})


def test_curves_are_what_hw_measure_says_and_the_far_heads_are_enough(carried_out):
    model, far, task, folder = carried_out
    reach = read_table(folder.path, "reach")
    rows = reach[reach["series"] == "ablation"].set_index("far")
    test = task.halves()[1]
    full = hw.measure(model, test, progress=False).full.mean()
    none = hw.measure(model, test, np.zeros(model.shape), **REFERENCE).mean
    kept = hw.measure(model, test, keep=sorted(far), **REFERENCE)
    assert rows.loc[2, "value"] == pytest.approx(kept.mean, abs=1e-4)
    assert rows.loc[16, "value"] == pytest.approx(full, abs=1e-4)
    assert rows.loc[2, "explained"] == pytest.approx((kept.mean - none) / (full - none), abs=1e-4)
    right = hw.measure(model, test, keep=sorted(far), metric="accuracy", **REFERENCE)
    assert rows.loc[2, "accuracy"] == pytest.approx(right.mean)
    assert rows.loc[2, "share"] == pytest.approx((2 * 40 + 14 * 9) / (16 * 40))
    needed = read_table(folder.path, "needed").set_index("series").loc["ablation"]
    assert needed["needed"] == 2
    assert "2 of 16 key/value heads" in folder.findings[0]


def test_differences_are_paired_and_of_the_first_method(carried_out):
    _, _, _, folder = carried_out
    budgets = read_table(folder.path, "budgets")
    at = budgets[budgets["at"] == "budget"].set_index("series")
    assert set(at["far"]) == {3}  # (0.4 · 40 − 9) / 31 of 16 heads
    for series in ("pattern", "random", "random_layer"):
        expected = at.loc["ablation", "value"] - at.loc[series, "value"]
        assert at.loc[series, "difference"] == pytest.approx(expected)
        assert at.loc[series, "difference_lo"] < expected < at.loc[series, "difference_hi"]
    assert at.loc["random", "explained"] < at.loc["ablation", "explained"]


def test_text_says_how_likely_its_last_words_are_at_every_position(grouped):
    task = text_by_position(grouped.tokens, "sentences", 60, 2, 0)
    assert list(task.families()["position"]) == ["15", "30", "45", "60"]
    for example in task:
        tokens = len(grouped.tokens(example.prompt + example.target))
        assert int(example.family["position"]) - 8 < tokens <= int(example.family["position"])


def test_the_quick_settings_have_a_budget_above_the_window():
    from headwise.studies.reach.settings import ReachSettings

    quick = ReachSettings(quick=True).quickened()
    cache = Cache(tuple(Head(0, -1000 - k) for k in range(90)), quick.sink, quick.window)
    assert quick.lengths == (300,)
    assert cache.far(quick.budget, quick.length) == 3
