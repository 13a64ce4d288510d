"""Sweeps of planted models, whose circuit is known, and against hooks by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.sweeps.curve import Sweep
from headwise.sweeps.sweep import sweep
from helpers import answers, word_model, word_task
from planted import DENSE, keeping, planted_model, told_apart


@pytest.fixture(scope="module")
def planted(word_tokenizer):
    return planted_model(word_tokenizer, DENSE)


@pytest.fixture(scope="module")
def halves(planted):
    return told_apart([planted], 24).halves()


@pytest.fixture(scope="module")
def scores(planted, halves):
    return hw.score(planted, halves[0], "ablation", reference="patch")


@pytest.fixture(scope="module")
def swept(planted, halves, scores):
    return sweep(planted, halves[1], scores, by="absolute", draws=3)


def test_the_explained_effect_reaches_one_at_exactly_the_planted_number(swept):
    assert {str(head) for head in swept.order[: len(DENSE)]} == set(DENSE)
    shares = swept.explained().set_index("k")["value"]
    assert shares[0] == 0
    assert shares[16] == 1
    assert list(shares.index) == list(range(17))  # a small model is measured at every k
    np.testing.assert_allclose(shares[len(DENSE) :], 1, atol=1e-5)
    assert (np.abs(shares[: len(DENSE) - 1] - 1) > 0.01).all()
    assert swept.k_at(0.999).stays == len(DENSE)


def test_random_heads_lie_below_and_end_where_no_others_are_left(swept):
    assert len(swept.controls) == 6
    own = swept.explained().set_index("k")["value"]
    for control in swept.controls:
        shares = control.explained().set_index("k")["value"]
        assert shares[0] == 0
        assert shares.index.max() == 8  # of 16 heads: beyond, k heads leave fewer than k others
        assert (shares[1:] < own[shares.index[1:]] - 0.2).all()
        assert np.isnan(control.cpr().value)
    assert {(one.series, one.draw) for one in swept.controls} == {
        (kind, draw) for kind in ("random", "random_layer") for draw in range(3)
    }


def test_controls_never_hold_the_heads_they_are_compared_with(swept):
    for control in swept.controls:
        for place, (k, heads) in enumerate(zip(control.k, control.sets, strict=True)):
            assert len(set(heads)) == k
            assert not set(heads) & set(swept.order[:k])
            if control.series == "random_layer":
                wanted, found = (Counter(head.layer for head in one) for one in (swept.order[:k], heads))
                assert (wanted - found).total() == control.moved[place]


def test_a_draw_that_would_hold_the_circuit_by_chance_cannot_pass_for_chance(planted, halves):
    """Two of a layer's four heads are the circuit: a draw from the same layer used to hold them now and then."""
    found = sweep(planted, halves[1], DENSE, controls=["random_layer"], draws=20)
    at = {k: place for place, k in enumerate(found.controls[0].k)}
    last = max(at)
    for control in found.controls:
        assert not set(control.sets[at[last]]) & {hw.Head.parse(head) for head in DENSE[:last]}
        assert control.explained()["value"].iloc[at[last]] < 0.1


def test_the_band_of_a_control_holds_that_of_resampled_draws_and_examples(swept):
    """Three draws have two degrees of freedom, so the band is wider than percentiles of resamples, by at most t."""
    table = swept.table()
    for kind in ("random", "random_layer"):
        draws = [one for one in swept.controls if one.series == kind]
        pooled = table[(table["series"] == kind) & table["draw"].isna()]
        pooled = pooled[pooled["metric"] == "explained_effect"].set_index("k")
        assert (pooled["draws"] == 3).all()
        whole = swept.full - swept.none
        random = np.random.default_rng(3)
        for place, k in enumerate(draws[0].k):
            gains = np.stack([one.values[place] - one.none for one in draws])  # R, E
            assert pooled["value"][k] == pytest.approx(gains.mean() / whole.mean())
            means = []
            for _ in range(4000):
                rows, columns = random.integers(0, 3, 3), random.integers(0, len(whole), len(whole))
                means.append(gains[rows][:, columns].mean() / whole[columns].mean())
            lo, hi = np.quantile(means, [0.025, 0.975])
            assert pooled["lo"][k] <= lo + 0.01
            assert pooled["hi"][k] >= hi - 0.01
            assert pooled["hi"][k] - pooled["lo"][k] <= 2 * 4.31 * np.std(means) * np.sqrt(3 / 2) + 0.01
    assert table.loc[table["series"] == "random_layer", "moved"].notna().all()


