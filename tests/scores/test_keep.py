"""Keeping one head alone, against hooks with all other heads replaced."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.heads import Head, keep_gates, lone_gates, mask_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from helpers import HeadsByHook, leaving, plain_difference, recorded, word_task


def only(model, example, kept, replaced=None):
    """logit_diff of one example with the heads in `kept` as they are and all others replaced, by hooks."""
    others = [] if replaced is None else [lambda layer, _: replaced[layer]]
    with HeadsByHook(model, leaving(kept, *others)):
        return plain_difference(model, example)


@pytest.mark.parametrize("reference", ["zero", "patch"])
def test_keep_equals_hooks_with_every_other_head_replaced(tiny, reference):
    task = word_task(3)
    scores = hw.score(tiny, task, "keep", reference=reference)
    for e, example in enumerate(task):
        replaced = recorded(tiny, example.counterfactual) if reference == "patch" else None
        none = only(tiny, example, [], replaced)
        for head in tiny.heads():
            expected = only(tiny, example, [head], replaced) - none
            assert scores.examples[e, head.layer, head.head] == pytest.approx(expected, abs=2e-5)


def test_a_head_that_writes_nothing_gains_exactly_nothing(tiny):
    with torch.no_grad():
        tiny.hf.model.layers[1].self_attn.o_proj.weight[:, 16:24] = 0  # head 2 of layer 1
    for batch_tokens in (40, 10_000):
        task = word_task(equal_length=False)
        scores = hw.score(tiny, task, "keep", batch_tokens=batch_tokens)
        assert not scores.examples[:, 1, 2].any()
        assert (np.abs(scores.values) > 0).sum() == 15


def test_any_baseline_may_be_measured_beside(tiny):
    """Entering at the first difference from the baseline gives what running both in full gives."""
    task = word_task(4, equal_length=False)
    engine = Engine(tiny, task, metric("logit_diff"))
    baseline = mask_gates([Head(0, 1), Head(2, 2)], tiny.shape)
    variants = np.stack(
        [baseline * mask_gates([Head(3, 0)], tiny.shape), keep_gates([], tiny.shape), baseline]
    )
    measured = engine.measure(variants, baseline=baseline)
    plain = engine.measure(np.stack([baseline, *variants])).values
    np.testing.assert_allclose(measured.values, plain[1:], atol=1e-5)
    np.testing.assert_allclose(measured.full, np.broadcast_to(plain[0], (3, 4)), atol=1e-5)
    assert np.array_equal(measured.values[2], measured.full[2])


def test_a_metric_that_compares_still_compares_with_the_full_model(tiny):
    engine = Engine(tiny, word_task(3), metric("kl"))
    gates = lone_gates(tiny.heads()[:2], tiny.shape)
    beside_none = engine.measure(gates, baseline=np.zeros(tiny.shape))
    np.testing.assert_allclose(beside_none.values, engine.measure(gates).values, atol=1e-5)
    assert (beside_none.full < -1e-3).all()
