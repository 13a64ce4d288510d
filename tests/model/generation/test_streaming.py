"""A cache of which most heads store the first and the last tokens only, against masks written out in full."""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionInterface

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.model.verify.tiny import tiny_model

SINK, WINDOW = 2, 5
FAR = ["L0H1", "L2H3", "L3H0"]


def explicit(hf, far, starts):
    """The model's logits with every key/value head's view written into one mask, without any cache."""

    def attention(module, query, key, value, attention_mask, scaling=None, softcap=None, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
        scaling = module.head_dim**-0.5 if scaling is None else scaling
        scores = query @ key.transpose(2, 3) * scaling
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        rows, heads, tokens, _ = query.shape
        i, j = torch.arange(tokens)[:, None], torch.arange(tokens)[None]
        seen = torch.zeros(rows, heads, tokens, tokens, dtype=torch.bool)
        for row in range(rows):
            real = (j <= i) & (j >= starts[row])
            short = real & ((j - starts[row] < SINK) | (i - j < WINDOW))
            for head in range(heads):
                seen[row, head] = real if (module.layer_idx, head // groups) in far else short
        scores = scores.masked_fill(~seen, -1e30)
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    AttentionInterface.register("explicit_windows", attention)
    before = hf.config._attn_implementation
    hf.config._attn_implementation = "explicit_windows"
    try:

        def logits(ids, mask):
            places = (mask.cumsum(1) - 1).clamp_min(0)
            with torch.no_grad():
                return hf(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False).logits[
                    :, -1
                ]

        yield logits
    finally:
        hf.config._attn_implementation = before


@pytest.mark.parametrize(
    "pieces", [[21], [3], [9, 12]], ids=["prompt", "short prompt", "prompt in two pieces"]
)
@pytest.mark.parametrize("padded", [False, True], ids=["one row", "rows of unequal length"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_decoding_with_a_small_cache_equals_masks_written_out(family, padded, pieces):
    more = {"sliding_window": 4096, "layer_types": ["full_attention"] * 4} if family == "gemma2" else {}
    hf = tiny_model(family, **more).eval()
    model = hw.load(hf, name=family)
    groups = hf.config.num_attention_heads // hf.config.num_key_value_heads
    far = {(head.layer, head.head // groups) for head in map(hw.Head.parse, FAR)}
    torch.manual_seed(3)
    ids = torch.randint(5, hf.config.vocab_size, (2 if padded else 1, sum(pieces)))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, : min(2, sum(pieces) - 1)] = 0
    starts = (1 - mask).sum(1).tolist()
    found = []
    with model.streaming(FAR, sink=SINK, window=WINDOW) as cache, torch.no_grad():
        written, read = ids, 0
        for count in [*pieces, *[1] * 12]:
            if read + count > written.shape[1]:
                written = torch.cat([written, found[-1].argmax(-1)[:, None]], 1)
                mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            end = read + count
            places = (mask.cumsum(1) - 1).clamp_min(0)[:, read:end]
            output = hf(
                input_ids=written[:, read:end],
                attention_mask=mask[:, :end],
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
            )
            found.append(output.logits[:, -1])
            read = end
    for logits in explicit(hf, far, starts):
        at = 0
        for count, one in zip([*pieces, *[1] * 12], found, strict=True):
            at += count
            assert torch.allclose(logits(written[:, :at], mask[:, :at]), one, atol=1e-4)


def test_the_cache_is_as_small_as_the_formula_says(tiny):
    ids = torch.randint(0, 9, (2, 512))
    with tiny.streaming(FAR, sink=4, window=28) as cache, torch.no_grad():
        tiny.hf(input_ids=ids, past_key_values=cache, use_cache=True)
    config = tiny.hf.config
    heads, far = 4 * config.num_key_value_heads, 3
    numbers = 2 * 2 * config.head_dim * (far * 512 + (heads - far) * 32)
    assert sum(layer.nbytes for layer in cache.layers) == 4 * numbers


def test_without_a_cache_streaming_heads_are_refused(tiny):
    with tiny.streaming(FAR), pytest.raises(HeadwiseError, match="past_key_values"):
        tiny.hf(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)


def test_all_heads_far_writes_what_the_plain_model_writes(tiny):
    ids = torch.randint(0, 9, (1, 40))
    every = [str(head) for head in tiny.heads()]
    plain = tiny.hf.generate(ids, max_new_tokens=8, do_sample=False)
    with tiny.streaming(every, sink=1, window=2) as cache:
        assert torch.equal(
            tiny.hf.generate(ids, max_new_tokens=8, do_sample=False, past_key_values=cache), plain
        )
    with tiny.streaming([], sink=1, window=2) as cache:
        assert not torch.equal(
            tiny.hf.generate(ids, max_new_tokens=8, do_sample=False, past_key_values=cache), plain
        )
