"""Score methods against slow oracles, and on the real model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head, single_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.tokens.encode import batch_of, encode_rows
from headwise.scores import methods
from headwise.scores.registry import check_methods
from helpers import HeadsByHook, plain_logits, word_task


def test_ablation_equals_zeroed_columns_of_the_output_projection(tiny):
    task = word_task(4)
    scores = hw.score(tiny, task, "ablation", reference="zero")
    for layer, head in [(0, 0), (1, 2), (3, 3)]:
        weight = tiny.hf.model.layers[layer].self_attn.o_proj.weight.data
        saved = weight.clone()
        for e, example in enumerate(task):
            ids = tiny.tokens(example.prompt)
            (target,), (foil,) = (tiny.tokens(t.strip()) for t in (example.target, example.foils[0]))
            full = plain_logits(tiny, ids)[-1]
            weight[:, head * 8 : head * 8 + 8] = 0
            without = plain_logits(tiny, ids)[-1]
            weight.copy_(saved)
            expected = float((full[target] - full[foil]) - (without[target] - without[foil]))
            assert scores.examples[e, layer, head] == pytest.approx(expected, abs=1e-5)


def test_attribution_is_the_slope_of_the_metric_at_full_gates(tiny64):
    task = word_task(3)
    scores = hw.score(tiny64, task, "attribution", reference="patch")
    engine = Engine(tiny64, task, metric("logit_diff"), reference="patch")
    step = 1e-6
    for layer, head in [(0, 1), (2, 2)]:
        moved = np.ones((2, 4, 4))
        moved[:, layer, head] += [step, -step]
        up, down = engine.measure(moved).values
        np.testing.assert_allclose(
            scores.examples[:, layer, head], (up - down) / (2 * step), rtol=1e-4, atol=1e-8
        )


def test_a_head_that_helps_is_positive_in_every_signed_method(tiny):
    """The last layer's head 1 is made to write the targets' direction against the foils'."""
    task = word_task(4).take([0])
    (target,), (foil,) = (
        tiny.tokens(t.strip()) for t in (task.examples[0].target, task.examples[0].foils[0])
    )
    with torch.no_grad():
        direction = tiny.hf.lm_head.weight[target] - tiny.hf.lm_head.weight[foil]
        attention = tiny.hf.model.layers[3].self_attn
        seen = []
        with HeadsByHook(tiny, lambda layer, z: seen.append(z) or z):
            plain_logits(tiny, tiny.tokens(task.examples[0].prompt))
        z = seen[-1][0, -1, 1]  # the head's output at the last token
        attention.o_proj.weight[:, 8:16] = 3 * torch.outer(direction, z) / z.norm() / direction.norm()
    for name in ("ablation", "attribution"):
        scores = hw.score(tiny, task, name, reference="zero")
        assert scores["L3H1"] > 0.1, name
        assert scores.order()[0] == (3, 1), name


def test_random_scores_are_seeded_and_know_nothing(tiny):
    one, two, other = (hw.score(tiny, word_task(), "random", seed=s).examples for s in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)
    assert not hw.score(tiny, word_task(), "random").signed


def test_scores_carry_how_they_were_made(tiny):
    details = hw.score(tiny, word_task(), "ablation", reference="mean").details
    assert details["reference"] == "mean"
    assert details["batch_tokens"] == tiny.batch_tokens
    assert details["rows"] >= 16 * 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "ablate"}, "did you mean 'ablation'"),
        ({"metric": "logit_dif"}, "did you mean 'logit_diff'"),
        ({"method": "attribution", "metric": "kl"}, "undefined for the metric 'kl'"),
        ({"method": "attribution", "metric": "accuracy"}, "undefined for the metric 'accuracy'"),
        ({"stepz": 3}, "unknown option of method 'ablation'"),
    ],
)
def test_bad_names_and_options_are_one_clear_sentence(tiny, options, said):
    with pytest.raises(HeadwiseError, match=said):
        hw.score(tiny, word_task(), **options)


def test_every_method_says_what_its_number_means():
    for name, method in methods().items():
        assert method.about, name
        assert len(method.run.__doc__) > 60, name


@pytest.mark.bundled
def test_on_the_real_model_effects_equal_a_loop_of_hooks(smollm2):
    """Heads early, late and at the end, on 5 prompts; `benchmarks/peers.py` compares many more."""
    task = hw.task("ioi", 5, tokens=smollm2.tokens)
    heads = [Head(1, 5), Head(23, 3), Head(29, 8)]
    effects = Engine(smollm2, task, metric("logit_diff")).measure(single_gates(heads, smollm2.shape)).effects
    rows_of_task = encode_rows(smollm2.text, task.examples, "pairs")
    batch = {name: t.to(smollm2.device) for name, t in batch_of(rows_of_task).items()}
    rows = torch.arange(5, device=smollm2.device)

    def diff():
        with torch.no_grad():
            logits = smollm2.hf(input_ids=batch["ids"], use_cache=False).logits
        last = logits[rows, batch["positions"][:, 0]]
        return (last[rows, batch["rights"][:, 0, 1]] - last[rows, batch["wrongs"][:, 0, 1]]).cpu().numpy()

    full = diff()
    assert (full > 0).mean() > 0.9
    for (layer, head), effect in zip(heads, effects, strict=True):

        def off(at, z, layer=layer, head=head):
            z = z.clone()
            if at == layer:
                z[:, :, head] = 0
            return z

        with HeadsByHook(smollm2, off):
            np.testing.assert_allclose(effect, full - diff(), atol=1e-4)


def test_an_option_of_another_method_is_refused_with_that_method():
    with pytest.raises(
        HeadwiseError, match=r"precision is an option of ablation, not of attribution, random"
    ):
        check_methods(["attribution", "random"], {"graddrop": True, "precision": 0.1}, None)
    with pytest.raises(
        HeadwiseError, match=r"unknown option of the methods 'gradrop'; did you mean 'graddrop'"
    ):
        check_methods(["attribution"], {"gradrop": True}, None)
    check_methods(["attribution", "ablation"], {"graddrop": True, "precision": 0.1}, None)
