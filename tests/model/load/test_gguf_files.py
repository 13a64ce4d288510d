"""A GGUF file made on the spot: exactly its values, its own tokenizer, and a sentence where it cannot be used."""

from __future__ import annotations

import errno
import json
from typing import Any

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.model.load.gguf import _tokenizer as gguf_tokenizer
from headwise.model.load.gguf import convert as convert_gguf
from headwise.model.load.gguf import wants_bos
from model.load.small_gguf import as_bfloat16, smollm_tokens, tiny_weights, to_llama_cpp, write_gguf


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    ("keep", "dtype"),
    [
        (lambda values: values.astype(np.float16).astype(np.float32), "float16"),
        (as_bfloat16, "bfloat16"),
        (lambda values: values, "float32"),
    ],
    ids=["float16", "bfloat16", "float32"],
)
def test_a_converted_gguf_holds_exactly_its_values_in_the_smallest_type_that_can(keep, dtype, tied, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    weights = tiny_weights(keep, tied)
    write_gguf(tmp_path / "tiny.gguf", to_llama_cpp(weights))
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")

    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["dtype"] == dtype
    assert "quantization_config" not in config
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    found = {name: value.numpy() for name, value in model.state_dict().items()}
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    if tied:
        del found["lm_head.weight"]
    assert set(found) == set(weights)
    for name, value in weights.items():
        assert np.array_equal(found[name].view(np.uint32), value.view(np.uint32)), name


def test_a_gguf_that_lacks_a_tensor_is_not_filled_with_noise(tmp_path):
    weights = to_llama_cpp(tiny_weights(lambda values: values, tied=True))
    del weights["blk.1.ffn_up.weight"]
    write_gguf(tmp_path / "tiny.gguf", weights)
    with pytest.raises(AssertionError, match=r"layers\.1\.mlp\.up_proj"):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")


def test_a_converted_tokenizer_cuts_digits_first_and_keeps_marks_whole(tmp_path):
    write_gguf(tmp_path / "tiny.gguf")
    tokenizer = gguf_tokenizer(tmp_path / "tiny.gguf", max_length=128)
    # The merges "1 2" and "Ġ 1" are there to be refused: each digit stands alone.
    assert tokenizer.tokenize("he\n\n12  1 1") == ["he", "ĊĊ", "1", "2", "ĠĠ", "1", "Ġ", "1"]
    assert tokenizer.tokenize("<|im_start|>he<|im_end|>") == ["<|im_start|>", "he", "<|im_end|>"]
    assert tokenizer.chat_template.startswith("{% for m in messages %}")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert (tokenizer.unk_token_id, tokenizer.pad_token_id) == (0, 2)
    assert tokenizer("he")["input_ids"] == [smollm_tokens()[0].index("he")], "no token is added in front"


def test_a_full_disk_while_saving_weights_is_recognised_in_the_writers_own_words(tmp_path, monkeypatch):
    from safetensors import SafetensorError
    from transformers import LlamaForCausalLM

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    write_gguf(tmp_path / "tiny.gguf", to_llama_cpp(tiny_weights(lambda values: values, tied=True)))
    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left") as failure:
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")
    assert failure.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("written", "asked", "said"),
    [
        ("add_block_count", 10**9, r"asks for llama\.block_count = 1000000000"),
        ("add_feed_forward_length", 10**9, r"asks for llama\.feed_forward_length = 1000000000"),
        ("add_feed_forward_length", 9_000, r"describes a model of more than .* but the weights hold at most"),
    ],
)
def test_a_gguf_that_asks_for_a_larger_model_than_it_holds_is_refused(
    written, asked, said, tmp_path, monkeypatch
):
    from gguf import GGUFWriter

    import headwise as hw

    write = getattr(GGUFWriter, written)
    monkeypatch.setattr(GGUFWriter, written, lambda self, _: write(self, asked))
    write_gguf(tmp_path / "tiny.gguf", to_llama_cpp(tiny_weights(lambda values: values, tied=True)))
    with pytest.raises(HeadwiseError, match=said):
        hw.load(tmp_path / "tiny.gguf", device="cpu")


@pytest.mark.parametrize("wanted", [True, False, None])
def test_a_gguf_says_whether_it_wants_a_begin_token(wanted, tmp_path):
    write_gguf(tmp_path / "tiny.gguf", bos=wanted)
    assert wants_bos(tmp_path / "tiny.gguf") is wanted


def test_a_file_that_is_no_gguf_is_named(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"not a model" * 10)
    with pytest.raises(HeadwiseError, match=r"model\.gguf is not a GGUF file"):
        wants_bos(tmp_path / "model.gguf")
    with pytest.raises(HeadwiseError, match="no GGUF file at"):
        wants_bos(str(tmp_path / "absent.gguf"))
