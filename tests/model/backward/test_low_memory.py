"""Attention row by row and recomputed feed-forward parts, against formulas and against passes that keep everything."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.model.backward.packing import Packed
from headwise.model.backward.recompute import feed_forward_parts, low_memory_works
from headwise.model.backward.row_attention import RowAttention
from headwise.model.forward.onednn import whole_rows
from headwise.model.forward.run import Pass
from headwise.model.tokens.encode import encode_rows
from headwise.model.verify.tiny import tiny_model
from headwise.scores.gates.likelihood import GateLikelihood
from helpers import plain_logits, word_task


def places(lengths):
    return torch.cat([torch.arange(length) for length in lengths])


def drawn(tokens, heads, key_heads):
    torch.manual_seed(0)
    return [
        torch.randn(1, tokens, h, 8).transpose(1, 2).requires_grad_() for h in (heads, key_heads, key_heads)
    ]


def by_formula(query, key, value, lengths, scale):
    """softmax(q·k) v of each row in float64, one head and one token at a time."""
    found, start = [], 0
    share = query.shape[1] // key.shape[1]
    q, k, v = (t.double() for t in (query, key, value))
    for length in lengths:
        for t in range(start, start + length):
            heads = []
            for h in range(q.shape[1]):
                seen = slice(start, t + 1)
                weights = torch.softmax(k[0, h // share, seen] @ q[0, h, t] * scale, 0)
                heads.append(weights @ v[0, h // share, seen])
            found.append(torch.stack(heads))
        start += length
    return torch.stack(found)[None]


@pytest.mark.parametrize(("heads", "key_heads"), [(6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize("lengths", [[5, 1, 7], [1, 1], [9], [3, 4, 1, 1, 2]])
def test_attention_by_row_is_the_formula_and_so_are_its_slopes(lengths, heads, key_heads):
    parts = drawn(sum(lengths), heads, key_heads)
    attention = RowAttention(places(lengths))
    found = attention(*parts, attention.visible[None, None].clone(), {"scaling": 0.3, "dropout": 0.0})
    expected = by_formula(*parts, lengths, 0.3)
    weights = torch.randn(expected.shape)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    slopes = [torch.autograd.grad((z * weights).sum(), parts, retain_graph=True) for z in (found, expected)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_any_other_attention_is_left_to_the_family():
    attention = RowAttention(places([4, 3]))
    parts, mask = drawn(7, 4, 2), attention.visible[None, None].clone()
    assert attention(*parts, mask, {"scaling": 0.3, "sliding_window": 4, "position_ids": mask}) is not None
    window = mask.clone()
    window[0, 0, 3, 0] = False
    for given, seen, options in [
        (parts, window, {}),
        (parts, torch.ones_like(mask), {}),
        (parts, torch.zeros_like(mask, dtype=torch.float32), {}),
        (parts, None, {}),
        (parts, mask, {"dropout": 0.1}),
        (parts, mask, {"is_causal": False}),
        (parts, mask, {"softcap": 30.0}),
        (parts, mask, {"something_new": 1}),
        ([part[:, :, :6] for part in parts], mask[:, :, :6, :6], {}),
        ([*parts[:2], parts[2][..., :4]], mask, {}),
    ]:
        assert attention(*given, seen, options) is None


@pytest.mark.parametrize("recomputed", [True, False])
def test_a_recomputed_part_keeps_nothing_of_its_inside(tiny, recomputed):
    """What an activation gave is overwritten behind autograd's back: only a recomputed gradient stays right."""
    inside = []
    hook = tiny.hf.model.layers[1].mlp.act_fn.register_forward_hook(lambda *call: inside.append(call[2]))
    bias = torch.zeros(1, requires_grad=True)
    asked = {"ids": torch.arange(3, 9)[None], "heads": lambda layer, z: z + bias}
    with tiny.frozen():
        (expected,) = torch.autograd.grad(tiny.run(Pass(**asked)).logits.square().sum(), bias)
        inside.clear()
        parts = feed_forward_parts(tiny.hooks, 1.0) if recomputed else []
        value = tiny.run(Pass(**asked, recompute=parts)).logits.square().sum()
        inside[0].data.zero_()
        (found,) = torch.autograd.grad(value, bias)
    hook.remove()
    assert torch.equal(found, expected) is recomputed


def test_a_share_of_the_blocks_is_recomputed_beginning_with_the_first(tiny):
    blocks = tiny.hf.model.layers
    assert feed_forward_parts(tiny.hooks, 0.5) == [block.mlp for block in blocks[:2]]
    assert feed_forward_parts(tiny.hooks, 0.0) == []


def test_a_part_that_gives_something_else_the_second_time_is_found_out(word_tokenizer):
    model = hw.load(tiny_model("llama", vocab_size=len(word_tokenizer)).eval(), tokenizer=word_tokenizer)
    assert model.capabilities.low_memory
    part = model.hf.model.layers[1].mlp
    calls = []

    class ChangingPart(type(part)):
        def forward(self, x):
            calls.append(x)
            return super().forward(x * (1.0 if len(calls) < 3 else 2.0))  # plain, then ours, then again

    part.__class__ = ChangingPart
    with model.frozen():
        assert not low_memory_works(model.hooks)
    assert len(calls) == 3


@pytest.mark.parametrize(
    "family", ["llama", "gemma3_text", "qwen3", "gpt_neox", "mixtral", "gpt2", "mistral"]
)
def test_gradients_at_low_memory_are_those_without(word_tokenizer, family):
    model = hw.load(tiny_model(family, vocab_size=len(word_tokenizer)), tokenizer=word_tokenizer, name=family)
    likelihood = GateLikelihood(model, word_task(6, equal_length=False))
    assert likelihood.low_memory
    gates = np.random.default_rng(0).uniform(0.1, 0.9, (2, *model.shape))
    found = []
    for likelihood.low_memory in (True, False):
        found.append(likelihood.gradients(gates, np.array([[0, 3, 4], [2, 1, 5]])))
    assert abs(found[0][1]).max() > 1e-4
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("more", [0, 1, 3, 40])
def test_tokens_that_fill_up_a_sequence_are_seen_by_nobody(tiny, more):
    rows = encode_rows(tiny.text, word_task(3, equal_length=False).examples, "target")
    tokens = sum(len(row.ids) for row in rows) + more
    packed = Packed.of(rows, tiny.device, tokens)
    assert packed.ids.shape == (1, tokens)
    with torch.no_grad():
        found = tiny.run(packed.pass_()).logits[0].cpu()
    expected = torch.cat([plain_logits(tiny, row.ids)[row.positions] for row in rows])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_numbers_of_rows_are_few_and_hardly_more_than_asked_for():
    whole = [whole_rows(count) for count in range(1, 449)]
    assert all(0 <= w - c < 16 for c, w in enumerate(whole, start=1))
    assert len(set(whole)) <= 36
