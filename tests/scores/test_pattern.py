"""What heads attend to, against the eager implementation's own weights and loops over pairs of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.model.verify.tiny import tiny_model
from headwise.tasks import Example, Task
from helpers import word_model

REPEATING = Task(
    "repeating",
    (
        Example("the cat saw a dog then the cat", " saw", (" met",)),
        Example("one red bird met one blue bird and one", " red", (" blue",)),
        Example("a dog dog sat . he saw a dog", " sat", (" ran",)),
    ),
    "logit_diff",
)


def eager_weights(family, tokenizer, prompt):
    """`[L, H, T, T]` of a second copy of the model, built with eager attention."""
    model = tiny_model(family, vocab_size=len(tokenizer), attn_implementation="eager")
    with torch.no_grad():
        given = model(
            input_ids=torch.tensor([tokenizer.encode(prompt)]), output_attentions=True, use_cache=False
        )
    return torch.stack(given.attentions)[:, 0].numpy()


def wanted_keys(kind, ids, query):
    """The keys that count for one query, never the first."""
    if kind == "previous":
        return [query - 1] if query > 1 else []
    equal = [k for k in range(query) if ids[k] == ids[query]]
    keys = equal if kind == "duplicate" else [k + 1 for k in equal if k + 1 < query]
    return [k for k in keys if k > 0]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gptj", "gemma2"])
@pytest.mark.parametrize("kind", ["previous", "duplicate", "induction"])
def test_patterns_equal_a_loop_over_the_eager_weights(family, kind, word_tokenizer):
    model = word_model(family, load={"bos": False})
    scores = hw.score(model, REPEATING, "pattern", kind=kind)
    for e, example in enumerate(REPEATING):
        ids = model.tokens(example.prompt)
        weights = eager_weights(family, word_tokenizer, example.prompt)
        for layer, head in [(0, 0), (1, 3), (3, 2)]:
            shares = [
                sum(weights[layer, head, q, k] for k in keys)
                for q in range(len(ids))
                if (keys := wanted_keys(kind, ids, q))
            ]
            assert scores.examples[e, layer, head] == pytest.approx(np.mean(shares), abs=1e-5)
    assert not scores.signed
    assert scores.metric == f"attention, {kind}"
    assert scores.values.min() >= 0
    assert scores.values.max() <= 1


def test_retrieval_reads_copies_of_the_target_where_it_is_predicted(tiny, word_tokenizer):
    task = Task(
        "copy",
        (
            Example("he saw red dog and red dog . it saw", " red dog"),
            Example("one two red dog sat . it saw", " red dog"),
        ),
    )
    scores = hw.score(tiny, task, "pattern", kind="retrieval")
    # Predicted after "saw": "red"; after "saw red": "dog". Each is looked up in its copies in the prompt.
    first = eager_weights("llama", word_tokenizer, "he saw red dog and red dog . it saw red")
    second = eager_weights("llama", word_tokenizer, "one two red dog sat . it saw red")
    for layer, head in [(0, 1), (2, 2)]:
        w = first[layer, head]
        expected = (w[9, 2] + w[9, 5] + w[10, 3] + w[10, 6]) / 2
        assert scores.examples[0, layer, head] == pytest.approx(expected, abs=1e-5)
        w = second[layer, head]
        assert scores.examples[1, layer, head] == pytest.approx((w[7, 2] + w[8, 3]) / 2, abs=1e-5)


def test_any_batch_size_gives_the_same_patterns(tiny):
    whole = hw.score(tiny, REPEATING, "pattern", kind="induction").examples
    single = hw.score(tiny, REPEATING, "pattern", kind="induction", batch_tokens=1).examples
    np.testing.assert_allclose(single, whole, atol=1e-6)


def test_the_model_is_left_with_its_own_attention(tiny):
    own = tiny.hf.config._attn_implementation
    hw.score(tiny, REPEATING, "pattern")
    assert tiny.hf.config._attn_implementation == own != "eager"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "inductive"}, "did you mean 'induction'"),
        ({"kind": "retrieval"}, "1 of 2 examples .*example 2.* the target is not in the prompt"),
        ({"kind": "duplicate"}, "2 of 2 examples .* no token of the prompt comes twice"),
    ],
)
def test_what_cannot_be_seen_is_one_clear_sentence(tiny, options, said):
    task = Task("once", (Example("the cat saw a dog", " dog"), Example("the cat saw a dog", " bird")))
    with pytest.raises(HeadwiseError, match=said):
        hw.score(tiny, task, "pattern", **options)
