"""A cache of which most heads store the first and the last tokens only, against masks written out in full."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import headwise as hw
from explicit_attention import explicit_attention
from headwise.errors import HeadwiseError
from headwise.heads import save_order
from headwise.model.verify.tiny import tiny_model
from helpers import WORDS, word_model

SINK, WINDOW = 2, 5
FAR = ["L0H1", "L2H3", "L3H0"]


@pytest.mark.parametrize(
    "pieces", [[21], [3], [9, 12]], ids=["prompt", "short prompt", "prompt in two pieces"]
)
@pytest.mark.parametrize("padded", [False, True], ids=["one row", "rows of unequal length"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_decoding_with_a_small_cache_equals_masks_written_out(family, padded, pieces):
    more = {"sliding_window": 4096, "layer_types": ["full_attention"] * 4} if family == "gemma2" else {}
    hf = tiny_model(family, **more).eval()
    model = hw.load(hf, name=family)
    gates = model.gates(ablate=ablated(model, FAR))
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
    at = 0
    for count, one in zip([*pieces, *[1] * 12], found, strict=True):
        at += count
        places = (mask[:, :at].cumsum(1) - 1).clamp_min(0)
        with explicit_attention(hf, gates, SINK, WINDOW, starts), torch.no_grad():
            whole = hf(
                input_ids=written[:, :at], attention_mask=mask[:, :at], position_ids=places, use_cache=False
            )
        assert torch.allclose(whole.logits[:, -1], one, atol=1e-4)


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


PROMPTS = [
    " ".join(WORDS[(i * 5 + j * j) % len(WORDS)] for j in range(n)) for i, n in enumerate((23, 6, 19, 19, 3))
]


def ablated(model, far):
    """The gates of all query heads whose key/value head none of `far` reads."""
    layout = model.layout(["kv_heads"])
    groups = model.hooks.sites[0].heads // model.hooks.sites[0].kv_heads
    kept = {(head.layer, head.head // groups) for head in map(hw.Head.parse, far)}
    rest = [head for head in model.heads() if (head.layer, head.head // groups) not in kept]
    assert len(layout.listed()) == len(kept) + len({(head.layer, head.head // groups) for head in rest})
    return rest


@pytest.mark.parametrize("batch_tokens", [None, 40], ids=["one batch", "small batches"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3_text", "mistral", "gpt2"])
def test_streaming_writes_what_the_windowed_gates_write(family, batch_tokens):
    model = word_model(family)
    options = {
        "window": WINDOW,
        "sink": SINK,
        "max_new_tokens": 20,
        "batch_tokens": batch_tokens,
        "progress": False,
    }
    streamed = hw.generate(model, PROMPTS, streaming=FAR, **options)
    gated = hw.generate(model, PROMPTS, ablate=ablated(model, FAR), reference="window", **options)
    assert streamed.tokens == gated.tokens
    assert streamed.tokens != hw.generate(model, PROMPTS, max_new_tokens=20, progress=False).tokens
    assert streamed.reference == gated.reference == "window:5:2"


def test_rows_that_end_leave_a_small_cache(word_tokenizer):
    hf = tiny_model("gemma2", vocab_size=len(word_tokenizer))
    model = hw.load(hf, tokenizer=word_tokenizer, name="gemma2")
    options = {"window": WINDOW, "sink": SINK, "max_new_tokens": 24, "progress": False}
    free = hw.generate(model, PROMPTS, streaming=FAR, **options).tokens[0]
    hf.generation_config.eos_token_id = free[0][4]
    streamed = hw.generate(model, PROMPTS, streaming=FAR, **options)
    gated = hw.generate(model, PROMPTS, ablate=ablated(model, FAR), reference="window", **options)
    assert streamed.tokens == gated.tokens
    assert streamed.passes == gated.passes
    assert 0 < streamed.passes[-1] < len(PROMPTS)


def test_streaming_with_gates_or_another_reference_is_refused(tiny):
    with pytest.raises(HeadwiseError, match="without gates on heads"):
        hw.generate(tiny, PROMPTS, streaming=FAR, ablate=["L0H0"], progress=False)
    with pytest.raises(HeadwiseError, match="not the reference 'mean'"):
        hw.generate(tiny, PROMPTS, streaming=FAR, reference="mean", progress=False)


def cache_sizes(model, heads, k=None, **how):
    """How many numbers the keys of each key/value head take after 40 tokens."""
    ids = torch.randint(0, 9, (1, 40))
    with model.streaming(heads, k, **how) as cache, torch.no_grad():
        model.hf(input_ids=ids, past_key_values=cache, use_cache=True)
    return [layer.nbytes for layer in cache.layers]


def test_heads_that_keep_everything_are_named_as_in_other_calls(tiny, tmp_path):
    scores = hw.score(tiny, [{"prompt": "the cat saw a dog", "target": " and"}], "random", progress=False)
    first = [str(head) for head in scores.order()[:3]]
    expected = cache_sizes(tiny, first)
    save_order(scores.order()[:3], tmp_path / "heads.json")
    assert expected == cache_sizes(tiny, scores, 3) == cache_sizes(tiny, tmp_path / "heads.json")
    assert expected == cache_sizes(tiny, ",".join(first)) != cache_sizes(tiny, [])
    with pytest.raises(HeadwiseError, match="say how many"):
        cache_sizes(tiny, scores)


def test_a_pattern_is_read_back_with_its_sizes(tiny, tmp_path):
    place = tiny.save_pattern(FAR, tmp_path / "pattern", sink=2, window=5)
    table = np.loadtxt(place / "full_attention_heads.tsv", delimiter="\t")  # as DuoAttention reads it
    assert table.tolist() == [[1, 0], [0, 0], [0, 1], [1, 0]]
    assert json.loads((place / "config.json").read_text()) == {"sink_size": 2, "recent_size": 5}
    assert cache_sizes(tiny, place) == cache_sizes(tiny, FAR, sink=2, window=5)
    assert cache_sizes(tiny, place, sink=3) == cache_sizes(tiny, FAR, sink=3, window=5)
    assert cache_sizes(tiny, place / "full_attention_heads.tsv") != cache_sizes(tiny, FAR)
    learned = tmp_path / "full_attention_heads.tsv"
    learned.write_text("9.8e-01\t-1.1e-04\n2e-3\t0.1\n0.3\t0.7\n1.0e+00\t0.2\n")
    assert cache_sizes(tiny, learned) == cache_sizes(tiny, FAR)
    assert cache_sizes(tiny, learned, 1) == cache_sizes(tiny, ["L3KV0"])
    written = hw.generate(tiny, PROMPTS, streaming=place, progress=False, max_new_tokens=4)
    assert written.reference == "window:5:2"


@pytest.mark.parametrize("text", ["1\t0\n1\n", "a\tb\n", "nan\t1\n", ""])
def test_a_damaged_pattern_is_refused(tiny, tmp_path, text):
    (tmp_path / "heads.tsv").write_text(text)
    with pytest.raises(HeadwiseError, match="no pattern of heads"):
        cache_sizes(tiny, tmp_path / "heads.tsv")


def test_a_pattern_of_another_model_is_refused(tiny, tmp_path):
    (tmp_path / "heads.tsv").write_text("1\t1\t1\n" * 9)
    with pytest.raises(HeadwiseError, match="has no"):
        cache_sizes(tiny, tmp_path / "heads.tsv")
