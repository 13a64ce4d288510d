"""A folder with fewer heads computes what the model with these heads gated off computes, and is smaller."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head, mask_gates
from headwise.model.load.export import export
from headwise.model.verify.tiny import tiny_model

# Plain; biases on q, k, v; a norm per head; sliding windows; soft-capping; clipping; factors; layers without positions;
# fused projections; parallel blocks; experts; sinks; an output gate beside linear attention; layers without attention.
FAMILIES = (
    "llama qwen2 qwen3 mistral gemma gemma2 gemma3_text olmo granite smollm3 phi3 cohere mixtral gpt_oss "
    "qwen3_next jamba deepseek_v3".split()
)
REFUSED = {
    **dict.fromkeys("gpt2 gpt_neox opt bloom falcon".split(), "head size to be width / heads"),
    "olmo2": r"q_norm\.weight normalises over all heads",
    "gemma4_text": "layers differ in the number or the size of their heads",
}
TEXTS = ["the cat sat on the mat", "a dog ran to the red house"] * 8
IDS = torch.tensor([[5, 9, 4, 11, 7, 3, 12], [3, 3, 8, 20, 1, 2, 6]])


def loaded(family, tokenizer, **overrides):
    return hw.load(tiny_model(family, **overrides), tokenizer=tokenizer, name=family)


def some_heads(model, kind):
    """Of every layer one key/value group, another in each layer, or one head of every group: 4 heads in 2 groups."""
    layers = [site.layer for site in model.hooks.sites]
    if kind == "groups":
        return [Head(layer, 2 * (layer % 2) + i) for layer in layers for i in range(2)]
    return [Head(layer, 2 * group + (layer + group) % 2) for layer in layers for group in range(2)]


def logits(hf):
    with torch.no_grad():
        return hf(input_ids=IDS, use_cache=False).logits


def expected(model, heads, texts=None):
    """The logits with these heads replaced in a hook, by their means over the texts or by zero."""
    gates = torch.from_numpy(mask_gates(heads, model.shape))
    means = texts and model.mean_outputs(model.text.encode_whole(texts))

    def ablate(layer, z):
        gate = gates[layer, : z.shape[2], None].to(z)
        return z * gate + (means[layer] * (1 - gate) if means else 0)

    with model.hook(ablate):
        return logits(model.hf)


def opened(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def same(first, second):
    return float((first - second).abs().max()) < 1e-4 * max(1.0, float(second.abs().max()))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_folder_gives_the_gated_models_logits_and_the_model_stays_as_it_was(
    family, word_tokenizer, tmp_path
):
    model = loaded(family, word_tokenizer)
    plain = logits(model.hf)
    for kind in ("groups", "heads"):
        heads = some_heads(model, kind)
        again = opened(export(model, heads, tmp_path / kind, shrink=True))
        wanted = expected(model, heads)
        assert same(logits(again), wanted)
        assert float((wanted - plain).abs().max()) > 1e-3  # the heads do something
        config = again.config.get_text_config()
        assert config.num_attention_heads == 2 < model.hooks.sites[0].heads
    assert torch.equal(logits(model.hf), plain)


@pytest.mark.parametrize("family", "llama qwen3 gemma gemma3_text olmo granite smollm3 cohere phi".split())
def test_mean_outputs_of_removed_heads_go_into_the_bias(family, word_tokenizer, tmp_path):
    model = loaded(family, word_tokenizer)
    heads = some_heads(model, "groups")
    again = opened(export(model, heads, tmp_path / "out", shrink=True, reference_prompts=TEXTS))
    wanted = expected(model, heads, TEXTS)
    assert same(logits(again), wanted)
    assert not same(wanted, expected(model, heads))


def test_a_family_without_such_a_bias_says_so_and_takes_zero(word_tokenizer, tmp_path, caplog):
    model = loaded("qwen2", word_tokenizer)
    heads = some_heads(model, "heads")
    again = opened(export(model, heads, tmp_path / "out", shrink=True, reference_prompts=TEXTS))
    assert "Qwen2ForCausalLM has no bias after its heads" in caplog.text
    assert same(logits(again), expected(model, heads))
    record = json.loads((tmp_path / "out/headwise.json").read_text())
    assert (record["shrunk"], record["reference"]) == (True, "zero")


@pytest.mark.parametrize("family", REFUSED)
def test_families_that_cannot_have_fewer_heads_are_refused_with_the_reason(family, word_tokenizer, tmp_path):
    model = loaded(family, word_tokenizer)
    heads = [Head(site.layer, head) for site in model.hooks.sites for head in range(site.heads // 2)]
    with pytest.raises(HeadwiseError, match=REFUSED[family]):
        export(model, heads, tmp_path / "out", shrink=True)
    assert not list((tmp_path / "out").iterdir())


def test_size_parameters_and_cache_fall_with_the_heads(word_tokenizer, tmp_path):
    model = loaded("llama", word_tokenizer)
    whole = export(model, ["L0H0"], tmp_path / "whole")

    def sizes(folder):
        hf = opened(folder)
        cache = hf(input_ids=IDS, use_cache=True).past_key_values
        bytes_ = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        stored = (folder / "model.safetensors").stat().st_size
        return sum(p.numel() for p in hf.parameters()), stored, bytes_ / IDS.numel()

    before = sizes(whole)
    groups, heads = (
        sizes(export(model, some_heads(model, kind), tmp_path / kind, shrink=True))
        for kind in ("groups", "heads")
    )
    # A layer has 4 heads of 8 in a width of 32: q and o have 32 · 32 numbers each, k and v 16 · 32.
    assert before[0] - heads[0] == 4 * 2 * 16 * 32
    assert before[0] - groups[0] == 4 * (2 * 16 * 32 + 2 * 8 * 32)
    assert before[1] - groups[1] == pytest.approx(4 * (before[0] - groups[0]), abs=64)
    assert (before[2], heads[2], groups[2]) == (4 * 2 * 2 * 8 * 4, 4 * 2 * 2 * 8 * 4, 4 * 2 * 1 * 8 * 4)


def test_a_llama_whose_width_is_no_multiple_of_its_heads_is_written_as_a_granite(word_tokenizer, tmp_path):
    model = loaded("llama", word_tokenizer, num_key_value_heads=4)
    heads = [Head(layer, layer) for layer in range(4)]
    again = opened(export(model, heads, tmp_path / "out", shrink=True, reference_prompts=TEXTS))
    assert type(again).__name__ == "GraniteForCausalLM"
    assert again.config.num_attention_heads == 3
    assert same(logits(again), expected(model, heads, TEXTS))


def test_the_folder_loads_in_a_process_without_headwise(word_tokenizer, tmp_path):
    model = loaded("qwen3", word_tokenizer)
    heads = some_heads(model, "groups")
    folder = export(model, heads, tmp_path / "out", shrink=True)
    code = (
        "import sys, torch; from transformers import AutoModelForCausalLM\n"
        f"hf = AutoModelForCausalLM.from_pretrained({str(folder)!r}).eval()\n"
        f"logits = hf(input_ids=torch.tensor({IDS.tolist()}), use_cache=False).logits.detach()\n"
        f"assert not any(name.startswith('headwise') for name in sys.modules)\n"
        f"torch.save(logits, {str(tmp_path / 'logits.pt')!r})"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path)
    assert same(torch.load(tmp_path / "logits.pt"), expected(model, heads))


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        (
            ["L0H0", "L0H1"],
            r"layer 1 would keep the heads \[0, 1, 2, 3\] in 2 of 2 key/value groups of 2 heads, and",
        ),
        ([f"L{layer}H0" for layer in range(4)], "the same number of heads in every group"),
        ([f"L{layer}H{head}" for layer in range(4) for head in range(4)], r"keep the heads \[\]"),
    ],
)
def test_heads_that_would_leave_an_uneven_model_are_refused(tiny, tmp_path, heads, said):
    with pytest.raises(HeadwiseError, match=said):
        export(tiny, heads, tmp_path / "out", shrink=True)


def test_a_gate_and_texts_without_shrink_are_refused(tiny, tmp_path):
    with pytest.raises(HeadwiseError, match="has the gate 0"):
        export(tiny, ["L0H0"], tmp_path / "out", 0.5, shrink=True)
    with pytest.raises(HeadwiseError, match="without it removed heads are zeros"):
        export(tiny, ["L0H0"], tmp_path / "out", reference_prompts=TEXTS)
