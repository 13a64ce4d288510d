"""Integrated gradients, sensitivity and graddrop against finite differences and hand-written passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from helpers import answers, word_model, word_task


@pytest.mark.parametrize("reference", ["zero", "mean", "patch"])
def test_integrated_scores_sum_to_all_heads_minus_none(tiny64, reference):
    task = word_task(3)
    scores = hw.score(tiny64, task, "integrated", reference=reference, steps=64)
    ends = np.stack([np.zeros(tiny64.shape), np.ones(tiny64.shape)])
    none, full = Engine(tiny64, task, metric("logit_diff"), reference=reference).measure(ends).values
    np.testing.assert_allclose(scores.examples.sum(axis=(1, 2)), full - none, rtol=0.01, atol=0.01)
    assert scores.details["gap"] < 0.01
    assert scores.details["full_minus_none"] == pytest.approx((full - none).mean())


def test_integrated_equals_a_riemann_sum_of_finite_differences(tiny64):
    task = word_task(2)
    scores = hw.score(tiny64, task, "integrated", reference="patch", steps=80)
    engine = Engine(tiny64, task, metric("logit_diff"), reference="patch")
    layer, head, cells, step = 1, 2, 150, 1e-4
    total = np.zeros(2)
    for at in (np.arange(cells) + 0.5) / cells:
        moved = np.full((2, *tiny64.shape), at)
        moved[:, layer, head] += [step, -step]
        up, down = engine.measure(moved).values
        total += (up - down) / (2 * step) / cells
    np.testing.assert_allclose(scores.examples[:, layer, head], total, rtol=0.01, atol=1e-4)


def test_steps_are_doubled_until_the_sum_is_right(tiny64):
    loose = hw.score(tiny64, word_task(2), "integrated", tolerance=10.0)
    tight = hw.score(tiny64, word_task(2), "integrated", tolerance=1e-3)
    assert loose.details["steps"] == 5
    assert tight.details["steps"] in (10, 20, 40, 80, 160)
    assert tight.details["gap"] <= 1e-3
    assert "said" not in tight.details
    assert hw.score(tiny64, word_task(2), "integrated", reference="patch").details["steps"] == 5


def test_a_sum_that_is_not_reached_is_said(tiny64, caplog):
    scores = hw.score(tiny64, word_task(2), "integrated", tolerance=1e-12, most_steps=10)
    assert scores.details["steps"] == 10
    assert "after 10 steps the scores sum to" in scores.details["said"]
    assert scores.details["said"] in caplog.text


def test_no_step_at_all_is_refused(tiny64):
    with pytest.raises(HeadwiseError, match="steps is 0; expected at least 1"):
        hw.score(tiny64, word_task(2), "integrated", steps=0)


def test_sensitivity_does_not_let_examples_cancel(tiny64):
    task = word_task(5)
    scores = hw.score(tiny64, task, "sensitivity", metric="logprob")
    engine = Engine(tiny64, task, metric("logprob"), reference="mean")
    step = 1e-5
    for layer, head in [(0, 0), (2, 3)]:
        moved = np.ones((2, *tiny64.shape))
        moved[:, layer, head] += [step, -step]
        up, down = engine.measure(moved).values
        slopes = (up - down) / (2 * step)
        assert scores.values[layer, head] == pytest.approx(np.abs(slopes).mean(), rel=1e-4)
    signed = hw.score(tiny64, task, "attribution", metric="logprob")
    assert (scores.values > np.abs(signed.values) + 1e-6).any()
    assert not scores.signed


def graddrop_by_hand(model, task):
    """One backward pass per layer of a GPT-2, the layer's additions detached by a rewritten block."""
    blocks, L = model.hf.transformer.h, len(model.hf.transformer.h)
    total = torch.zeros(len(task), *model.shape, dtype=torch.float64)
    for dropped in range(L):
        for e, example in enumerate(task):
            gates = torch.ones(model.shape, dtype=torch.float64, device=model.device, requires_grad=True)
            x = model.hf.transformer.wte.weight[model.tokens(example.prompt)][None]
            x = x + model.hf.transformer.wpe.weight[: x.shape[1]]
            for layer, block in enumerate(blocks):
                handle = block.attn.c_proj.register_forward_pre_hook(
                    lambda _, args, g=gates[layer]: (
                        (args[0].unflatten(-1, (4, -1)) * g[:, None]).flatten(-2),
                    )
                )
                attended = x + block.attn(block.ln_1(x))[0]
                added = attended + block.mlp(block.ln_2(attended)) - x
                handle.remove()
                x = x + (added.detach() if layer == dropped else added)
            logits = model.hf.lm_head(model.hf.transformer.ln_f(x))[0, -1]
            target, foil = answers(model, example)
            (logits[target] - logits[foil]).backward()
            total[e] += gates.grad.abs().cpu()
    return (total / L * (L / (L - 1))).numpy()


def test_graddrop_equals_a_hand_written_pass_per_layer(tiny64):
    task = word_task(2)
    scores = hw.score(tiny64, task, "attribution", reference="zero", graddrop=True)
    np.testing.assert_allclose(scores.examples, graddrop_by_hand(tiny64, task), rtol=1e-6, atol=1e-9)
    assert not scores.signed
    assert np.isnan(scores.table()["p"]).all()
    assert hw.score(tiny64, task, "attribution").signed


def test_graddrop_leaves_the_model_as_it_was(tiny):
    before = hw.score(tiny, word_task(2), "attribution").examples
    hw.score(tiny, word_task(2), "attribution", graddrop=True)
    assert np.array_equal(hw.score(tiny, word_task(2), "attribution").examples, before)


def test_graddrop_refuses_blocks_that_normalise_their_sum():
    model = word_model("openai-gpt", name="post-norm")
    with pytest.raises(HeadwiseError, match=r"post-norm: block 0 .* there is no residual path around it"):
        hw.score(model, word_task(2), "attribution", graddrop=True)


@pytest.mark.parametrize("family", ["llama", "gptj", "olmo2", "gemma2", "granite", "mpt"])
def test_graddrop_takes_families_whose_blocks_add(family):
    model = word_model(family)
    scores = hw.score(model, word_task(2), "attribution", graddrop=True)
    assert (scores.values[model.exists] > 0).all()


def test_progress_of_many_passes_ends_where_it_was_promised(tiny):
    for name, options in [("attribution", {"graddrop": True}), ("integrated", {"steps": 3}), ("keep", {})]:
        steps = []
        hw.score(tiny, word_task(3), name, progress=steps.append, **options)
        assert sum(steps) == hw.scores.method(name).steps(tiny, word_task(3)), name


@pytest.mark.parametrize("method", ["attribution", "integrated"])
def test_a_metric_without_slopes_is_refused(tiny64, method):
    """Slopes of 0 would rank heads by chance."""
    with pytest.raises(HeadwiseError, match="the metric 'accuracy'"):
        hw.score(tiny64, word_task(2), method, metric="accuracy")
