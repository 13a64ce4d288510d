"""A model made by hand whose heads help, hinder and do nothing for certain: each must get its role."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_planted import TOKEN, D, V, induction, repeated  # noqa: F401

import headwise as hw
from headwise.heads import Head
from headwise.scores.gates.gating import role_labels
from helpers import word_task
from planted import one_writer

NOISY, IDLE = Head(1, 0), [Head(0, 0), Head(0, 2), Head(1, 1)]


@pytest.fixture
def noisy(induction):  # noqa: F811
    """The induction pair, three heads that write nothing, and one that writes noise over the logits."""
    projection = induction.hf.transformer.h[1].attn.c_proj.weight
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        projection[NOISY.head * D : (NOISY.head + 1) * D, TOKEN] = torch.randn(D, V, generator=draw)
    return hw.load(induction.hf, tokenizer=induction.text.tokenizer, name="planted roles")


@pytest.mark.parametrize("clip", ["two_sided", "one_sided"])
def test_idle_heads_are_irrelevant_and_the_noisy_one_interferes_in_every_seed(noisy, clip):
    """The pair itself is needed, but not whole: its lookup is sure of itself, and the norm at the end undoes any size.
    A small part of it is enough, and soft gates say so; ablation is what finds it."""
    scores = hw.score(noisy, repeated(12), "gating", reference="zero", seeds=2, updates=80, clip=clip)
    roles = {name: np.array(values) for name, values in scores.details["roles"].items()}
    labels = role_labels(1 - roles["interference"], roles["facilitation"])
    for head in IDLE:
        assert (roles["facilitation"][:, head.layer, head.head] < 0.05).all(), head
        assert (roles["interference"][:, head.layer, head.head] < 0.05).all(), head
        assert (labels[:, head.layer, head.head] == "irrelevant").all(), head
    assert (labels[:, NOISY.layer, NOISY.head] == "interfering").all()
    assert not (labels[:, [0, 1], [1, 2]] == "interfering").any()
    # Read the wrong way round, necessary for sufficient, the same gates would not pass.
    swapped = role_labels(roles["facilitation"], 1 - roles["interference"])
    assert all((swapped[:, head.layer, head.head] == "anomalous").all() for head in IDLE)
    assert (
        swapped[:, NOISY.layer, NOISY.head] == "interfering"
    ).all()  # shut in both fits, whichever comes first


@pytest.mark.parametrize(("sign", "role"), [(1, "facilitating"), (-1, "interfering")])
def test_a_head_that_always_writes_for_or_against_the_answer_is_named_for_it(word_tokenizer, sign, role):
    """Its values are constant, and what it writes competes with what all other heads and layers write."""
    task = word_task(4).take([0])
    model = one_writer(word_tokenizer, task.examples[0], sign)
    scores = hw.score(model, task, "gating", reference="zero", seeds=2, updates=60)
    roles = {name: np.array(values) for name, values in scores.details["roles"].items()}
    labels = role_labels(1 - roles["interference"], roles["facilitation"])
    assert (labels[:, 2, 1] == role).all(), labels[:, 2, 1]
