"""A GGUF file is converted once: the kept folder gives the numbers of the file, and nothing half finished is used."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.model.load import cache, converted, gguf
from headwise.model.load.gguf import read_header
from helpers import forked
from model.load.small_gguf import tiny_weights, to_llama_cpp, write_gguf


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The cache of this test."""
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(converted.SWITCH, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", to_llama_cpp(tiny_weights(lambda values: values / 8, tied=True)))
    return tmp_path / "tiny.gguf"


def load(path, dtype="float32"):
    return hw.load(path, device="cpu", dtype=dtype)


def numbers(model):
    """Every weight, and the logits of a few tokens; copies, because kept weights are mapped."""
    with torch.no_grad():
        logits = model.hf(torch.arange(3, 20)[None]).logits
    return {name: value.clone() for name, value in (*model.hf.state_dict().items(), ("logits", logits))}


def assert_same(one, two):
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert value.dtype == two[name].dtype
        assert torch.equal(value, two[name]), name


def kept(folder):
    return sorted(path.name for path in folder.glob("*") if path.is_dir() and path.name != "verified")


def no_conversion(monkeypatch):
    monkeypatch.setattr(
        converted.checkpoint, "save_plain", lambda *_: pytest.fail("nothing was to be converted")
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_second_load_has_the_weights_and_logits_of_the_first_and_of_the_file(
    dtype, file, folder, monkeypatch
):
    first = load(file, dtype)
    with monkeypatch.context() as patch:
        no_conversion(patch)
        second = load(file, dtype)
    monkeypatch.setenv(converted.SWITCH, "0")
    plain = load(file, dtype)
    for model in (first, second):
        assert_same(numbers(model), numbers(plain))
        assert model.fingerprint == plain.fingerprint
        assert model.name == plain.name == "tiny"
        assert model.hf.generation_config.eos_token_id == plain.hf.generation_config.eos_token_id
        text = "he 12\n\n<|im_start|>caf\u00e9 cafe\u0301"
        assert model.text.tokenizer.encode(text) == plain.text.tokenizer.encode(text)
        assert model.text.tokenizer.chat_template == plain.text.tokenizer.chat_template
        assert model.text.tokenizer.special_tokens_map == plain.text.tokenizer.special_tokens_map
    assert first.hf.config.to_dict() == second.hf.config.to_dict()


def test_weights_of_a_kept_folder_are_mapped_and_not_changed_by_the_proof(file, folder):
    load(file)
    (weights,) = folder.glob("*/model.safetensors")
    before = weights.read_bytes()
    model = load(file)
    assert "model.safetensors" in Path("/proc/self/maps").read_text() if sys.platform == "linux" else True
    with torch.no_grad():
        model.hf.model.norm.weight.zero_()
    assert weights.read_bytes() == before, "an edit of the loaded model stays in this process"


def test_another_content_another_dtype_and_another_version_have_folders_of_their_own(
    file, folder, monkeypatch
):
    load(file)
    of_file = set(kept(folder))
    assert len(of_file) == 2  # weights, tokenizer
    copied = file.with_name("renamed.gguf")
    copied.write_bytes(file.read_bytes())
    assert load(copied).name == "renamed"
    assert set(kept(folder)) == of_file, "the same content under another name"
    load(file, "bfloat16")
    assert len(kept(folder)) == 3  # the tokenizer has no dtype
    monkeypatch.setattr(converted, "version", lambda _: "99.0")
    load(file)
    assert len(kept(folder)) == 5
    monkeypatch.undo()
    monkeypatch.setenv("HEADWISE_CACHE", str(folder))

    other = to_llama_cpp(tiny_weights(lambda values: values / 4, tied=True))
    write_gguf(file, other)
    model = load(file)
    assert len(kept(folder)) == 7
    assert torch.equal(model.hf.model.norm.weight, torch.from_numpy(other["output_norm.weight"]))


def test_the_folder_and_its_size_are_told_once(file, folder, caplog):
    with caplog.at_level(logging.INFO):
        load(file)
    (said,) = [message for message in caplog.messages if message.startswith("converting tiny.gguf")]
    assert f"to float32, once, into {folder}; this needs about" in said
    assert "HEADWISE_CACHE" in said
    assert [m for m in caplog.messages if m.startswith("tiny (float32) takes")]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        load(file)
    assert not [message for message in caplog.messages if "tiny" in message]


def test_nothing_is_kept_where_it_is_switched_off(file, folder, monkeypatch):
    monkeypatch.setenv(converted.SWITCH, "0")
    load(file)
    assert not folder.exists()


@pytest.mark.parametrize("when", ["before", "while the weights are written"])
def test_a_full_disk_gives_the_model_and_a_warning(when, file, folder, monkeypatch, caplog):
    from transformers import LlamaForCausalLM

    if when == "before":
        monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: cache.shutil._ntuple_diskusage(9, 9, 0))
    else:

        def full(*_, **__):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", full)
    model = load(file)
    assert "tiny (float32) cannot be kept" in caplog.text
    assert "No space left on device" in caplog.text
    assert not [name for name in kept(folder) if "float32" in name or name.startswith(".")]
    monkeypatch.undo()
    monkeypatch.setenv(converted.SWITCH, "0")
    assert_same(numbers(model), numbers(load(file)))


@pytest.mark.parametrize("old_time", [False, True])
def test_a_damaged_folder_is_made_again_also_if_size_and_time_are_the_old_ones(
    old_time, file, folder, caplog
):
    first = numbers(load(file))
    (weights,) = folder.glob("*float32*/model.safetensors")
    facts, data = weights.stat(), bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    if old_time:
        os.utime(weights, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert_same(numbers(load(file)), first)
    assert "the content of model.safetensors has changed): converting it again" in caplog.text


def test_a_file_that_cannot_be_used_leaves_nothing_behind(file, folder):
    weights = to_llama_cpp(tiny_weights(lambda values: values, tied=True))
    del weights["blk.1.ffn_up.weight"]
    write_gguf(file, weights)
    with pytest.raises(HeadwiseError, match="lack 1 tensor"):
        load(file)
    assert kept(folder) == []


@pytest.mark.parametrize("second", [False, True], ids=["first load", "second load"])
def test_a_wrong_tokenizer_is_refused_at_every_load(second, file, folder, monkeypatch):
    from headwise.model.load import load as loading

    checked = []
    monkeypatch.setattr(loading, "check_tokenizer", lambda path, made: checked.append(type(made)))
    load(file)
    if second:
        checked.clear()
        load(file)
    assert checked

    def refuse(path, made):
        raise HeadwiseError("the tokenizer is wrong")

    monkeypatch.setattr(loading, "check_tokenizer", refuse)
    if not second:
        cache.shutil.rmtree(folder)
    with pytest.raises(HeadwiseError, match="the tokenizer is wrong"):
        load(file)
    assert second == any("tokenizer" in name for name in kept(folder)), "a wrong one is not kept"


def slow_load(file, journal, pause):
    """What another process does: it says that it converts, and takes its time."""
    save = converted.checkpoint.save_plain

    def slow(model, out):
        with open(journal, "a") as said:
            said.write("converting\n")
        save(model, out)
        time.sleep(pause)

    converted.checkpoint.save_plain = slow
    print(load(file).fingerprint)


def test_of_two_processes_at_once_one_converts_and_both_have_the_model(file, folder, tmp_path, monkeypatch):
    child = forked(tmp_path / "said", slow_load, file, tmp_path / "journal", 1)
    while not (tmp_path / "journal").exists():
        assert child.is_alive(), (tmp_path / "said").read_text()
        time.sleep(0.05)
    assert not [name for name in kept(folder) if "float32" in name and not name.startswith(".")]
    no_conversion(monkeypatch)
    model = load(file)  # waits for the other process
    child.join()
    assert child.exitcode == 0
    assert (tmp_path / "journal").read_text() == "converting\n"
    assert (tmp_path / "said").read_text().splitlines()[-1] == model.fingerprint


def test_no_conversion_waits_for_that_of_another_file_or_dtype(file):
    other = file.with_name("other.gguf")
    write_gguf(other, to_llama_cpp(tiny_weights(lambda values: values / 4, tied=True)))
    parts = ("float32", "bfloat16", "tokenizer")
    assert len({converted._entry(path, part, 0).lock for path in (file, other) for part in parts}) == 6


def test_a_tokenizer_that_pads_on_the_left_is_kept(file, folder):
    from headwise.model.load import load as loading

    made = loading.load_text(str(file)).tokenizer
    made.padding_side, made.truncation_side = "left", "left"
    cache.shutil.rmtree(folder)
    for make in (lambda: made, lambda: pytest.fail("nothing was to be made")):
        found = converted.tokenizer(file, make)
        assert (found.padding_side, found.truncation_side) == ("left", "left")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_conversion_is_not_used_and_is_swept_away(file, folder, tmp_path):
    child = forked(tmp_path / "said", slow_load, file, tmp_path / "journal", 60)
    while not list(folder.glob(".gguf-*/ready/model.safetensors")):
        assert child.is_alive(), (tmp_path / "said").read_text()
        time.sleep(0.05)
    child.kill()
    child.join()
    assert [name for name in kept(folder) if not name.startswith(".")] == []
    model = load(file)
    assert not [name for name in kept(folder) if name.startswith(".")]
    assert len(kept(folder)) == 2
    assert_same(numbers(model), numbers(load(file)))


# ---- the header


def test_the_header_has_what_the_reader_of_the_package_gguf_finds(file):
    reader = GGUFReader(file)
    header = read_header(file, arrays=("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"))
    assert header.shapes == {t.name: tuple(int(n) for n in t.shape) for t in reader.tensors}
    single = {k: f.contents() for k, f in reader.fields.items() if len(f.data) == 1 and "GGUF." not in k}
    assert header.values == single
    for key, values in header.arrays.items():
        assert values == reader.fields[key].contents()
    assert len(header.arrays) == 2


def test_a_file_that_was_cut_anywhere_is_refused(file, tmp_path):
    data = file.read_bytes()
    ends = [0, 3, 10, 23, *range(24, 4000, 61), len(data) // 2, len(data) - 40]
    for end in ends:
        (tmp_path / "cut.gguf").write_bytes(data[:end])
        with pytest.raises(HeadwiseError, match=r"cut\.gguf is not a GGUF file that can be read"):
            gguf.describe(tmp_path / "cut.gguf")


def test_tensors_that_overlap_are_refused_before_anything_is_converted(file, folder):
    names = [tensor.name.encode() for tensor in GGUFReader(file).tensors if len(tensor.shape) == 2]
    data = bytearray(file.read_bytes())
    for (
        name
    ) in names:  # after a name: number of dimensions (4 bytes), two sizes (8 each), type (4), offset (8)
        offset = data.index(len(name).to_bytes(8, "little") + name) + 8 + len(name) + 4 + 16 + 4
        data[offset : offset + 8] = bytes(8)
    file.write_bytes(data)
    with pytest.raises(HeadwiseError, match=r"tiny\.gguf is not a GGUF file .* overlap"):
        load(file)
    assert not kept(folder)
