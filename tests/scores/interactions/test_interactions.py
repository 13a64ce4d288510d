"""Joint effects of pairs: against a plain loop of hooks, silenced heads, estimates, fewer examples, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import headwise as hw
from headwise import stats
from headwise.errors import HeadwiseError
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.scores.interactions.pairs import all_pairs, pair_effects
from helpers import HeadsByHook, plain_difference, replacing, word_task


def removed_by_hook(model, task, heads):
    """logit(target) − logit(foil) of every example with these heads zeroed by hooks, one prompt at a time."""
    with HeadsByHook(model, replacing(heads)):
        return np.array([plain_difference(model, example) for example in task])


def silence(model, head):
    """Set the head's columns of the output projection to 0."""
    size = model.hf.config.head_dim
    with torch.no_grad():
        projection = model.hf.model.layers[head.layer].self_attn.o_proj
        projection.weight[:, size * head.head : size * (head.head + 1)] = 0


HEADS = [hw.Head(*pair) for pair in ((0, 1), (1, 0), (1, 3), (2, 2), (3, 0))]


def test_joint_effects_and_interactions_are_those_of_a_plain_loop_of_hooks(tiny):
    task = word_task(5)
    found = hw.interactions(tiny, task, HEADS, reference="zero")
    full = removed_by_hook(tiny, task, [])
    alone = {head: full - removed_by_hook(tiny, task, [head]) for head in HEADS}
    table = found.table().set_index(["a", "b"])
    assert len(table) == 10
    for number, (a, b) in enumerate(itertools.combinations(HEADS, 2)):
        joint = full - removed_by_hook(tiny, task, [a, b])
        interaction = joint - alone[a] - alone[b]
        np.testing.assert_allclose(found.interaction[:, number], interaction, atol=1e-4)
        row = table.loc[str(a), str(b)]
        assert row["joint"] == pytest.approx(joint.mean(), abs=1e-4)
        assert row["conditional"] == pytest.approx((joint - alone[a]).mean(), abs=1e-4)
        assert row["effect_a"] == pytest.approx(alone[a].mean(), abs=1e-4)


@pytest.mark.parametrize("silent", [HEADS[0], HEADS[2], HEADS[4]])
@pytest.mark.parametrize("batch_tokens", [None, 60])
def test_a_silenced_head_interacts_with_none_to_the_last_bit(tiny, silent, batch_tokens):
    silence(tiny, silent)
    found = hw.interactions(tiny, word_task(6), HEADS, batch_tokens=batch_tokens)
    for (a, b), values in zip(found.pairs, found.interaction.T, strict=True):
        assert (not values.any()) == (silent in (HEADS[a], HEADS[b]))
    table = found.table()
    zero = table[(table["a"] == str(silent)) | (table["b"] == str(silent))]
    assert (zero["interaction"] == 0).all()
    assert (zero["p"] == 1).all()


def test_a_head_that_writes_nothing_on_these_prompts_may_still_interact(word_tokenizer):
    """A planted backup: next to nothing alone, and most of the effect once the primary head is gone."""
    from planted import backup_model, second_words

    model, primary, backup = backup_model(word_tokenizer, 3)
    row = hw.interactions(model, second_words(12), [primary, backup], reference="zero").table().iloc[0]
    assert abs(row["effect_b"]) < 0.01
    assert row["interaction"] > 1


def test_a_set_with_each_head_gives_the_effects_given_the_set(tiny):
    task, removed = word_task(5), ["L1H0", "L2H2"]
    found = hw.interactions(tiny, task, ["L0H1", "L3H0"], given=removed, reference="zero")
    table = found.table().set_index("b")
    sets = {name: [*map(hw.Head.parse, removed), hw.Head.parse(name)] for name in ("L0H1", "L3H0")}
    without = removed_by_hook(tiny, task, [hw.Head.parse(head) for head in removed])
    for name, heads in sets.items():
        assert table.loc[name, "conditional"] == pytest.approx(
            (without - removed_by_hook(tiny, task, heads)).mean(), abs=1e-4
        )
        assert table.loc[name, "a"] == "L1H0+L2H2"
    everything = hw.interactions(tiny, task, given=removed)
    assert len(everything.table()) == len(tiny.heads()) - 2


def test_the_estimate_is_the_gradient_with_one_head_removed_minus_the_plain_one(tiny64):
    """Finite differences of the metric with respect to gate b, with a at 0 and at 1."""
    task, a, b = word_task(4), hw.Head(0, 1), hw.Head(2, 2)
    found = hw.interactions(tiny64, task, [a, b], estimate=True)
    engine, step = Engine(tiny64, task, metric("logit_diff"), reference="mean"), 1e-4

    def slope(at, removed=None):
        gates = np.ones((2, *tiny64.shape))
        if removed is not None:
            gates[:, removed.layer, removed.head] = 0
        gates[:, at.layer, at.head] = 1 + step, 1 - step
        high, low = engine.measure(gates).values
        return (high - low) / (2 * step)

    expected = (slope(b, a) - slope(b) + slope(a, b) - slope(a)) / 2
    np.testing.assert_allclose(found.estimate[:, 0], expected, atol=1e-5)


