"""A mask baked into the weights gives the gated model's logits, in every kind of family."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head, mask_gates
from headwise.model.load.export import baked, export
from headwise.model.verify.tiny import tiny_model

# One of each way to reach heads and to project them: attention function, hook, transposed weights, grouped
# keys, soft-capping, an output gate, sinks, experts, latent attention, layers without attention.
FAMILIES = "llama gpt2 gptj bloom falcon gemma2 qwen3_next gpt_oss mixtral deepseek_v3 jamba opt".split()
IDS = torch.tensor([[5, 9, 4, 11, 7, 3, 12], [3, 3, 8, 20, 1, 2, 6]])


def loaded(family, tokenizer, **overrides):
    return hw.load(tiny_model(family, **overrides), tokenizer=tokenizer, name=family)


def chosen(model):
    heads = model.heads()
    return [heads[0], heads[len(heads) // 2], heads[-1]]


def logits(hf):
    with torch.no_grad():
        return hf(input_ids=IDS, use_cache=False).logits


def gated(model, heads, gate):
    gates = torch.from_numpy(mask_gates(heads, model.shape, gate))
    with model.hook(lambda layer, z: z * gates[layer, : z.shape[2]].to(z)[:, None]):
        return logits(model.hf)


@pytest.mark.parametrize("gate", [0.0, 1.7])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_checkpoint_gives_the_gated_models_logits(family, gate, word_tokenizer, tmp_path):
    model = loaded(family, word_tokenizer)
    plain = logits(model.hf)
    heads = chosen(model)
    export(model, heads, tmp_path / "out", gate)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    wanted = gated(model, heads, gate)
    assert float((logits(again) - wanted).abs().max()) < 1e-4 * max(1.0, float(wanted.abs().max()))
    assert float((wanted - plain).abs().max()) > 1e-3  # the mask does something
    assert torch.equal(logits(model.hf), plain)  # and the model itself is left as it was


def test_the_tokenizer_and_a_record_of_the_heads_come_along(tiny, tmp_path):
    export(tiny, [Head(1, 2)], tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("the cat sat")["input_ids"] == tiny.text.tokenizer("the cat sat")["input_ids"]
    record = json.loads((tmp_path / "out/headwise.json").read_text())
    assert record == {"model": "tiny", "gate": 0.0, "heads": ["L1H2"]}
    assert hw.load(str(tmp_path / "out")).shape == tiny.shape
    modes = {(tmp_path / "out" / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1  # a server that runs as another user can read the weights too


@pytest.mark.parametrize(
    ("heads", "gate", "said"),
    [
        ([Head(9, 0)], 0.0, "tiny has no head L9H0; it has 16 heads in 4 layers of up to 4"),
        ([Head(-1, 0)], 0.0, "has no head L-1H0"),
        ([], 0.0, "no heads are given"),
        ([Head(0, 0)], float("nan"), "expected a finite number"),
    ],
)
def test_what_cannot_be_meant_is_refused(tiny, tmp_path, heads, gate, said):
    with pytest.raises(HeadwiseError, match=said):
        export(tiny, heads, tmp_path / "out", gate)


def test_a_folder_with_something_in_it_is_left_alone(tiny, tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(HeadwiseError, match="not an empty folder"):
        export(tiny, [Head(0, 0)], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_packed_weights_are_refused(tiny, tmp_path):
    tiny.hf.model.layers[1].self_attn.o_proj.weight = torch.nn.Parameter(
        torch.zeros(32, 32, dtype=torch.int8), requires_grad=False
    )
    gates = mask_gates([Head(1, 0)], tiny.shape, 0.0)
    with (
        pytest.raises(HeadwiseError, match=r"layer 1 .* packed \(quantised\) weights"),
        baked(tiny.hooks, gates),
    ):
        pass


def test_layers_that_share_a_projection_must_be_masked_alike(tiny):
    attention = [layer.self_attn for layer in tiny.hf.model.layers]
    attention[2].o_proj = attention[1].o_proj
    tiny.hooks.sites[2].projections = tiny.hooks.sites[1].projections
    differs = mask_gates([Head(1, 0)], tiny.shape, 0.0)
    message = r"layers 1 and 2 .* share one output projection"
    with pytest.raises(HeadwiseError, match=message), baked(tiny.hooks, differs):
        pass
    alike = mask_gates([Head(1, 0), Head(2, 0)], tiny.shape, 0.5)
    wanted = gated(tiny, [Head(1, 0), Head(2, 0)], 0.5)
    with torch.no_grad(), baked(tiny.hooks, alike):
        assert float((logits(tiny.hf) - wanted).abs().max()) < 1e-4


def test_a_mask_that_is_no_factor_per_head_is_refused_and_the_weights_are_put_back(tiny):
    """A norm between attention and projection: scaling its output is not scaling its input."""
    projection = tiny.hf.model.layers[1].self_attn.o_proj
    before = projection.weight.clone()
    handle = projection.register_forward_pre_hook(
        lambda _, args: (torch.nn.functional.layer_norm(args[0], args[0].shape[-1:]),)
    )
    gates = mask_gates([Head(1, 0)], tiny.shape, 0.0)
    with (
        pytest.raises(HeadwiseError, match="cannot be written into the weights"),
        torch.no_grad(),
        baked(tiny.hooks, gates),
    ):
        pass
    handle.remove()
    assert torch.equal(projection.weight, before)
    assert np.all(gates[0] == 1)


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
@pytest.mark.parametrize("limit", [0, 900, 3000, 40_000])
def test_a_disk_that_is_full_leaves_no_part_of_a_checkpoint_and_gives_a_sentence(tiny, tmp_path, limit):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(HeadwiseError, match="may not grow any larger"):
            export(tiny, ["L0H1"], tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((tmp_path / "out").iterdir())
    assert (export(tiny, ["L0H1"], tmp_path / "out") / "config.json").stat().st_size


def test_an_error_of_a_library_in_rust_is_a_sentence_about_the_disk(tiny, tmp_path, monkeypatch):
    def full(folder):
        raise Exception("No space left on device (os error 28)")

    monkeypatch.setattr(tiny.text.tokenizer, "save_pretrained", full)
    with pytest.raises(HeadwiseError, match="is full"):
        export(tiny, ["L0H1"], tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
