"""Nested masks on models whose circuit is known because it was set by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.heads import Head
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.verify.tiny import tiny_model
from headwise.scores.nested.fit import NestedFit, order_costs
from headwise.scores.nested.problem import Problem
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


@pytest.mark.parametrize(("reference", "seeds"), [("mean", 3), ("patch", 2)])
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
    assert "exact" not in scores.details  # no slope is 0 here


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


# ---- two families: their heads' errors cancel in the mean ------------------------------------------


@pytest.fixture
def families(word_tokenizer):
    """A GPT-2 of 16 heads: L1H0 writes for "one" always, L2H1 more of it after "cat", L2H2 against it after "dog".

    L2H1 and L2H2 write as much as each other, so that without both the mean over the two families is the same.
    """
    hf = tiny_model("gpt2", vocab_size=len(word_tokenizer), n_embd=32, tie_word_embeddings=False)
    axes = torch.linalg.qr(
        torch.cat([torch.ones(32, 1), torch.randn(32, 4, generator=torch.Generator().manual_seed(1))], 1)
    )[0].T
    cat, dog, answer, rest = axes[1:]
    with torch.no_grad():
        for block in hf.transformer.h:
            block.attn.c_proj.weight *= 0.02
            block.mlp.c_proj.weight *= 0.02
        for embedding in (hf.transformer.wte.weight, hf.transformer.wpe.weight):
            embedding -= embedding @ axes.T @ axes
        hf.transformer.wte.weight += (
            6 * rest
        )  # the final norm is nearly the same with and without what heads write
        for word, axis in (("cat", cat), ("dog", dog)):
            hf.transformer.wte.weight[word_tokenizer.encode(word)[0]] += 6 * axis
        for word, sign in (("one", 1), ("two", -1)):
            hf.lm_head.weight[word_tokenizer.encode(word)[0]] = sign * answer
        for layer, head, read, strength in ((1, 0, None, 1.0), (2, 1, cat, 1.0), (2, 2, dog, -1.0)):
            attention, at = hf.transformer.h[layer].attn, 8 * head
            for part in range(3):
                attention.c_attn.weight[:, 32 * part + at : 32 * part + at + 8] = 0
                attention.c_attn.bias[32 * part + at : 32 * part + at + 8] = 0
            if read is None:
                attention.c_attn.bias[64 + at] = 1
            else:
                attention.c_attn.weight[:, 64 + at] = read
            attention.c_proj.weight[at : at + 8] = 0
            attention.c_proj.weight[at] = strength * answer
    return hw.load(hf, tokenizer=word_tokenizer, name="families")


def two_families(n=32):
    examples = []
    for i, e in enumerate(word_task(n)):
        animal = ("cat", "dog")[i % 2]
        words = [word for word in e.prompt.split() if word not in ("cat", "dog")][:4]
        prompt = " ".join(["the", animal, *words])
        examples.append(Example(prompt, " one", (" two",), family={"animal": animal}))
    return Task("two families", tuple(examples), "logit_diff")


def test_errors_that_cancel_in_the_mean_pass_match_but_not_track(families):
    task, serving = two_families(), {Head(2, 1), Head(2, 2)}
    options = {"reference": "zero", "rows": 2000, "seeds": 1, "progress": False}
    always = ["L1H0"]
    curve = hw.sweep(families, task, always, reference="zero", k=[0, 1], controls=(), progress=False)
    assert curve.explained()["value"].iloc[-1] == pytest.approx(1, abs=0.1)  # the mean is right with one head
    gained, effects = curve.values[-1] - curve.none, curve.full - curve.none
    by_family = [gained[i::2].mean() / effects[i::2].mean() for i in (0, 1)]
    assert by_family[0] < 0.8 < 1.25 < by_family[1]
    problem = Problem.of(
        Engine(families, task, metric("logit_diff"), reference="zero"), families.exists, 0, 0
    )
    early, late = (
        np.array([[2.0 if head == (1, 0) else place * (head in serving) for head in families.heads()]])
        for place in (1, -1)
    )
    every = np.arange(len(task))

    def costs(objective):
        fit = NestedFit(objective=objective, of_mean=1.0 if objective == "match" else 0.5)
        return [order_costs(problem, order, fit, 16, every).item() for order in (early, late)]

    with_match, with_track = costs("match"), costs("track")
    assert with_match[1] < with_match[0] + 0.05  # nothing is lost where the two heads come last
    assert with_track[1] > 3 * with_track[0]
    track = hw.score(families, task, "nested", objective="track", **options)
    assert track.order()[0] == Head(1, 0)
    assert set(track.order()[1:3]) == serving
