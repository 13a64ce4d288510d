"""Mean head outputs in batches, against the mean over rows run one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads import single_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.measure.references import REFERENCES, register
from headwise.model.tokens.encode import encode_rows
from headwise.tasks import Example
from helpers import word_task

PROMPTS = [
    "the cat",
    "the dog saw a red bird and the cat",
    "a bird",
    "the red dog",
    "a cat saw the dog and a bird",
]


@pytest.fixture
def rows(tiny):
    return encode_rows(tiny.text, [Example(prompt, " cat") for prompt in PROMPTS], "target")


@pytest.mark.parametrize("budget", [1, 12, 1000])
def test_the_mean_is_over_every_real_token_whatever_the_batches(tiny, rows, budget):
    found = tiny.mean_outputs([row.ids for row in rows], batch_tokens=budget)
    single = [tiny.outputs(torch.tensor([row.ids])) for row in rows]
    for layer in range(tiny.shape[0]):
        tokens = np.concatenate([one[layer][0].cpu().numpy() for one in single])
        np.testing.assert_allclose(found[layer].cpu().numpy(), tokens.mean(axis=0), atol=1e-5)


def test_out_of_memory_halves_a_batch_and_one_text_that_does_not_fit_is_named(tiny, rows, monkeypatch):
    expected = tiny.mean_outputs([row.ids for row in rows], batch_tokens=1000)
    real, most = type(tiny).outputs, 1

    def greedy(model, ids, keep=None, components=()):
        if len(ids) > most:
            raise torch.OutOfMemoryError("out of memory")
        return real(model, ids, keep, components)

    monkeypatch.setattr(type(tiny), "outputs", greedy)
    found = tiny.mean_outputs([row.ids for row in rows], batch_tokens=1000)
    for layer, value in expected.items():
        np.testing.assert_allclose(found[layer].cpu().numpy(), value.cpu().numpy(), atol=1e-6)
    most = 0
    with pytest.raises(HeadwiseError, match="example 1 alone does not fit"):
        tiny.mean_outputs([row.ids for row in rows], batch_tokens=1000)


def test_a_registered_reference_gives_outputs_or_donor_prompts(tiny):
    task, gates = word_task(), single_gates(tiny.heads()[:3], tiny.shape)

    def effects(reference):
        return Engine(tiny, task, metric("logit_diff"), reference=reference).measure(gates).effects

    with REFERENCES.restored():
        register("sevens")(lambda source: {layer: torch.full((4, 8), 7.0) for layer in range(4)})
        register("counterfactual")(lambda source: [e.counterfactual for e in source.task.examples])
        np.testing.assert_array_equal(effects("counterfactual"), effects("patch"))
        assert np.abs(effects("sevens") - effects("zero")).min() > 1e-4
    with pytest.raises(HeadwiseError, match="unknown reference 'sevens'"):
        effects("sevens")
