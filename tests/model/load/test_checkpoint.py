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
from helpers import make_word_tokenizer, saved_word_model


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "mine"
    saved_word_model(place, "llama")
    return place


def config(folder, **changed):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"num_hidden_layers": 10**9},
            "asks for num_hidden_layers = 1000000000, but the weights beside it have 39",
        ),
        ({"vocab_size": 10**12}, "asks for vocab_size = 1000000000000"),
        ({"hidden_size": 40_000, "vocab_size": 50_000}, "describes a model of more than 2.0e"),  # embeddings
        ({"model_type": 3}, "model_type is 3; expected text"),
        ({"num_hidden_layers": 6}, r"lack \d+ tensors that its config.json asks for, such as model.layers.4"),
    ],
)
def test_a_config_that_the_weights_cannot_fill_is_refused_at_once(folder, changed, said):
    config(folder, **changed)
    with pytest.raises(HeadwiseError, match=said):
        hw.load(folder, device="cpu")


def test_tied_embeddings_that_are_most_of_a_model_are_counted_once(tmp_path, monkeypatch):
    from transformers import LlamaConfig, LlamaForCausalLM

    from headwise.model.load import checkpoint

    monkeypatch.setattr(checkpoint, "_SLACK", 0)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=5000, tie_word_embeddings=True, **small)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    make_word_tokenizer().save_pretrained(tmp_path)
    assert hw.load(str(tmp_path), device="cpu").shape == (2, 2)


def test_a_missing_tensor_is_not_filled_with_random_numbers(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.2.self_attn.q_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        HeadwiseError, match=r"lack 1 tensor .* such as model.layers.2.self_attn.q_proj.weight"
    ):
        hw.load(folder, device="cpu")


def test_tensors_that_are_left_over_are_told(folder, caplog):
    config(folder, num_hidden_layers=3)
    caplog.set_level("WARNING", "headwise")
    assert hw.load(folder, device="cpu").shape == (3, 4)
    assert "9 tensors of the checkpoint are not used, such as model.layers.3" in caplog.text


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
    (folder / "model.safetensors").unlink()
    torch.save({"x": Runs(tmp_path / "ran")}, folder / name)
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
        HeadwiseError, match=r"the tokenizer gives token \d+ for .*, but the model has only 10"
    ):
        model.tokens("the cat sat .")


# --- weights that config.json or an index points at ----------------------------------------------------------


def sharded(folder):
    """The same model in several files with an index."""
    model = tiny_model("llama", vocab_size=len(make_word_tokenizer()))
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="40KB")
    index = folder / "model.safetensors.index.json"
    return index, json.loads(index.read_text())