def by_hand(model, example, kept):
    """logit_diff with all heads but these taken from the counterfactual, by hooks."""
    last = keeping(model, example.prompt, example.counterfactual, kept)
    target, foil = answers(model, example)
    return float(last[target] - last[foil])


@pytest.mark.parametrize("action", ["keep", "mask"])
def test_every_value_is_what_hooks_give(planted, halves, scores, action):
    found = sweep(
        planted,
        halves[1],
        scores,
        action,
        k=[0, 1, 3, 7, 16],
        controls=["random"],
        draws=1,
        reference="patch",
    )
    heads = planted.heads()
    for curve in (found, *found.controls):
        for place, k in enumerate(curve.k):
            chosen = curve.sets[place] if curve.sets else curve.order[:k]
            kept = chosen if action == "keep" else [head for head in heads if head not in chosen]
            for e, example in enumerate(list(halves[1])[:4]):
                assert curve.values[place, e] == pytest.approx(by_hand(planted, example, kept), abs=1e-4)
    first = halves[1].examples[0]
    assert found.none[0] == pytest.approx(by_hand(planted, first, []), abs=1e-4)
    assert found.full[0] == pytest.approx(by_hand(planted, first, heads), abs=1e-4)


def test_the_explained_effect_is_a_ratio_of_means(swept):
    none, full = swept.none.mean(), swept.full.mean()
    expected = [(values.mean() - none) / (full - none) for values in swept.values]
    np.testing.assert_allclose(swept.explained()["value"], expected, atol=1e-12)


def test_masking_starts_at_nothing_taken_and_ends_at_all_of_it(planted, halves, scores):
    found = sweep(planted, halves[1], scores, "mask", by="absolute", controls=())
    shares = found.explained().set_index("k")["value"]
    assert (shares[0], shares[16]) == (0, 1)
    np.testing.assert_allclose(shares[len(DENSE) :], 1, atol=1e-5)
    np.testing.assert_array_equal(found.values[0], found.full)
    np.testing.assert_array_equal(found.values[-1], found.none)


def test_a_grid_that_is_given_is_one_call_of_the_engine(planted, halves, scores, monkeypatch):
    from headwise.model.measure.engine import Engine

    calls = []
    real = Engine.measure
    monkeypatch.setattr(Engine, "measure", lambda *a, **o: calls.append(len(a[1])) or real(*a, **o))
    found = sweep(planted, halves[1], scores, k=[4, 2, 2, 9, 0], draws=2)
    assert list(found.k) == [0, 2, 4, 9]
    assert calls == [
        1 + 3 + 2 * 2 * 5
    ]  # all heads; the order's k between the ends; 1, 3, 4, 6 and 8 of the controls


def test_the_default_grid_has_at_most_25_points_and_the_neighbours_of_the_answer():

    model = word_model("llama", name="twelve layers", num_hidden_layers=12)
    task = told_apart([model], 12)
    scores = hw.score(model, task, "ablation", reference="patch")
    found = sweep(model, task, scores, controls=())
    assert len(found.k) <= 25
    assert (found.k[0], found.k[-1]) == (0, 48)
    needed = found.k_at(0.9)
    for answer in (needed.k, needed.stays):
        assert {answer - 1, answer} <= set(found.k.tolist())
    again = sweep(model, task, scores, controls=())
    assert np.array_equal(found.k, again.k)
    assert np.array_equal(found.values, again.values)


