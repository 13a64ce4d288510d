"""Redistributed activations against a loop over tokens, and the places where activations are found."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.model.arm import arm, first_gate, mlp_gates, redistributed, seen_gates
from headwise.model.forward.run import Pass
from headwise.model.verify.tiny import tiny_model
from helpers import WORDS, plain_logits

PROMPTS = [" ".join(np.random.default_rng(n).choice(WORDS, length)) for n, length in enumerate((3, 7, 12))]
IDS = list(range(3, 15))


def by_hand(a, draws, c, p1, mode):
    """One token's units, one after the other."""
    size = np.abs(a)
    mad = np.median(np.abs(size - np.median(size)))
    share = np.clip(np.mean(size < 1.4826 * mad * c), 0.02, 0.25)
    smallest = np.argsort(size, kind="stable")[: round(share * len(a))]
    top, bottom = max(np.percentile(a, p1), 0), min(a.min(), 0)
    changed = a.copy()
    for unit in smallest:
        new = draws[unit] * (top if a[unit] >= 0 else bottom)
        changed[unit] = new + (a[unit] if mode == "add" else 0)
    return changed


@pytest.mark.parametrize("mode", ["replace", "add"])
@pytest.mark.parametrize(("c", "p1"), [(0.13, 99.5), (0.32, 90.0), (1e-6, 50.0), (9.0, 0.0)])
def test_small_values_are_redistributed_token_by_token(mode, c, p1):
    draw = np.random.default_rng(5)
    a = draw.standard_t(3, (2, 5, 101)) * draw.random((2, 5, 1)) * 4
    draws = draw.random(a.shape)
    found = redistributed(torch.tensor(a), torch.tensor(draws), c=c, p1=p1, mode=mode).numpy()
    for row in range(2):
        for token in range(5):
            expected = by_hand(a[row, token], draws[row, token], c, p1, mode)
            np.testing.assert_allclose(found[row, token], expected, atol=1e-12)
    if mode == "replace":
        assert (found != a).sum(-1).min() >= 0.02 * 101 - 1
    assert (found != a).sum(-1).max() <= 0.25 * 101 + 1


def logits(model, ids):
    return plain_logits(model, ids).numpy()


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "bloom", "phi3", "gemma2", "gptj", "qwen3"])
def test_the_first_activation_is_changed_and_nothing_else(family):
    model = hw.load(tiny_model(family), name=family)
    gates = mlp_gates(model)
    assert sorted(gates) == [0, 1, 2, 3]
    seen = {}
    before = logits(model, IDS)
    read = {"ids": torch.tensor([IDS])}
    plain = seen_gates(gates, lambda block, a: seen.setdefault(("plain", block), a.clone()))
    armed = seen_gates(gates, lambda block, a: seen.setdefault(("arm", block), a.clone()))
    with torch.no_grad():
        model.run_whole(Pass(**read, modules=plain))
        with arm(model):
            model.run_whole(Pass(**read, modules=armed))
            under = logits(model, IDS)
    a, changed = seen["plain", 0].numpy(), seen["arm", 0].numpy()
    units = a.shape[1]
    assert len(a) == 12
    assert units in (64, 128)
    draws = np.stack([np.random.default_rng([0, at]).random(units, np.float32) for at in range(12)])
    expected = np.stack([by_hand(x, u, 0.13, 99.5, "replace") for x, u in zip(a, draws, strict=True)])
    np.testing.assert_allclose(changed, expected, atol=1e-5)
    assert np.abs(under - before).max() > 1e-4
    np.testing.assert_array_equal(logits(model, IDS), before)  # and afterwards nothing is left of it


def test_seeds_and_modes_differ_and_a_seed_repeats(tiny):
    def under(**options):
        with arm(tiny, **options):
            return logits(tiny, IDS)

    np.testing.assert_array_equal(under(seed=1), under(seed=1))
    assert np.abs(under(seed=1) - under(seed=2)).max() > 1e-4
    assert np.abs(under() - under(mode="add")).max() > 1e-4


def test_a_prompt_is_changed_in_the_same_way_alone_in_a_batch_and_piece_by_piece(tiny):
    beginning = " ".join(WORDS[:20])
    prompts = [f"{beginning} {prompt}" for prompt in PROMPTS]
    with arm(tiny):
        for some in (PROMPTS, prompts):  # the second begin alike, and are read in two parts
            together = hw.generate(tiny, some, max_new_tokens=6).tokens[0]
            for prompt, tokens in zip(some, together, strict=True):
                ids = tiny.tokens(prompt)
                for token in tokens:  # whole text read again for every token
                    assert int(logits(tiny, ids)[-1].argmax()) == token
                    ids.append(token)
        whole = hw.attention(tiny, prompts, "L1H0")
        alone = [hw.attention(tiny, [prompt], "L1H0")[0] for prompt in prompts]
    for one, other in zip(whole, alone, strict=True):
        np.testing.assert_allclose(one.profile, other.profile, atol=1e-6)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_a_model_without_an_activation_over_every_token_is_refused_in_a_sentence(family):
    model = hw.load(tiny_model(family), name=family)
    with pytest.raises(HeadwiseError, match=f"first layer's MLP of {family}.*leave the condition arm out"):
        first_gate(model)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"mode": "ad"}, "did you mean 'add'"), ({"c": 0}, "c above 0"), ({"p1": 101}, "p1")],
)
def test_mistakes_are_named(tiny, options, said):
    with pytest.raises(HeadwiseError, match=said), arm(tiny, **options):
        pass
