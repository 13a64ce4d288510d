"""A folder with fewer heads computes what the model with these heads gated off computes, and is smaller."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import headwise as hw
from headwise.cli.app import app
from headwise.errors import HeadwiseError
from headwise.heads import Head, mask_gates
from headwise.model.load.export import export, heads_to_cut
from headwise.model.verify.tiny import tiny_model
from headwise.sweeps.removal import mean_order, removal
from headwise.tasks.plain_text import passages
from helpers import saved_word_model, word_task

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


# ---- which heads go, and what it costs -----------------------------------------------------------------------


def shuffled(model, seed=3):
    return [model.heads()[i] for i in np.random.default_rng(seed).permutation(len(model.heads()))]


@pytest.mark.parametrize("components", ["heads", "kv_heads"])
def test_the_last_heads_of_the_ranking_go_in_every_layer(tiny, components):
    order = shuffled(tiny)
    cut = heads_to_cut(tiny, order, 0.5, components)
    place = {head: order.index(head) for head in order}
    for layer in range(4):
        pairs = [[Head(layer, 2 * group), Head(layer, 2 * group + 1)] for group in range(2)]
        if components == "heads":
            wanted = {max(pair, key=place.get) for pair in pairs}
        else:
            wanted = set(max(pairs, key=lambda pair: place[pair[0]] + place[pair[1]]))
        assert {head for head in cut if head.layer == layer} == wanted


def test_scores_of_key_value_heads_cut_whole_groups(tiny, tmp_path):
    scores = hw.score(tiny, word_task(6), components=["kv_heads"], progress=False)
    folder = hw.export(tiny, scores, tmp_path / "out", share=0.4)
    worst = scores.values.argmin(1)
    wanted = [f"L{layer}H{2 * group + i}" for layer, group in enumerate(worst) for i in range(2)]
    assert json.loads((folder / "headwise.json").read_text())["heads"] == wanted


def test_several_rankings_are_joined_by_the_mean_of_their_places(tiny):
    first, second = (hw.score(tiny, word_task(6), "random", seed=seed, progress=False) for seed in (0, 1))
    places = [{head: one.order().index(head) for head in tiny.heads()} for one in (first, second)]
    found = [places[0][head] + places[1][head] for head in mean_order([first, second])]
    assert found == sorted(places[0][head] + places[1][head] for head in tiny.heads())


def test_the_curve_has_every_size_and_the_loss_of_the_written_folders(word_tokenizer, tmp_path):
    model, task = loaded("qwen3", word_tokenizer, num_attention_heads=6), word_task(6)
    order = shuffled(model)
    curve = removal(model, order, [task], reference="zero", progress=False)
    assert curve.table["share"].tolist() == pytest.approx([0, 1 / 3, 2 / 3])
    for share, loss in zip(curve.table["share"][1:], curve.table["loss"][1:], strict=True):
        folder = hw.export(model, order, tmp_path / f"{share:.1f}", share=share)
        written = hw.load(str(folder), device="cpu")
        assert loss == pytest.approx(-hw.measure(written, task, metric="mean_logprob").full.mean(), abs=1e-4)
    costs = curve.table["cost"].tolist()
    assert curve.within(max(costs)) == pytest.approx(2 / 3)
    assert curve.within(min(costs[1], 0) - 0.01 if costs[1] < 0 else costs[1] / 2) == 0


def test_passages_are_spread_over_the_text_and_do_not_overlap():
    text = " ".join(f"w{number}" for number in range(1000))
    task = passages(text, 3)
    whole = [example.prompt + example.target for example in task]
    assert [one.split()[0] for one in whole] == ["w0", "w288", "w576"]
    assert all(len(one.split()) == 96 and one in text for one in whole)
    assert [len(example.prompt.split()) for example in task] == [8, 8, 8]
    with pytest.raises(HeadwiseError, match="has 1000 words; 11 passages of 96 words need 1056"):
        passages(text, 11)


def test_the_command_ranks_on_a_text_cuts_and_measures_both_models(word_tokenizer, tmp_path):
    saved_word_model(tmp_path / "model", "llama", max_position_embeddings=512)
    words = sorted(set(word_tokenizer.get_vocab()) - set(word_tokenizer.all_special_tokens))
    drawn = np.random.default_rng(0).choice(words, 96 * 20)
    (tmp_path / "text.txt").write_text(" ".join(drawn))
    command = (
        f"export {tmp_path / 'model'} --out {tmp_path / 'out'} --text {tmp_path / 'text.txt'} --shrink -n 8"
    )
    command += " --components kv_heads --measure none --device cpu"  # and no --method: the default of a CPU
    done = CliRunner().invoke(app, [*command.split(), "--tolerance", "9", "--json"], catch_exceptions=False)
    result = json.loads(done.stdout)
    assert any("ranked by attribution; --method nested" in notice for notice in result["notices"])
    before, after = result["before"], result["after"]
    name = "cross-entropy on the text"
    assert [row["loss"] for row in result["removal"]] == pytest.approx([before[name], after[name]], abs=1e-3)
    assert (before["KV cache (bytes per token)"], after["KV cache (bytes per token)"]) == (512, 256)
    assert before["parameters"] - after["parameters"] == 4 * (2 * 16 * 32 + 2 * 8 * 32) - 4 * (
        16 + 8 + 8 + 32
    )
    assert (tmp_path / "out/removal.png").stat().st_size
    cost = result["removal"][1]["cost"]
    assert cost > 0.01
    refused = CliRunner().invoke(app, [*command.replace("/out", "/no").split(), "--tolerance", str(cost / 2)])
    assert "no heads can be cut out within" in str(refused.exception)
    assert not (tmp_path / "no").exists()


def test_the_command_says_what_is_missing():
    refused = CliRunner().invoke(app, ["export", "tiny", "--out", "new", "--shrink"])
    assert "with --shrink what heads are ranked on: --task NAME or --text FILE" in str(refused.exception)
