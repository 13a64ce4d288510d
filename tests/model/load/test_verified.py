"""A verification is remembered only while weights, dtype, code and versions are the same."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import headwise as hw
from headwise.model.load import verified as memory
from headwise.model.verify.proof import verify
from headwise.model.verify.tiny import tiny_model
from helpers import make_word_tokenizer


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkpoint on disk, and a cache that remembers nothing yet."""
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    tiny_model("llama").save_pretrained(tmp_path / "model")
    make_word_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def verifications(monkeypatch):
    """How often a verification was really computed."""
    done = []

    def counted(*args, **options):
        done.append(options)
        return verify(*args, **options)

    monkeypatch.setattr(memory, "verify", counted)
    return done


def load(folder, **options):
    return hw.load(folder, device="cpu", **options)


def facts(model):
    """What a verification found, with modules by name."""
    names = {module: name for name, module in model.hf.named_modules()}
    places = [
        [site.layer, site.block, site.heads, site.head_dim, site.kv_heads, site.calls]
        + [names[part] for part in (site.module, *site.projections)]
        for site in model.hooks.sites
    ]
    able = model.capabilities
    blocks = [names[block] for block in model.hooks.blocks]
    return places, blocks, model.shape, model.proof, able.share_rows, [names[part] for part in able.narrow]


@pytest.mark.parametrize("family", ["llama", "gptj", "gpt2"])
def test_the_second_load_runs_no_verification_and_finds_the_same(folder, family, verifications):
    shutil.rmtree(folder)
    tiny_model(family).save_pretrained(folder)
    make_word_tokenizer().save_pretrained(folder)
    first, again = load(folder), load(folder)
    assert len(verifications) == 1
    assert facts(again) == facts(first)
    ids = torch.arange(3, 9)[None]
    gates = torch.ones(first.shape)
    gates[1, 2] = 0
    logits = []
    for model in (first, again):
        with model.gated(gates.numpy()), torch.no_grad():
            logits.append(model.hf(ids).logits)
    assert torch.equal(*logits)


def one_number(folder):
    weights = load_file(folder / "model.safetensors")
    name = sorted(weights)[0]
    weights[name].view(-1)[7] += 1e-3
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def two_swapped_numbers(folder):
    """The sum of the weights stays what it was."""
    weights = load_file(folder / "model.safetensors")
    flat = weights[sorted(weights)[0]].view(-1)
    flat[[3, 5]] = flat[[5, 3]]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def a_setting(folder):
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 2e-06'))


@pytest.mark.parametrize("change", [one_number, two_swapped_numbers, a_setting])
def test_another_content_of_the_files_is_verified_again(folder, verifications, change):
    load(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    change(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} != before
    load(folder)
    assert len(verifications) == 2


def test_other_versions_dtypes_kernels_and_processors_are_verified_again(folder, verifications, monkeypatch):
    import transformers

    load(folder)
    load(folder, dtype="bfloat16")
    assert len(verifications) == 2
    for owner, name, value in [
        (transformers, "__version__", "5.99.0"),
        (torch, "__version__", torch.torch_version.TorchVersion("2.99.0")),
        (memory, "__version__", "0"),
        (memory, "_our_code", lambda: "changed"),
        (torch.backends.cpu, "get_cpu_capability", lambda: "none"),
    ]:
        count = len(verifications)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            load(folder)
        assert len(verifications) == count + 1, name
    count = len(verifications)
    load(folder)
    assert len(verifications) == count


def test_a_check_and_a_live_model_are_always_verified(folder, verifications):
    load(folder)
    assert load(folder, check_every_layer=True).proof.sites_checked == 4
    assert len(verifications) == 2
    live = tiny_model("llama")
    for _ in range(2):
        hw.load(live, tokenizer=make_word_tokenizer())
    assert len(verifications) == 4


def test_a_damaged_memory_is_verified_again(folder, verifications, tmp_path):
    load(folder)
    (kept,) = (tmp_path / "cache" / "verified").iterdir()
    for content in ("", "{}", kept.read_text().replace("self_attn", "elsewhere")):
        kept.write_text(content)
        count = len(verifications)
        load(folder)
        assert len(verifications) == count + 1


def test_old_memories_are_deleted(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "KEPT", 1)
    load(folder)
    one_number(folder)
    load(folder)
    assert len(list((tmp_path / "cache" / "verified").iterdir())) == 1
