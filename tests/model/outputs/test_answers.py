"""Head outputs over the answer, against hooks on one sentence at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.model.outputs.answers import answer_outputs
from headwise.tasks import Example
from helpers import HeadsByHook, plain_logits

EXAMPLES = [
    Example("the cat saw", " a big dog"),
    Example("one bird", " sat"),
    Example("then he and she met the small dog", " and ran ."),
    Example("it liked two", " red , blue and small"),
]


def by_hand(model, example, tokens=None):
    """[L, H, D] of one example: hooks, the whole text, a plain mean."""
    prompt, whole = model.tokens(example.prompt), model.tokens(example.prompt + example.target)
    seen = {}

    def note(layer, z):
        seen[layer] = z[0].clone()
        return z

    with HeadsByHook(model, note):
        logits = plain_logits(model, whole)
    places = list(range(len(prompt), len(whole)))
    if tokens is not None:
        logprobs = logits.log_softmax(-1)
        places = sorted(places, key=lambda t: float(logprobs[t - 1, whole[t]]))[:tokens]
    return torch.stack([seen[layer][places].mean(0) for layer in sorted(seen)]).numpy()


@pytest.mark.parametrize("tokens", [None, 1, 2])
@pytest.mark.parametrize("batch_tokens", [1, 20, 10_000])
def test_outputs_are_the_mean_over_the_answers_tokens_the_last_one_too(tiny, tokens, batch_tokens):
    outputs = answer_outputs(tiny, EXAMPLES, tokens=tokens, batch_tokens=batch_tokens)
    assert outputs.shape == (4, 4, 4, 8)
    for found, example in zip(outputs, EXAMPLES, strict=True):
        np.testing.assert_allclose(found, by_hand(tiny, example, tokens), atol=1e-5)


def test_progress_counts_every_example_once(tiny):
    counted = []
    answer_outputs(tiny, EXAMPLES, batch_tokens=15, advance=counted.append)
    assert sum(counted) == len(EXAMPLES)


def test_out_of_memory_goes_on_with_halves(tiny, monkeypatch):
    expected, outputs, sizes = answer_outputs(tiny, EXAMPLES), tiny.outputs, []

    def greedy(ids, keep):
        sizes.append(len(ids))
        if len(ids) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return outputs(ids, keep)

    monkeypatch.setattr(tiny, "outputs", greedy)
    np.testing.assert_allclose(answer_outputs(tiny, EXAMPLES), expected, atol=1e-5)
    assert max(sizes) > 1


def test_no_tokens_at_all_is_refused(tiny):
    with pytest.raises(HeadwiseError, match="at least one of its tokens, not 0"):
        answer_outputs(tiny, EXAMPLES, tokens=0)
