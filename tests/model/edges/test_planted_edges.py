"""Induction circuits whose wiring is known: one made by hand, and one that a small model has learned."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import headwise as hw
from headwise.tasks import Example, Task
from helpers import WORDS, make_word_tokenizer

PLACES = 16
LEARNED = Path(__file__).parent / "induction"


def by_hand(tokenizer, order: list[int] | None = None) -> hw.Model:
    """A two-layer GPT-2 that does induction: L0H0 attends to the previous token, L1H0 to the token after the same one.

    The stream has four parts: the token, its position, the token before it, and the answer. L0H0 writes the token
    before into its part; the key of L1H0 reads it there, its query and its value the token itself. Other weights are 0.
    order: a permutation under which the key reads the token before, which breaks the composition.
    """
    tokens = len(tokenizer)
    width = 3 * tokens + PLACES
    config = GPT2Config(vocab_size=tokens, n_positions=PLACES, n_embd=width, n_layer=2, n_head=2, n_inner=4)
    config.tie_word_embeddings = False
    model = GPT2LMHeadModel(config).eval()
    # Loaded with random weights: the loader's proof asks that the heads it turns off make a difference.
    loaded = hw.load(model, tokenizer=tokenizer, name="by hand")
    token, place = slice(0, tokens), slice(tokens, tokens + PLACES)
    before, answer = slice(tokens + PLACES, 2 * tokens + PLACES), slice(2 * tokens + PLACES, width)
    size = width // 2
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".ln_" not in name:
                parameter.zero_()
        model.transformer.wte.weight[:, token] = torch.eye(tokens)
        model.transformer.wpe.weight[:, place] = torch.eye(PLACES)
        first, second = (block.attn for block in model.transformer.h)
        query, key, value = (slice(n * width, n * width + size) for n in range(3))
        shift = torch.eye(PLACES).roll(1, 1)  # position s has the key of position s + 1
        first.c_attn.weight[place, query][:, :PLACES] += 4 * torch.eye(PLACES)
        first.c_attn.weight[place, key][:, :PLACES] += shift
        first.c_attn.weight[token, value][:, :tokens] += torch.eye(tokens)
        first.c_proj.weight[:tokens, before] = 0.2 * torch.eye(tokens)
        read = torch.eye(tokens) if order is None else torch.eye(tokens)[order]
        second.c_attn.weight[token, query][:, :tokens] += 4 * torch.eye(tokens)
        second.c_attn.weight[before, key][:, :tokens] += read
        second.c_attn.weight[token, value][:, :tokens] += torch.eye(tokens)
        second.c_proj.weight[:tokens, answer] = torch.eye(tokens)
        model.lm_head.weight[:, answer] = torch.eye(tokens)
    return loaded


def repeats(words: list[str], n: int, seed: int = 0) -> Task:
    """Some words, then the beginning of them again: what follows is known."""
    draw = random.Random(seed)
    examples = []
    for _ in range(n):
        some = draw.sample(words, draw.randint(5, 8))
        again = draw.randint(1, len(some) - 2)
        foil = draw.choice([word for word in some if word not in (some[again], some[again - 1])])
        examples.append(Example(" ".join(some + some[:again]), f" {some[again]}", (f" {foil}",)))
    return Task("repeats", tuple(examples), "logit_diff")


def test_the_edge_of_an_induction_circuit_made_by_hand_is_first_by_far(word_tokenizer):
    task = repeats(WORDS, 12)
    model = by_hand(word_tokenizer)
    assert hw.measure(model, task, metric="accuracy").values.mean() == 1
    edges = hw.edges(model, task, into="L1H0", progress=False)
    planted = edges["L0H0->L1KV0.K"]
    assert str(edges.top(1).edges[0]) == "L0H0->L1KV0.K"
    assert planted > 1
    assert abs(edges["L0H0->L1H0.Q"]) < 0.1 * planted
    assert abs(edges["L0H0->L1KV0.V"]) < 0.1 * planted


def test_a_key_that_reads_another_token_has_no_such_edge(word_tokenizer):
    tokens = len(word_tokenizer)
    whole, model = by_hand(word_tokenizer), by_hand(word_tokenizer, order=[*range(1, tokens), 0])
    task = repeats(WORDS, 12)
    planted, broken = (
        hw.edges(m, task, into="L1H0", progress=False)["L0H0->L1KV0.K"] for m in (whole, model)
    )
    assert abs(broken) < 0.2 * planted


def test_a_trained_model_reads_the_token_before_through_the_keys_of_its_induction_heads():
    tokenizer = make_word_tokenizer([f"w{number}" for number in range(3, 64)])
    hf = AutoModelForCausalLM.from_pretrained(LEARNED, dtype=torch.float32).eval()
    model = hw.load(hf, tokenizer=tokenizer, name="learned")
    task = repeats([f"w{number}" for number in range(3, 64)], 24)
    assert hw.measure(model, task, metric="accuracy").values.mean() > 0.9
    edges = hw.edges(model, task, slots=["Q", "K", "V"], reference="mean", progress=False)
    first = edges.top(1, "signed").edges[0]
    assert first.receiver.slot == "K"
    largest = {slot: max(edges[e] for e in edges if e.receiver.slot == slot) for slot in "QKV"}
    assert edges[first] > 2 * max(largest["Q"], largest["V"])