def made(values, none, full, k, **about):
    order = [hw.Head(0, i) for i in range(int(k[-1]))]
    told = {
        "model": "m",
        "task": "t",
        "series": "s",
        "action": "keep",
        "metric": "logit_diff",
        "reference": "zero",
    }
    return Sweep(
        k=np.array(k),
        values=np.array(values),
        none=np.array(none),
        full=np.array(full),
        order=order,
        **told,
        total=int(k[-1]),
        **about,
    )


def test_no_effect_means_no_explained_effect():
    none, full = np.zeros(4), np.array([1.0, -1.0, 2.0, -2.0])
    found = made([none, full], none, full, [0, 5])
    assert not found.defined
    assert found.effect.lo < 0 < found.effect.hi
    assert found.explained()[["value", "lo", "hi"]].isna().all().all()
    assert np.isnan([*found.k_at(), *found.cpr(), *found.cmd()]).all()
    raw = found.table().query("metric == 'logit_diff'")
    assert raw["value"].notna().all()  # the metric itself is still there


def test_bands_widen_with_the_spread_over_examples():
    draw = np.random.default_rng(0)
    none, full = np.zeros(30), 1 + draw.normal(0, 0.1, 30)
    narrow, wide = (
        made([none, 0.5 * full + draw.normal(0, spread, 30), full], none, full, [0, 3, 6]).explained()
        for spread in (0.05, 0.5)
    )
    for one in (narrow, wide):
        assert (one["lo"][1] < one["value"][1] < one["hi"][1]).all()
        assert one["value"][2] == 1
        assert (one["lo"][2], one["hi"][2]) == (pytest.approx(1, abs=1e-12), pytest.approx(1, abs=1e-12))
        assert one["lo"][0] == one["hi"][0] == 0
    assert wide["hi"][1] - wide["lo"][1] > 4 * (narrow["hi"][1] - narrow["lo"][1])


def test_the_table_has_the_columns_of_the_contract(swept):
    table = swept.table()
    contract = "model task series action k metric value lo hi n draw".split()
    assert set(contract) <= set(table.columns)
    assert set(table["metric"]) == {"explained_effect", "logit_diff"}
    assert set(table["by"]) == {"absolute", "given"}
    main = table[table["series"] == "ablation absolute"]
    assert len(main) == 2 * 17
    assert main["draw"].isna().all()
    examples = swept.example_table()
    keys = ["series", "draw", "k"]
    means = examples.groupby(keys, dropna=False)["value"].mean()
    raw = table[(table["metric"] == "logit_diff") & table["draws"].isna()].set_index(keys)["value"]
    np.testing.assert_allclose(means.loc[raw.index], raw, atol=1e-12)


def test_signed_and_absolute_orders_are_named(planted, halves, scores):
    options = {"k": [0, 3, 16], "controls": ()}
    found = {
        by: sweep(planted, halves[1], scores, by=by, **options) for by in ("signed", "absolute", "hinders")
    }
    assert [one.series for one in found.values()] == ["ablation", "ablation absolute", "ablation hinders"]
    assert [one.by for one in found.values()] == ["signed", "absolute", "hinders"]
    unsigned = hw.score(planted, halves[0], "sensitivity")
    assert sweep(planted, halves[1], unsigned, **options).by == "unsigned"
    assert sweep(planted, halves[1], scores.order(), **options).by == "given"


def test_an_order_of_some_heads_has_a_curve_and_no_area(planted, halves):
    found = sweep(planted, halves[1], DENSE, draws=1)
    assert found.k[-1] == len(DENSE)
    np.testing.assert_allclose(found.explained()["value"].iloc[-1], 1, atol=1e-5)
    assert np.isnan(found.cpr().value)
    layer_matched = next(one for one in found.controls if one.series == "random_layer")
    assert [head.layer for head in layer_matched.order] == [0, 1, 1, 2, 3, 3]
    assert not set(map(str, layer_matched.order)) & set(DENSE)


