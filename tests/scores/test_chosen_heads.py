"""`heads=[…]` in score, sweep and generate."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import mask_gates
from helpers import word_task

HEADS = ["L2H3", "L0H1"]


@pytest.mark.parametrize("by", ["ablation", "keep", "attribution", "integrated", "direct"])
def test_chosen_heads_have_the_numbers_of_the_full_map(tiny64, by):
    task = word_task(4)
    full, some = hw.score(tiny64, task, by), hw.score(tiny64, task, by, heads=HEADS)
    assert [str(head) for head in some.heads()] == ["L0H1", "L2H3"]
    for head in some.heads():
        of_head = (slice(None), head.layer, head.head)
        np.testing.assert_allclose(some.examples[of_head], full.examples[of_head], atol=1e-10)
    assert np.isnan(some.values).sum() == some.values.size - 2
    assert len(some.table()) == 2


def test_the_cost_of_ablation_is_that_of_the_chosen_heads(tiny):
    task, steps = word_task(4), []
    some = hw.score(tiny, task, heads=HEADS, progress=steps.append)
    assert sum(steps) == 2 * 4
    assert some.details["rows"] < hw.score(tiny, task).details["rows"] / 3


def test_adaptive_ablation_takes_chosen_heads(tiny):
    task = word_task(8)
    some = hw.score(tiny, task, heads=HEADS, precision=1e-9)
    exact = hw.score(tiny, task)
    for head in some.heads():
        assert some[head] == pytest.approx(exact[head], abs=1e-5)
    assert len(some.heads()) == 2


def test_a_sweep_ablates_the_chosen_heads_as_listed(tiny):
    task = word_task(4)
    swept = hw.sweep(tiny, task, ablate=HEADS, reference="zero", controls=())
    assert (swept.action, swept.k.tolist()) == ("mask", [0, 1, 2])
    for k in (1, 2):
        expected = hw.measure(tiny, task, ablate=HEADS[:k], reference="zero").values
        np.testing.assert_allclose(swept.values[k], expected, atol=1e-5)
    assert "nan" not in repr(swept)


@pytest.mark.parametrize("k", [[0, 1, 2], [1], None])
def test_a_sweep_knows_its_number_of_steps(tiny, k, monkeypatch):
    import headwise.sweeps.sweep as module

    totals, steps = [], []

    @contextlib.contextmanager
    def reporting(label, total, asked):
        totals.append(total)
        yield steps.append

    monkeypatch.setattr(module, "reporting", reporting)
    hw.sweep(tiny, word_task(4), ablate=HEADS, k=k, controls=("random",), draws=2)
    assert sum(steps) == totals[0] > 0


def test_a_sweep_ranks_the_chosen_heads_by_the_scores(tiny):
    task = word_task(4)
    scores = hw.score(tiny, task)
    chosen = ["L0H0", "L1H1", "L3H3"]
    swept = hw.sweep(tiny, task, scores, heads=chosen, controls=())
    assert swept.order == [head for head in scores.order() if str(head) in chosen]
    assert swept.action == "keep"
    assert hw.sweep(tiny, task, scores, "mask", heads=chosen, controls=()).action == "mask"
    kept = hw.sweep(tiny, task, keep=chosen, reference="zero", controls=())
    expected = hw.measure(tiny, task, keep=chosen[:2], reference="zero").values
    np.testing.assert_allclose(kept.values[kept.k.tolist().index(2)], expected, atol=1e-5)
    with pytest.raises(HeadwiseError, match="give one of them"):
        hw.sweep(tiny, task, scores, ablate=chosen)
    with pytest.raises(HeadwiseError, match="give one of them"):
        hw.sweep(tiny, task, ablate=chosen, keep=chosen)


def test_generation_ablates_the_chosen_heads_in_every_variant(tiny):
    prompts = ["the dog met", "he saw a red"]
    gates = np.stack([mask_gates(["L1H0"], tiny.shape), mask_gates([], tiny.shape)])
    both = np.stack([mask_gates(["L1H0", *HEADS], tiny.shape), mask_gates(HEADS, tiny.shape)])
    assert (
        hw.generate(tiny, prompts, gates, ablate=HEADS, max_new_tokens=5).tokens
        == hw.generate(tiny, prompts, both, max_new_tokens=5).tokens
    )
    assert (
        hw.generate(tiny, prompts, ablate=HEADS, max_new_tokens=5).tokens
        == hw.generate(tiny, prompts, both[1], max_new_tokens=5).tokens
    )


def test_wrong_heads_are_named(tiny):
    task = word_task(3)
    with pytest.raises(HeadwiseError, match="has no head L7H0"):
        hw.score(tiny, task, heads="L7H0")
    with pytest.raises(HeadwiseError, match="heads is empty"):
        hw.score(tiny, task, heads=[])
    with pytest.raises(HeadwiseError, match="has no head L7H0"):
        hw.generate(tiny, ["the dog"], ablate="L7H0")
    with pytest.raises(HeadwiseError, match="which the order does not have"):
        hw.sweep(tiny, task, ["L0H0"], heads=["L1H0"])
    with pytest.raises(HeadwiseError, match="a sweep needs an order"):
        hw.sweep(tiny, task)
