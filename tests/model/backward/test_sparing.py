"""Rows that attend by themselves and products that are multiplied anew, against formulas and against what is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import headwise as hw
from headwise.model.backward.packing import Packed
from headwise.model.backward.remembered import remembering_less
from headwise.model.backward.row_attention import RowAttention
from headwise.model.backward.sparing import sparing_works
from headwise.model.forward.products import faster_products, onednn_works, whole_rows
from headwise.model.tokens.encode import encode_rows
from headwise.model.verify.tiny import tiny_model
from headwise.scores.gates.likelihood import GateLikelihood
from helpers import plain_logits, word_task

needs_onednn = pytest.mark.skipif(not onednn_works(), reason="this torch has no oneDNN product")


def places(lengths):
    return torch.cat([torch.arange(length) for length in lengths])


def drawn(tokens, heads, key_heads, dtype=torch.float32):
    torch.manual_seed(0)
    return [
        torch.randn(1, tokens, h, 8, dtype=dtype).transpose(1, 2).requires_grad_()
        for h in (heads, key_heads, key_heads)
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


@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize(("heads", "key_heads"), [(6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize("lengths", [[5, 1, 7], [1, 1], [9], [3, 4, 1, 1, 2]])
def test_attention_by_row_is_the_formula_and_so_are_its_slopes(lengths, heads, key_heads, by_row):
    parts = drawn(sum(lengths), heads, key_heads)
    attention = RowAttention(places(lengths), by_row)
    found = attention(*parts, attention.seen[None, None].clone(), {"scaling": 0.3, "dropout": 0.0})
    expected = by_formula(*parts, lengths, 0.3)
    weights = torch.randn(expected.shape)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    slopes = [torch.autograd.grad((z * weights).sum(), parts, retain_graph=True) for z in (found, expected)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_any_other_attention_is_left_to_the_family():
    attention = RowAttention(places([4, 3]))
    parts, mask = drawn(7, 4, 2), attention.seen[None, None].clone()
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
        (drawn(7, 4, 2, torch.float64), mask, {}),
        ([*parts[:2], parts[2][..., :4]], mask, {}),
    ]:
        assert attention(*given, seen, options) is None


def test_rows_get_calls_of_their_own_only_where_the_table_is_mostly_masked():
    assert not RowAttention(places([6] * 8)).by_row
    assert RowAttention(places([40] * 8)).by_row
    assert not RowAttention(places([400])).by_row


class FeedForward(nn.Module):
    """As many families have it: down(act(gate(norm(x))) · up(norm(x)))."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(12)
        self.gate, self.up, self.down = nn.Linear(12, 40), nn.Linear(12, 40), nn.Linear(40, 12)

    def forward(self, x):
        y = self.norm(x)
        self.a, self.b = self.gate(y), self.up(y)
        return x + self.down(nn.functional.silu(self.a) * self.b)


@needs_onednn
@pytest.mark.parametrize("anew", [True, False])
def test_wide_products_come_again_exactly_and_are_not_kept(anew):
    torch.manual_seed(0)
    part = FeedForward().requires_grad_(False)
    x, weights = torch.randn(1, 9, 12, requires_grad=True), torch.randn(1, 9, 12)
    with faster_products(part):
        (expected,) = torch.autograd.grad((part(x) * weights).sum(), x)
        with remembering_less([part] if anew else []):
            value = (part(x) * weights).sum()
        part.a.data.zero_(), part.b.data.zero_()  # behind autograd's back
        (found,) = torch.autograd.grad(value, x)
    assert torch.equal(found, expected) is anew
    assert not part.norm._forward_hooks


@needs_onednn
def test_what_came_again_is_let_go_when_its_product_is_done():
    part = FeedForward().requires_grad_(False)
    x = torch.randn(1, 9, 12, requires_grad=True)
    with faster_products(part), remembering_less([part]):
        value = part(x).sum()
    step = part.a.grad_fn
    assert step.source is not None
    value.backward()
    assert step.source is None
    assert step.result is None


@needs_onednn
def test_a_norm_that_gives_something_else_the_second_time_is_found_out(word_tokenizer):
    model = hw.load(tiny_model("llama", vocab_size=len(word_tokenizer)).eval(), tokenizer=word_tokenizer)
    assert model.spares
    norm = model.hf.model.layers[1].post_attention_layernorm

    class ChangingNorm(type(norm)):
        def forward(self, hidden_states):
            return super().forward(hidden_states) * (1.0 if torch.is_grad_enabled() else 2.0)

    norm.__class__ = ChangingNorm
    with model.frozen():
        assert not sparing_works(model.reach)


@pytest.mark.parametrize(
    "family", ["llama", "gemma3_text", "qwen3", "gpt_neox", "mixtral", "gpt2", "mistral"]
)
def test_slopes_with_memory_spared_are_those_without(word_tokenizer, family):
    model = hw.load(tiny_model(family, vocab_size=len(word_tokenizer)), tokenizer=word_tokenizer, name=family)
    likelihood = GateLikelihood(model, word_task(6, equal_length=False))
    assert likelihood.spared
    gates = np.random.default_rng(0).uniform(0.1, 0.9, (2, *model.shape))
    found = []
    for likelihood.spared in (True, False):
        found.append(likelihood.slopes(gates, np.array([[0, 3, 4], [2, 1, 5]])))
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
        found = tiny.logits(packed.ids, packed.positions, packed.place[None])[0].cpu()
    expected = torch.cat([plain_logits(tiny, row.ids)[row.positions] for row in rows])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_numbers_of_rows_are_few_and_hardly_more_than_asked_for():
    whole = [whole_rows(count) for count in range(1, 449)]
    assert all(0 <= w - c < 16 for c, w in enumerate(whole, start=1))
    assert len(set(whole)) <= 36
