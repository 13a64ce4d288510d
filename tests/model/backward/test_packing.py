"""Rows one behind the other, and log p without a table of logits, against rows one by one in plain transformers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.metrics import metric
from headwise.model.backward import Packed, packing_works, plain_unembedding, target_logprobs
from headwise.model.forward.run import Pass
from headwise.model.measure.engine import Engine
from headwise.model.tokens.encode import encode_rows
from headwise.model.verify.tiny import tiny_model
from headwise.scores.gates.likelihood import GateLikelihood
from helpers import plain_logits, word_model, word_task


@pytest.mark.parametrize(
    ("family", "works"),
    [
        ("llama", True),
        ("gpt2", True),
        ("gemma3_text", True),
        ("qwen3", True),
        ("gptj", True),
        ("bloom", False),  # distances, counted without regard to the row
        ("jamba", False),  # a state that runs on from row to row
    ],
)
def test_families_whose_rows_would_see_one_another_are_not_packed(family, works):
    assert packing_works(tiny_model(family).eval()) is works


def test_packed_rows_get_the_logits_that_each_gets_alone(tiny):
    task = word_task(5, equal_length=False)
    rows = encode_rows(tiny.text, task.examples, "target")
    packed = Packed.of(rows, tiny.device)
    with torch.no_grad():
        found = tiny.run(packed.pass_()).logits[0].cpu()
    expected = torch.cat([plain_logits(tiny, row.ids)[row.positions] for row in rows])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert packed.tokens.tolist() == [[token for row in rows for token in row.tokens]]


@pytest.mark.parametrize("positions", ["all", "last"])
@pytest.mark.parametrize("reference", ["zero", "mean", "position_mean", "patch", "resample"])
def test_slopes_are_the_same_packed_and_padded_for_every_reference(tiny, reference, positions):
    task = word_task(6, equal_length=reference == "position_mean")
    likelihood = GateLikelihood(tiny, task, reference=reference, positions=positions)
    gates = np.random.default_rng(0).uniform(0.1, 0.9, (2, *tiny.shape))
    examples = np.array([[0, 3, 4], [2, 1, 1]])
    found = []
    for likelihood.packed in (True, False):
        found.append(likelihood.gradients(gates, examples))
    assert abs(found[0][1]).max() > 1e-4
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma2", "cohere", "gpt_neox"])
def test_slopes_of_capped_and_scaled_logits_are_those_of_the_engine(family):
    model = word_model(family)
    task = word_task(4, equal_length=False)
    values, slopes = GateLikelihood(model, task).gradients(np.ones((1, *model.shape)), np.arange(4)[None])
    each, per_example = Engine(model, task, metric("mean_logprob")).gradients()
    assert values[0] == pytest.approx(each.mean(), abs=1e-6)
    np.testing.assert_allclose(slopes[0], per_example.mean(axis=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "plain"), [("llama", True), ("gpt2", True), ("gemma2", False), ("cohere", False)]
)
def test_an_unembedding_is_plain_only_where_its_result_is_the_logits(family, plain):
    assert (plain_unembedding(tiny_model(family).eval()) is not None) is plain


@pytest.mark.parametrize(("held", "words"), [(1, 10_000), (3, 7), (100, 1), (100, 16)])
def test_log_p_and_its_slopes_do_not_depend_on_how_many_logits_are_held(tiny, monkeypatch, held, words):
    monkeypatch.setattr("headwise.model.backward.POSITIONS", held)
    monkeypatch.setattr("headwise.model.backward.WORDS", words)
    where = {"device": tiny.device}
    ids = torch.arange(3, 13, **where).reshape(2, 5)
    positions = torch.tensor([[1, 2, 4], [0, 3, 4]], **where)
    tokens = torch.tensor([[7, 1, 2], [9, 9, 4]], **where)
    bias = torch.zeros(1, requires_grad=True, **where)
    weights = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 1.0]], **where)

    def shifted(layer, z):
        return z + bias

    asked = Pass(ids=ids, scored=positions, heads=shifted)
    layer = tiny.capabilities.plain_unembedding
    results = []
    for way in (
        lambda: target_logprobs(tiny.run(replace(asked, hidden=True)).logits, layer, tokens),
        lambda: tiny.run(asked).logits.log_softmax(-1).gather(2, tokens[:, :, None])[:, :, 0],
    ):
        with tiny.frozen():
            values = way()
            results.append((values.detach(), torch.autograd.grad((values * weights).sum(), bias)[0]))
    assert abs(results[1][1]) > 1e-3
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)
    assert "forward" not in vars(layer)
