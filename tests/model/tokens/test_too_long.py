"""Prompts that are longer than a model was made for: refused in one sentence, or cut from the left when asked."""

from __future__ import annotations

import time

import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError, warn_once
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.tokens.encode import encode_rows
from headwise.tasks import Example, Task
from helpers import plain_logits, word_model

WORDS = ("cat", "dog", "bird", "he", "she", "saw", "met", "the", "a", "one")


def loaded(family="llama", truncate=False, bos=None, **changed):
    return word_model(family, load={"truncate": truncate, "bos": bos}, **changed)


def words(count, first=0):
    return " ".join(WORDS[(first + 7 * i * i) % len(WORDS)] for i in range(count))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "opt"])
def test_a_text_longer_than_the_model_was_made_for_is_refused(family):
    model = loaded(family)
    assert len(model.tokens(words(64))) == 64
    with pytest.raises(
        HeadwiseError,
        match=r"the text has 65 tokens, but the context length of the model is 64; .*truncate=True",
    ):
        model.tokens(words(65))


def test_models_without_a_number_of_positions_have_no_limit():
    assert len(loaded("bloom").tokens(words(300))) == 300


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 256),
        ({"rope_type": "dynamic", "factor": 2.0}, 128),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 128),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}, 64),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "original_max_position_embeddings": 4,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
            64,
        ),
    ],
)
def test_scaled_rotary_positions_reach_as_far_as_the_scaling_says(rope, limit):
    model = loaded(rope_parameters={"rope_theta": 10_000.0, **rope})
    assert model.text.longest == limit


def test_scoring_says_how_many_examples_are_too_long_and_by_how_much():
    examples = [Example(words(n), " cat", (" dog",)) for n in (10, 70, 64, 90)]
    with pytest.raises(
        HeadwiseError,
        match=r"2 of 4 examples have up to 90 tokens, but the context length of the model is 64",
    ):
        hw.score(loaded(), Task("long", tuple(examples)))


def test_an_answer_counts_and_its_last_token_which_is_never_read_does_not():
    model = loaded()
    fits = Example(words(62), " the cat ran")  # 65 tokens, of which 64 are read
    encode_rows(model.text, [fits], "target")
    with pytest.raises(HeadwiseError, match="the example has 65 tokens"):
        encode_rows(model.text, [Example(words(62), " cat", (" the cat ran ran",))], "candidates")


@pytest.mark.parametrize("bos", [None, True])
@pytest.mark.parametrize("name", ["logprob", "logit_diff", "accuracy"])
def test_a_cut_example_is_worth_what_its_end_alone_is_worth(name, bos, caplog):
    warn_once.cache_clear()
    model = loaded(truncate=True, bos=bos)
    room = 64 - len(model.text.prefix)
    long = words(100)
    answers = (" the dog", (" the bird", " a cat"))
    end = " ".join(long.split()[-(room - 1) :])  # the answer's first token is read, its second predicted
    values = [
        float(Engine(model, Task("one", (Example(prompt, *answers),)), metric(name)).full()[0])
        for prompt in (long, end)
    ]
    assert values[0] == values[1]
    assert (
        "the example of 101 tokens truncated" in caplog.text
        or "the example of 102 tokens truncated" in caplog.text
    )


def test_the_beginning_token_stays_where_a_prompt_is_cut():
    model = loaded(truncate=True, bos=True)
    cut = model.tokens(words(100))
    assert len(cut) == 64
    assert cut[0] == model.text.tokenizer.bos_token_id
    assert cut[1:] == model.text.tokenizer(words(100)).input_ids[-63:]


@pytest.mark.parametrize("reference", ["patch", "resample", "mean"])
def test_a_counterfactual_is_cut_where_its_example_is(reference):
    model = loaded(truncate=True)
    pairs = [(words(80, i), words(80, i + 3)) for i in range(3)]
    short = [tuple(" ".join(one.split()[-64:]) for one in pair) for pair in pairs]
    values = [
        hw.score(
            model,
            Task("t", tuple(Example(p, " cat", (" dog",), counterfactual=c) for p, c in texts)),
            reference=reference,
        ).examples.tolist()
        for texts in (pairs, short)
    ]
    assert values[0] == values[1]


def test_how_many_examples_were_cut_is_said_once(caplog):
    warn_once.cache_clear()
    model = loaded(truncate=True)
    task = Task("long", tuple(Example(words(n), " cat", (" dog",)) for n in (10, 70, 90)))
    hw.score(model, task)
    hw.score(model, task)
    told = [record.message for record in caplog.records if "truncated from the left" in record.message]
    assert told == [
        "2 of 3 examples of up to 90 tokens truncated from the left: the context length of the model is 64"
    ]


def test_generation_needs_room_for_what_is_written():
    model = loaded()
    assert len(hw.generate(model, [words(60)], max_new_tokens=5).prompts[0]) == 60
    with pytest.raises(HeadwiseError, match=r"has 65 tokens with the 5 new ones"):
        hw.generate(model, [words(61)], max_new_tokens=5)
    with pytest.raises(HeadwiseError, match="100 new tokens leave no room for a prompt"):
        hw.generate(loaded(truncate=True), [words(3)], max_new_tokens=100)


def test_generation_from_a_cut_prompt_writes_what_its_end_writes():
    model = loaded(truncate=True)
    long, end = words(90), " ".join(words(90).split()[-60:])
    both = [hw.generate(model, [prompt], max_new_tokens=5) for prompt in (long, end)]
    assert both[0].prompts == both[1].prompts == [model.tokens(end)]
    assert both[0].tokens == both[1].tokens
    ids = model.tokens(end)
    assert both[0].tokens[0][0][0] == int(plain_logits(model, ids)[-1].argmax())


def test_prompts_given_as_token_numbers_are_held_to_the_same_limit():
    model = loaded()
    with pytest.raises(HeadwiseError, match="has 70 tokens"):
        hw.generate(model, [[5] * 66], max_new_tokens=5)
    with pytest.raises(HeadwiseError, match="has 70 tokens"):
        hw.attention(model, [[5] * 70], heads=["L0H0"])


def test_a_text_of_megabytes_is_refused_before_it_is_tokenised(monkeypatch):
    model, huge = loaded(), "cat " * 1_800_000
    before = model.text.tokenizer
    monkeypatch.setattr(model.text, "tokenizer", lambda *_, **__: pytest.fail("it was tokenised"))
    began = time.monotonic()
    for call in (
        lambda: model.tokens(huge),
        lambda: hw.score(model, Task("t", (Example(huge, " cat", (" dog",)),))),
        lambda: hw.generate(model, [huge]),
    ):
        with pytest.raises(HeadwiseError, match=r"1 of 1 texts has up to 7200000 characters"):
            call()
    assert time.monotonic() - began < 1
    monkeypatch.undo()
    assert model.text.tokenizer is before


def test_a_text_of_megabytes_is_cut_when_asked():
    model = loaded(truncate=True)
    example, end = (
        Example("cat " * 500_000 + words(64), " cat", (" dog",)),
        Example(words(64), " cat", (" dog",)),
    )
    values = [Engine(model, Task("t", (e,)), metric("logit_diff")).full()[0] for e in (example, end)]
    assert torch.equal(torch.tensor(values[0]), torch.tensor(values[1]))
