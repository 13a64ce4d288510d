"""Nested masks on models whose circuit is known because it was set by hand."""

from __future__ import annotations

import pytest
import torch

import headwise as hw
from headwise.heads import Head
from headwise.model.verify.tiny import tiny_model
from headwise.tasks import Example, Task
from helpers import word_task
from planted import CHAINS, cats_and_dogs

# ---- twins: either of two heads is enough ----------------------------------------------------------

TWINS = {Head(2, 1), Head(2, 2)}


@pytest.fixture
def twins(word_tokenizer):
    """A tiny GPT-2 in which L2H1 and L2H2 write the same for the same answer, so much that the final norm is theirs.

    With one of the two the normalised stream points where it does with both.
    """
    example = word_task(1).examples[0]
    hf = tiny_model("gpt2", vocab_size=len(word_tokenizer))
    (target,), (foil,) = (word_tokenizer.encode(text.strip()) for text in (example.target, example.foils[0]))
    with torch.no_grad():
        attention = hf.transformer.h[2].attn
        direction = hf.lm_head.weight[target] - hf.lm_head.weight[foil]
        direction = direction - direction.mean()
        for head in (1, 2):
            values = slice(2 * 32 + 8 * head, 2 * 32 + 8 * head + 8)
            attention.c_attn.weight[:, values] = 0
            attention.c_attn.bias[values] = 1
            attention.c_proj.weight[8 * head : 8 * head + 8] = 100 * direction / direction.norm()
    return hw.load(hf, tokenizer=word_tokenizer, name="twins")


def same_answer(n=12):
    """Prompts that differ, with one target and one foil for all."""
    first = word_task(1).examples[0]
    return Task(
        "same", tuple(Example(e.prompt, first.target, first.foils) for e in word_task(n)), "logit_diff"
    )


def test_one_of_two_heads_that_replace_each_other_is_first_though_ablation_scores_both_near_zero(twins):
    task = same_answer()
    scores = hw.score(twins, task, "nested", reference="zero", rows=600, progress=False)
    effect = scores.details["effect"][0]
    alone = hw.score(twins, task, "ablation", reference="zero", progress=False)
    for head in TWINS:
        assert abs(alone[head]) < 0.02 * effect
    assert {Head.parse(order[0]) for order in scores.details["orders"]} <= TWINS
    curve = hw.sweep(twins, task, scores, reference="zero", k=[0, 1, 16], controls=(), progress=False)
    assert curve.explained()["value"].iloc[1] == pytest.approx(1, abs=0.05)


# ---- a chain of two and another one among noise ----------------------------------------------------


@pytest.mark.parametrize(("reference", "seeds"), [("mean", 5), ("patch", 3)])
def test_a_circuit_of_four_among_noisy_heads_is_found_in_the_first_four_by_every_seed(
    chains, reference, seeds
):
    scores = hw.score(
        chains, cats_and_dogs(), "nested", reference=reference, seeds=seeds, rows=800, progress=False
    )
    orders = scores.details["orders"]
    assert len(orders) == seeds
    for order in orders:
        assert set(map(Head.parse, order[:4])) == CHAINS
    assert scores.details["circuit"]


def test_a_behaviour_that_is_not_there_has_no_circuit_and_the_run_says_so(chains, caplog):
    """Of eight random halves that are swapped, one may pass for an effect: the interval is one of 95 %."""
    alarms = 0
    for half in range(8):
        caplog.clear()
        task = cats_and_dogs(swapped=half)
        scores = hw.score(chains, task, "nested", reference="mean", seeds=1, rows=40, progress=False)
        if scores.details["circuit"]:
            alarms += 1
            continue
        assert scores.details["said"].startswith("no circuit: logit_diff with all heads minus with none is")
        assert "no circuit" in caplog.text
        assert not scores.values.any()
        assert scores.details["order"] == []
    assert alarms <= 1
