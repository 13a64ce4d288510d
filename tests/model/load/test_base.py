"""Adapters and their base models: the one that the adapter names, another one, or the bundled copy of it."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from safetensors.torch import save_file

import headwise as hw
from headwise.cli.app import main
from headwise.errors import HeadwiseError
from headwise.model.load.load import load_text
from headwise.model.verify.tiny import tiny_model
from headwise.tasks.builtin.induction import WORDS
from helpers import make_word_tokenizer

GONE = "nobody/no-such-model"


@pytest.fixture
def base(tmp_path):
    """A tiny model in a folder."""
    tokenizer = make_word_tokenizer(WORDS)
    hf = tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=512)
    hf.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def adapter(folder, hf, named):
    """What peft saves for an adapter of rank 1 on the first output projection; returns the weights it gives."""
    weight = hf.model.layers[0].self_attn.o_proj.weight.detach().float()
    draw = torch.Generator().manual_seed(1)
    first, second = (
        torch.randn(size, generator=draw) for size in ((1, weight.shape[1]), (weight.shape[0], 1))
    )
    name = "base_model.model.model.layers.0.self_attn.o_proj"
    folder.mkdir()
    tensors = {f"{name}.lora_A.weight": first, f"{name}.lora_B.weight": second}
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "base_model_name_or_path": named}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return weight + second @ first


def first_weight(model):
    return model.hf.model.layers[0].self_attn.o_proj.weight.detach()


def test_another_base_than_the_named_one_can_be_given(base, tmp_path):
    expected = adapter(tmp_path / "lora", hw.load(base, device="cpu").hf, GONE)
    model = hw.load(tmp_path / "lora", base=base, device="cpu", dtype="float32")
    assert torch.allclose(first_weight(model), expected, atol=1e-6)
    assert model.origin.options["base"] == str(base)
    words = f"{WORDS[0]} {WORDS[1]}"
    assert load_text(str(tmp_path / "lora"), base=str(base)).encode(words) == model.tokens(words)
    with pytest.raises(HeadwiseError, match=r"base model of .*lora could not be loaded: .*base="):
        hw.load(tmp_path / "lora", device="cpu")
    with pytest.raises(HeadwiseError, match="is no adapter; leave base out"):
        hw.load(base, base=base)


@pytest.mark.parametrize("named", ["base", "../base"])
def test_a_relative_base_is_looked_for_beside_the_adapter(named, base, tmp_path, monkeypatch):
    expected = adapter(tmp_path / "lora", hw.load(base, device="cpu").hf, named)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere" if named == "base" else tmp_path)
    model = hw.load(tmp_path / "lora", device="cpu", dtype="float32")
    assert torch.allclose(first_weight(model), expected, atol=1e-6)


def test_the_hub_id_of_a_bundled_model_is_the_bundled_model_where_the_hub_is_out_of_reach(
    smollm2, tmp_path, caplog
):
    expected = adapter(tmp_path / "lora", smollm2.hf, "HuggingFaceTB/SmolLM2-135M-Instruct")
    model = hw.load(tmp_path / "lora", device="cpu", dtype="float32")
    assert torch.allclose(first_weight(model), expected.to(first_weight(model).device), atol=1e-6)
    assert "the bundled copy smollm2 is used" in caplog.text
    assert load_text(str(tmp_path / "lora")).encode("a cat") == smollm2.tokens("a cat")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("check lora --base {base}", "lora: 4 layers"),
        ("score lora induction -n 4 --base {base} --out run", "ablation on induction, lora"),
        ("score {base} induction -n 4 --base {base}", "no model of the study is an adapter"),
        ("diff {base} lora induction -n 4 --base {base} --out run", "tuned − base"),
        ("card lora induction L0H0 -n 4 --base {base}", "L0H0"),
        ("check {base} --base {base}", "is no adapter"),
    ],
)
def test_commands_take_the_base_of_an_adapter(command, said, base, tmp_path, monkeypatch, capsys):
    adapter(tmp_path / "lora", hw.load(base, device="cpu").hf, GONE)
    monkeypatch.chdir(tmp_path)
    words = command.format(base=base).split()
    monkeypatch.setattr(sys, "argv", ["headwise", *words, "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
    assert (ended.value.code or 0) == (2 if "adapter" in said else 0)
