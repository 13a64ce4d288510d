"""Curves of kept edges: the families that are refused, and what a metric that compares is measured against."""

from __future__ import annotations

import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.model.verify.tiny import tiny_model
from headwise.sweeps.edge_curve import edge_curve
from helpers import HeadsByHook, plain_logits, word_task


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_after_the_heads_is_refused_in_every_precision(dtype, word_tokenizer):
    hf = tiny_model("gemma3_text", vocab_size=len(word_tokenizer)).to(dtype)
    model, task = hw.load(hf, tokenizer=word_tokenizer, name="gemma"), word_task(3)
    scores = hw.edges(model, task, reference="mean", into="logits", progress=False)
    with pytest.raises(HeadwiseError, match="a norm stands between"):
        edge_curve(model, task, scores, progress=False)


def test_kl_with_no_edge_to_the_logits_is_that_of_heads_held_out_of_the_final_stream(tiny):
    task = word_task(3)
    scores = hw.edges(tiny, task, metric="kl", reference="zero", into="logits", progress=False)
    curve = edge_curve(tiny, task, scores, k=[0], progress=False)
    assert curve.values[-1] == pytest.approx(0, abs=1e-5)  # every edge kept: the plain model
    for value, example in zip(curve.values[0], task, strict=True):
        ids = tiny.tokens(example.prompt)
        full, without = (
            logits[-1].log_softmax(-1) for logits in (plain_logits(tiny, ids), _without(tiny, ids))
        )
        assert value == pytest.approx(float(-(full.exp() * (full - without)).sum()), abs=1e-5)


def _without(model, ids):
    """The logits where the final norm reads a stream from which what every head wrote is taken away."""
    wrote = []

    def note(layer, z):
        wrote.append(model.hf.model.layers[layer].self_attn.o_proj.weight @ z[0].flatten(-2).T)
        return z

    with HeadsByHook(model, note):
        plain_logits(model, ids)
    taken = sum(wrote).T.detach()
    hook = model.hf.model.norm.register_forward_pre_hook(lambda _, args: (args[0] - taken,))
    try:
        return plain_logits(model, ids)
    finally:
        hook.remove()