def test_few_examples_give_what_all_examples_give_to_the_asked_precision(tiny):
    task = word_task(40)
    exact = hw.interactions(tiny, task, "all").table().set_index(["a", "b"])["interaction"]
    within = []
    for seed in range(2):  # pairs share their examples, so one draw of examples is off for many pairs
        found = hw.interactions(tiny, task, "all", precision=0.1, seed=seed)
        table = found.table().set_index(["a", "b"])
        within.append(((table["interaction"] - exact.reindex(table.index)).abs() < 0.1).mean())
        assert ((table["hi"] - table["lo"]) / 2 <= 0.1 + 1e-9).all()
        assert table["n"].min() < 12  # a pair that does nothing is dropped after the pilot
        assert table["n"].max() <= 40
        assert found.details["rows"] < found.details["rows_exhaustive"]
        assert np.isnan(found.interaction).any()
    assert np.mean(within) > 0.93


def test_tests_count_groups_and_q_values_correct_for_all_pairs(tiny):
    from dataclasses import replace

    task = word_task(12)
    grouped = replace(task, examples=tuple(replace(e, group=str(i // 3)) for i, e in enumerate(task)))
    plain, clustered = (hw.interactions(tiny, one, HEADS[:3]) for one in (task, grouped))
    expected = stats.sign_flip(plain.interaction, groups=[i // 3 for i in range(12)])
    got = clustered.table().set_index(["a", "b"])
    order = [(str(HEADS[a]), str(HEADS[b])) for a, b in plain.pairs]
    np.testing.assert_allclose(got["p"].reindex(order), expected)
    np.testing.assert_allclose(got["q"].reindex(order), stats.benjamini_hochberg(expected))


def test_the_matrix_is_symmetric_and_every_chart_draws(tiny):
    found = hw.interactions(tiny, word_task(6), HEADS)
    matrix = found.matrix()
    np.testing.assert_array_equal(matrix.to_numpy(), matrix.to_numpy().T)
    assert np.isnan(np.diag(matrix)).all()
    for order in ("layer", "cluster"):
        names = [t.get_text() for t in found.plot(order).axes[0].get_yticklabels()]
        assert sorted(names) == sorted(map(str, HEADS))
    given = hw.interactions(tiny, word_task(6), given="L0H0").plot()
    assert "Effect with L0H0 removed" in given.axes[0].get_ylabel()
    assert "Interactions(logit_diff on words" in repr(found)
    assert "L1H0, " in found._repr_html_() or ", L1H0" in found._repr_html_()


def test_the_default_heads_are_forty_by_attribution_and_scores_give_their_own(tiny, monkeypatch):
    monkeypatch.setattr("headwise.scores.interactions.interactions.FIRST", 3)
    task = word_task(4)
    top = hw.score(tiny, task, "attribution").top(3, "absolute")
    assert hw.interactions(tiny, task).heads == sorted(top)
    ablation = hw.score(tiny, task, "ablation")
    assert hw.interactions(tiny, task, ablation).heads == sorted(ablation.top(3, "absolute"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"heads": ["L0H0"]}, "name at least two"),
        ({"heads": ["L0H0", "L0H0"]}, "names L0H0 twice"),
        ({"heads": ["L9H0", "L0H0"]}, "has no head L9H0"),
        ({"given": []}, "given is empty"),
        ({"given": ["L0H0"], "heads": ["L0H0"]}, "no head is left"),
        ({"metric": "accuracy"}, "has no gradient to choose heads by"),
        ({"metric": "accuracy", "heads": "all", "precision": 0.1}, "takes few values"),
        ({"metric": "accuracy", "heads": "all", "estimate": True}, "needs a gradient"),
    ],
)
def test_mistakes_are_refused_with_what_to_do(tiny, given, said):
    with pytest.raises(HeadwiseError, match=said):
        hw.interactions(tiny, word_task(4), **given)


def test_a_matrix_without_estimate_says_how_to_get_one(tiny):
    found = hw.interactions(tiny, word_task(4), HEADS[:2])
    with pytest.raises(HeadwiseError, match="estimate=True"):
        found.agreement()
    with pytest.raises(HeadwiseError, match="no column of numbers"):
        found.matrix("a")


def test_pairs_on_some_examples_are_the_same_rows_of_all(tiny):
    task = word_task(6)
    engine = Engine(tiny, task, metric("logit_diff"))
    units, pairs = [(head,) for head in HEADS], all_pairs(5)
    some = pair_effects(engine, units, pairs[3:7], np.array([4, 1]))
    every = pair_effects(engine, units, pairs)
    np.testing.assert_allclose(some.joint, every.joint[[4, 1], 3:7], atol=1e-5)
    np.testing.assert_allclose(every.conditional, every.joint - every.first, atol=1e-5)


def test_progress_of_interactions_ends_at_every_pair_of_every_example(tiny):
    done = []
    hw.interactions(tiny, word_task(5), HEADS, progress=done.append)
    assert sum(done) == 10 * 5
