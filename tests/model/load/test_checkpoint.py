"""Model folders that are not what they say: refused before anything is built, in one sentence."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.model.verify.tiny import tiny_model
from helpers import make_word_tokenizer


@pytest.fixture
def folder(tmp_path):
    tokenizer = make_word_tokenizer()
    place = tmp_path / "mine"
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def config(folder, **changed):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"num_hidden_layers": 10**9},
            "asks for num_hidden_layers = 1000000000, and the weights beside it have 39",
        ),
        ({"vocab_size": 10**12}, "asks for vocab_size = 1000000000000"),
        ({"hidden_size": 40_000, "vocab_size": 50_000}, "describes a model of more than 2.0e"),
        ({"model_type": 3}, "model_type is 3; expected text"),
        ({"num_hidden_layers": 6}, r"lack \d+ tensors that its config.json asks for, model.layers.4"),
    ],
)
def test_a_config_that_the_weights_cannot_fill_is_refused_at_once(folder, changed, said):
    config(folder, **changed)
    with pytest.raises(HeadwiseError, match=said):
        hw.load(folder, device="cpu")


def test_a_missing_tensor_is_not_filled_with_random_numbers(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.2.self_attn.q_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        HeadwiseError, match=r"lack 1 tensor .* model.layers.2.self_attn.q_proj.weight for one"
    ):
        hw.load(folder, device="cpu")


def test_tensors_that_are_left_over_are_told(folder, caplog):
    config(folder, num_hidden_layers=3)
    caplog.set_level("WARNING", "headwise")
    assert hw.load(folder, device="cpu").shape == (3, 4)
    assert "9 tensors of the checkpoint are not used, model.layers.3" in caplog.text


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x08",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 3) + b"{x}",
    ],
)
def test_weights_that_are_no_safetensors_are_named(folder, raw):
    (folder / "model.safetensors").write_bytes(raw)
    with pytest.raises(HeadwiseError, match=r"model\.safetensors is not a safetensors file"):
        hw.load(folder, device="cpu")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt"])
def test_pickled_weights_are_not_opened(folder, name, tmp_path):
    class Runs:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    (folder / "model.safetensors").unlink()
    torch.save({"x": Runs()}, folder / name)
    with pytest.raises(HeadwiseError, match=rf"only pickled weights \({name}\).*save_pretrained"):
        hw.load(folder, device="cpu")
    assert not (tmp_path / "ran").exists()


def test_a_config_that_is_no_json_is_named_with_its_line(folder):
    (folder / "config.json").write_text('{"model_type": "llama",\n  oops\n}')
    with pytest.raises(HeadwiseError, match=r"config\.json, line 2 is not JSON"):
        hw.load(folder, device="cpu")


def test_a_tokenizer_of_another_model_is_noticed_at_its_first_strange_token(folder):
    hf = tiny_model("llama", vocab_size=10)
    model = hw.load(hf, tokenizer=make_word_tokenizer(), name="small")
    with pytest.raises(
        HeadwiseError, match=r"the tokenizer gives token \d+ for .*, and the model has only 10"
    ):
        model.tokens("the cat sat .")


def test_a_text_longer_than_the_learned_positions_is_refused_and_rotary_ones_go_on():
    tokenizer = make_word_tokenizer()
    text = "cat " * 70
    learned = hw.load(tiny_model("gpt2", vocab_size=len(tokenizer)), tokenizer=tokenizer, name="learned")
    with pytest.raises(HeadwiseError, match="has 70 tokens, and the model has positions for 64"):
        learned.tokens(text)
    rotary = hw.load(tiny_model("llama", vocab_size=len(tokenizer)), tokenizer=tokenizer, name="rotary")
    assert len(rotary.tokens(text)) == 70
