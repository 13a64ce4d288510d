"""Prompts that begin alike: reading the beginning once changes no text, and costs less."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import ones
from headwise.model.forward.decode import Batch
from headwise.model.generation import generate as generate_module
from headwise.model.verify.shortcuts import decoding
from headwise.model.verify.tiny import tiny_model
from helpers import WORDS, make_word_tokenizer

DRAW = np.random.default_rng(3)
BEGINNING = " ".join(DRAW.choice(WORDS, 20))
PROMPTS = [f"{BEGINNING} {' '.join(DRAW.choice(WORDS, length))}" for length in (3, 7, 1, 12, 7)]


def loaded(family):
    tokenizer = make_word_tokenizer()
    hf = tiny_model(family, vocab_size=len(tokenizer))
    hf.generation_config.eos_token_id = None
    model = hw.load(hf, tokenizer=tokenizer, name=family)
    model.text.tokenizer.eos_token = None
    return model


@pytest.fixture
def passes_seen(monkeypatch):
    """(rows, tokens) of every pass of a batch."""
    seen = []
    real = Batch._run

    def noted(batch, ids, mask, *more):
        seen.append((len(ids), ids.shape[1] - batch._read))
        return real(batch, ids, mask, *more)

    monkeypatch.setattr(Batch, "_run", noted)
    return seen


@pytest.mark.parametrize("family", ["llama", "gpt2", "gptj", "qwen3", "bloom", "falcon", "mistral", "gemma2"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompts_that_begin_alike_write_what_they_write_alone(family, temperature):
    model = loaded(family)
    together = hw.generate(model, PROMPTS, max_new_tokens=6, temperature=temperature)
    for number, prompt in enumerate(PROMPTS):
        # The luck of a draw belongs to the prompt's place in the list.
        others = ["the cat"] * number
        alone = hw.generate(
            model, [*others, prompt], max_new_tokens=6, temperature=temperature, batch_tokens=1
        )
        assert together.tokens[0][number] == alone.tokens[0][number]


def test_the_beginning_is_read_once(passes_seen):
    model = loaded("llama")
    assert model.capabilities.decoding
    passes_seen.clear()
    hw.generate(model, PROMPTS, max_new_tokens=2)
    assert passes_seen == [(1, 20), (5, 12), (5, 1)]


def test_a_model_with_a_window_or_gates_reads_every_row_in_full(passes_seen):
    windowed = loaded("mistral")
    assert not windowed.capabilities.decoding.prefix
    gates = ones((4, 4))
    gates[1, 2] = 0.5
    model = loaded("llama")
    assert model.capabilities.decoding.prefix
    passes_seen.clear()
    hw.generate(model, PROMPTS, gates, max_new_tokens=1)
    assert passes_seen == [(5, 32)]


def test_prompts_may_be_token_numbers(monkeypatch):
    model = loaded("llama")
    ids = [model.tokens(prompt) for prompt in PROMPTS]
    assert (
        hw.generate(model, ids, max_new_tokens=4).tokens
        == hw.generate(model, PROMPTS, max_new_tokens=4).tokens
    )
    with pytest.raises(HeadwiseError, match=r"prompt 2 has the token id 999; those of llama are 0 to 25"):
        hw.generate(model, [[3, 4], [3, 999]])
    monkeypatch.setattr(generate_module, "LEAST_SHARED", 10**6)
    assert (
        hw.generate(model, ids, max_new_tokens=4).tokens
        == hw.generate(model, PROMPTS, max_new_tokens=4).tokens
    )


@pytest.mark.bundled
def test_the_bundled_model_is_padded_cached_and_shares_its_beginning(smollm2):
    able = smollm2.capabilities.decoding
    assert (able.padding, able.cache, able.prefix) == (True, True, True)


@pytest.mark.parametrize("broken", ["positions", "cache"])
def test_a_model_that_gets_positions_or_its_cache_wrong_is_found_out(broken):
    hf = loaded("gpt2").hf  # learned positions: rotary ones would not notice a shift of the whole text
    real = hf.forward

    def forward(*args, **kwargs):
        if broken == "positions":
            kwargs.pop("position_ids", None)
        elif kwargs.get("past_key_values") is not None:
            for layer in kwargs["past_key_values"].layers:
                layer.values = layer.values * 0.99
        return real(*args, **kwargs)

    forward.__signature__ = inspect.signature(real)
    hf.forward = forward
    able = decoding(hf)
    assert not (able.padding if broken == "positions" else able.cache)
    assert not able.prefix


@pytest.mark.parametrize("positions", ["all", "last"])
def test_shifts_meet_prompts_that_begin_alike(positions, passes_seen):
    model = loaded("llama")
    shifts = np.zeros((2, *model.shape, 8))
    shifts[0, 1, 2], shifts[1, 3, 0] = DRAW.normal(size=(2, 8)) * 3
    assert model.capabilities.decoding
    passes_seen.clear()
    together = hw.generate(model, PROMPTS, shifts=shifts, positions=positions, max_new_tokens=4)
    assert passes_seen[0] == (10, 32)
    for number, prompt in enumerate(PROMPTS):
        alone = hw.generate(
            model, [prompt], shifts=shifts, positions=positions, max_new_tokens=4, batch_tokens=1
        )
        assert [texts[number] for texts in together.tokens] == [texts[0] for texts in alone.tokens]