class Runs:
    """Opening a pickle of this leaves a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


@pytest.mark.parametrize(
    "where", ["a pickle beside it", "a pickle elsewhere", "safetensors elsewhere", "absolute"]
)
def test_an_index_names_only_safetensors_files_of_its_own_folder(folder, tmp_path, where):
    index, content = sharded(folder)
    name = sorted(content["weight_map"])[0]
    state = {name: torch.zeros(2), "x": Runs(tmp_path / "ran")}
    named, said = {
        "a pickle beside it": ("pytorch_model.bin", "only safetensors files are opened"),
        "a pickle elsewhere": ("../outside.bin", "expected the name of a file in the same folder"),
        "safetensors elsewhere": ("../outside.safetensors", "expected the name of a file in the same folder"),
        "absolute": (str(tmp_path / "outside.safetensors"), "expected the name of a file in the same folder"),
    }[where]
    if named.endswith(".bin"):
        torch.save(state, folder / named)
    else:
        save_file({name: torch.zeros(2)}, tmp_path / "outside.safetensors", {"format": "pt"})
    content["weight_map"][name] = named
    index.write_text(json.dumps(content))
    with pytest.raises(HeadwiseError, match=said):
        hw.load(folder, device="cpu")
    assert not (tmp_path / "ran").exists()


def test_a_config_may_not_name_pickled_weights(folder, tmp_path):
    torch.save({"x": Runs(tmp_path / "ran")}, folder / "adapter_model.bin")
    config(folder, transformers_weights="adapter_model.bin")
    with pytest.raises(HeadwiseError, match=r"names 'adapter_model\.bin' as weights; only safetensors"):
        hw.load(folder, device="cpu")
    assert not (tmp_path / "ran").exists()


def test_an_adapter_beside_a_model_is_not_loaded_unasked(folder, tmp_path):
    torch.save({"x": Runs(tmp_path / "ran")}, folder / "adapter_model.bin")
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "target_modules": ["q_proj"]})
    )
    with pytest.raises(HeadwiseError, match=r"holds a PEFT adapter .*merge"):
        hw.load(folder, device="cpu")
    assert not (tmp_path / "ran").exists()


def test_a_shard_that_is_missing_or_damaged_is_named(folder):
    _, content = sharded(folder)
    shard = folder / sorted(set(content["weight_map"].values()))[1]
    raw = shard.read_bytes()
    shard.write_bytes(raw[:-4])
    with pytest.raises(HeadwiseError, match=f"{shard.name} is not a safetensors file .*cut short"):
        hw.load(folder, device="cpu")
    shard.unlink()
    with pytest.raises(HeadwiseError, match=f"names '{shard.name}' as weights, but there is no such file"):
        hw.load(folder, device="cpu")


def test_files_that_no_index_names_do_not_count_as_weights(folder):
    """Else a large file of nothing would make room for a large model."""
    save_file({"padding": torch.zeros(5_000_000)}, folder / "padding.safetensors", {"format": "pt"})
    config(folder, intermediate_size=2_000)
    with pytest.raises(
        HeadwiseError, match=r"asks for model\.layers\.0\.mlp\.\w+\.weight of shape .* weights hold"
    ):
        hw.load(folder, device="cpu")


def hub_copy(folder, cache, name="owner/model"):
    """The folder as the hub's own cache keeps it: links into a folder of blobs."""
    root = cache / f"models--{name.replace('/', '--')}"
    snapshot, commit = root / "snapshots" / ("0" * 40), "0" * 40
    snapshot.mkdir(parents=True)
    (root / "blobs").mkdir()
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(root / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    return snapshot


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    import huggingface_hub.constants
    import transformers.utils.hub

    cache = tmp_path / "hub"
    for module in (huggingface_hub.constants, transformers.utils.hub.constants):
        monkeypatch.setattr(module, "HF_HUB_CACHE", str(cache))
    return cache


def test_a_sharded_model_of_the_hubs_cache_loads_by_name_and_by_folder(folder, hub_cache):
    expected = hw.load(folder, device="cpu").fingerprint
    sharded(folder)
    snapshot = hub_copy(folder, hub_cache)
    assert hw.load("owner/model", device="cpu").fingerprint == expected
    assert hw.load(snapshot, device="cpu").fingerprint == expected


def test_a_model_of_the_hub_is_looked_at_before_it_is_opened(folder, hub_cache, tmp_path):
    index, content = sharded(folder)
    content["weight_map"][sorted(content["weight_map"])[0]] = "pytorch_model.bin"
    index.write_text(json.dumps(content))
    torch.save({"x": Runs(tmp_path / "ran")}, folder / "pytorch_model.bin")
    hub_copy(folder, hub_cache)
    with pytest.raises(HeadwiseError, match=r"names 'pytorch_model\.bin' as weights; only safetensors"):
        hw.load("owner/model", device="cpu")
    assert not (tmp_path / "ran").exists()


# --- models that are larger than their weights ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "changed"),
    [
        ("llama", {"intermediate_size": 20_000}),
        ("llama", {"vocab_size": 20_000, "hidden_size": 4_000}),
        ("llama", {"head_dim": 10_000}),
        ("llama", {"num_hidden_layers": 900}),
        ("gpt2", {"n_positions": 10**6}),
        ("gptj", {"n_positions": 10**7}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_a_model_larger_than_its_weights_is_never_given_memory(tmp_path, family, changed, monkeypatch):
    from transformers import AutoModelForCausalLM

    tiny_model(family).save_pretrained(tmp_path)
    config(tmp_path, **changed)
    monkeypatch.setattr(
        AutoModelForCausalLM,
        "from_pretrained",
        lambda *_, **__: pytest.fail("transformers was asked to load it"),
    )
    with pytest.raises(HeadwiseError, match=r"config\.json (describes a model|asks for)"):
        hw.load(tmp_path, device="cpu")


def test_a_header_that_claims_more_numbers_than_bytes_is_refused(folder):
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["model.norm.weight"]["shape"] = [10**9]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    with pytest.raises(HeadwiseError, match=r"is not a safetensors file .*invalid shape"):
        hw.load(folder, device="cpu")


def test_weights_of_another_size_are_named_with_both_shapes(folder):
    config(folder, intermediate_size=65)
    with pytest.raises(
        HeadwiseError, match=r"asks for model\.layers\.0\.\S+ of shape \[.*65.*\], but the weights hold"
    ):
        hw.load(folder, device="cpu")