def test_the_ends_of_a_grid_need_not_be_measured(planted, halves, scores, swept):
    found = sweep(planted, halves[1], scores, by="absolute", k=[1, 2, 3, 4, 5, 6, 10], controls=())
    assert found.k_at(0.7).k == swept.k_at(0.7).k
    assert found.cpr().value == pytest.approx(swept.cpr().value, abs=1e-6)
    late = sweep(planted, halves[1], scores, by="absolute", k=[8], controls=())
    assert late.k_at(0.9).k == np.ceil(0.9 * 8)  # on the straight line from none


def test_an_order_that_does_not_get_there_says_so(planted, halves, scores):
    first = scores.order("absolute")[:1]
    needed = sweep(planted, halves[1], first, controls=()).k_at(0.99)
    assert np.isnan([needed.k, needed.hi, needed.stays]).all()


def test_the_reference_is_the_mean_with_and_without_counterfactuals(tiny):
    task = word_task(6)
    plain = hw.Task("plain", tuple(hw.Example(e.prompt, e.target, e.foils) for e in task), "logit_diff")
    named = sweep(tiny, task, tiny.heads(), k=[0, 5], controls=(), reference="mean")
    for examples in (task, plain):
        found = sweep(tiny, examples, tiny.heads(), k=[0, 5], controls=())
        assert found.reference == "mean"
        np.testing.assert_array_equal(found.values, named.values)


@pytest.mark.parametrize("name", ["logprob", "accuracy", "kl"])
def test_any_metric_can_be_swept(planted, halves, scores, name):
    found = sweep(planted, halves[1], scores, metric=name, k=[0, 6, 16], controls=())
    assert found.metric == name
    assert np.isfinite(found.values).all()
    if name == "kl":
        np.testing.assert_allclose(found.full, 0, atol=1e-6)
        assert found.effect.value > 0


@pytest.mark.parametrize(
    ("order", "options", "said"),
    [
        (["L0H1", "L9H1"], {}, r"L9H1, which planted does not have \(4 layers × 4 heads\)"),
        (["L0H1", "L0H1"], {}, "L0H1 twice"),
        ([], {}, "empty"),
        (["L0H1"], {"k": [2]}, "from 0 to the order's 1"),
        (["L0H1"], {"action": "kept"}, "did you mean 'keep'"),
        (["L0H1"], {"controls": ["randm"]}, "did you mean 'random'"),
    ],
)
def test_mistakes_are_told(planted, halves, order, options, said):
    with pytest.raises(HeadwiseError, match=said):
        sweep(planted, halves[1], order, **options)


def test_a_threshold_outside_the_effect_is_refused(swept):
    with pytest.raises(HeadwiseError, match=r"is 1\.5; expected a number above 0, at most 1"):
        swept.k_at(1.5)


def test_a_sweep_draws_itself(swept):
    figure = swept.plot()
    explained = swept.explained()
    for panel, column in zip(
        figure.axes, ("value", "r2"), strict=False
    ):  # then the lowest family, if there is one
        drawn = [np.asarray(line.get_ydata(), dtype=float) for line in panel.lines]
        wanted = explained[column].to_numpy()
        assert any(len(y) == len(wanted) and np.allclose(y, wanted, equal_nan=True) for y in drawn), column
    assert swept._repr_png_().startswith(b"\x89PNG")
    assert repr(swept).startswith(
        "Sweep(keep by ablation absolute on apart, planted, mean ablation: 17 points up to 16 of 16 heads"
    )


def test_gates_that_do_nothing_change_nothing(planted, halves):
    """Idle heads first: the curve stays at exactly 0 until the first planted head comes."""
    idle = [head for head in planted.heads() if str(head) not in DENSE]
    found = sweep(planted, halves[1], [*idle, *(hw.Head.parse(h) for h in DENSE)], controls=())
    shares = found.explained().set_index("k")["value"]
    assert (shares[: len(idle)].abs() < 1e-6).all()
    assert shares[16] == 1
