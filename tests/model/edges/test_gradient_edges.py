"""Gradient edges against finite differences of the exact definition, and their sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.metrics import metric
from headwise.model.edges.contributions import contributions
from headwise.model.edges.exact import ExactEdges
from headwise.model.edges.parts import take_apart
from headwise.model.measure.engine import Engine
from headwise.model.verify.tiny import tiny_model
from helpers import word_model, word_task

ALL = ("heads", "mlps", "input")
STEP = 1e-6


def loaded64(family, tokenizer):
    """In float64: families whose norms do not pass through float32 whatever the weights."""
    hf = tiny_model(family, vocab_size=len(tokenizer)).double()
    return hw.load(hf, tokenizer=tokenizer, name=family)


def finite_differences(model, task, edges, reference):
    """The effect of a small part of each replacement, divided by that part: two steps, forwards and backwards."""
    engine = Engine(model, task, metric("logit_diff"), reference=reference, components=ALL)
    parts, block = take_apart(model), engine.table.block(range(len(task)))
    senders = list({edge.sender for edge in edges})
    slopes = 0.0
    with torch.no_grad():
        for sign in (1, -1):
            plain = contributions(model, parts, block, senders)
            plain.deltas = {sender: sign * STEP * delta for sender, delta in plain.deltas.items()}
            replaced, full = ExactEdges(engine, parts, block, plain, {}).values(edges)
            slopes = slopes + sign * (full - replaced) / (2 * STEP)
    return slopes.T


def assert_edges_sum_to(nodes, found, abs=1e-6):
    """On every example the edges out of each sender sum to its score."""
    for sender in dict.fromkeys(edge.sender for edge in found):
        total = found.examples[:, [n for n, edge in enumerate(found) if edge.sender == sender]].sum(axis=1)
        assert total == pytest.approx(nodes.examples[:, sender.layer, sender.head], abs=abs), str(sender)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt", "starcoder2"])
@pytest.mark.parametrize("reference", ["zero", "mean", "patch"])
def test_gradient_edges_equal_finite_differences_of_the_exact_definition(family, reference, word_tokenizer):
    model, task = loaded64(family, word_tokenizer), word_task(3)
    found = hw.edges(model, task, "attribution", reference=reference, components=ALL, progress=False)
    # A head's edge to its own MLP is replaced inside the block, which has no small part: the next test has it.
    some = [
        n
        for n, e in enumerate(found.edges)
        if not (e.receiver.slot == "MLP" and e.sender.layer == e.receiver.layer)
    ]
    slopes = finite_differences(model, task, [found.edges[n] for n in some], reference)
    assert found.examples[:, some] == pytest.approx(slopes, rel=1e-3, abs=1e-7 * np.abs(slopes).max())


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
@pytest.mark.parametrize("reference", ["zero", "patch"])
def test_attribution_edges_out_of_a_sender_sum_to_its_node_score(family, reference, word_tokenizer):
    """Also those of a head to its own MLP: what a head writes is read along its edges, and along nothing else."""
    model, task = loaded64(family, word_tokenizer), word_task(3)
    found = hw.edges(model, task, "attribution", reference=reference, components=ALL, progress=False)
    nodes = hw.score(model, task, "attribution", reference=reference, components=ALL, progress=False)
    assert_edges_sum_to(nodes, found)


@pytest.mark.parametrize("reference", ["mean", "patch"])
def test_integrated_edges_out_of_a_sender_sum_to_its_integrated_score(tiny64, reference):
    task = word_task(3)
    found = hw.edges(tiny64, task, "integrated", reference=reference, components=ALL, steps=7, progress=False)
    nodes = hw.score(tiny64, task, "integrated", reference=reference, components=ALL, steps=7, progress=False)
    assert_edges_sum_to(nodes, found)


def test_all_integrated_edges_sum_to_what_the_model_adds_to_nothing(tiny64):
    task = word_task(4)
    found = hw.edges(tiny64, task, "integrated", reference="mean", components=ALL, progress=False)
    engine = Engine(tiny64, task, metric("logit_diff"), reference="mean", components=ALL)
    ends = engine.measure(np.stack([np.zeros(engine.layout.shape), np.ones(engine.layout.shape)])).values
    effect = (ends[1] - ends[0]).mean()
    assert found.examples.sum(axis=1).mean() == pytest.approx(effect, rel=0.05)
    assert found.details["gap"] <= 0.05


@pytest.mark.parametrize("family", ["gemma3_text", "olmo2", "flex_olmo", "nanochat"])
@pytest.mark.parametrize(("reference", "steps"), [("mean", 6), ("zero", 20)])
def test_a_norm_before_the_stream_bends_no_sum_of_integrated_edges(family, reference, steps):
    """After heads, before experts that have no slope (FlexOlmo), or after the embeddings (nanochat).

    Towards zero such a norm bends more and more: at low gates only the slope itself is right.
    """
    model, task = word_model(family), word_task(2)
    options = {"reference": reference, "components": ALL, "steps": steps, "progress": False}
    found, nodes = (
        hw.edges(model, task, "integrated", **options),
        hw.score(model, task, "integrated", **options),
    )
    assert_edges_sum_to(nodes, found, abs=1e-4 * np.nanmax(np.abs(nodes.examples)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("family", "linear"), [("llama", True), ("granite", True), ("gemma3_text", False), ("olmo2", False)]
)
def test_a_norm_after_the_heads_is_seen_in_every_precision(family, linear, dtype, word_tokenizer):
    hf = tiny_model(family, vocab_size=len(word_tokenizer)).to(dtype)
    parts = take_apart(hw.load(hf, tokenizer=word_tokenizer, name=family))
    assert [part.linear for part in parts.blocks] == [linear] * len(parts.blocks)


def test_integrated_edges_of_kl_sum_to_its_integrated_score(tiny64):
    """The metric compares with the plain model, whose logits each level needs beside its own."""
    options = {"metric": "kl", "reference": "mean", "components": ALL, "steps": 4, "progress": False}
    found, nodes = (ask(tiny64, word_task(3), "integrated", **options) for ask in (hw.edges, hw.score))
    assert_edges_sum_to(nodes, found)


def test_a_metric_without_a_gradient_is_refused_by_name(tiny):
    with pytest.raises(hw.HeadwiseError, match=r"accuracy.*use logit_diff"):
        hw.edges(tiny, word_task(2), "attribution", metric="accuracy", progress=False)
