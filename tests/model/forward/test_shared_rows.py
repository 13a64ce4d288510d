"""Variants that are alike up to a block are computed once up to it, and no number changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.heads import Head, keep_gates, mask_gates, single_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.verify.proof import verify
from headwise.model.verify.tiny import tiny_model
from helpers import word_model, word_task


def nested(model, make=mask_gates):
    """The masks of a curve: each adds a head to the one before, in an order of chance."""
    heads = model.heads()
    order = [heads[i] for i in np.random.default_rng(1).permutation(len(heads))]
    return np.stack([make(order[:k], model.shape) for k in range(len(order) + 1)])


def measured(model, gates, shares, **options):
    model.capabilities = replace(model.capabilities, share_rows=shares)
    engine = Engine(model, word_task(4), metric("logit_diff"), **options)
    return engine.measure(gates)


def rows_computed(model, work):
    """Rows that went through each decoder block in all, counted at its attention module."""
    counts = dict.fromkeys(range(len(model.hooks.blocks)), 0)
    handles = [
        block.self_attn.register_forward_pre_hook(
            lambda _, args, kwargs, layer=layer: counts.update(
                {layer: counts[layer] + len(kwargs["hidden_states"])}
            ),
            with_kwargs=True,
        )
        for layer, block in enumerate(model.hooks.blocks)
    ]
    work()
    for handle in handles:
        handle.remove()
    return counts


@pytest.mark.parametrize("make", [mask_gates, keep_gates])
@pytest.mark.parametrize("options", [{}, {"reference": "mean"}, {"batch_tokens": 90}, {"positions": "last"}])
def test_a_curve_has_the_same_values_with_and_without_sharing(tiny, make, options):
    gates = nested(tiny, make)
    alone, shared = measured(tiny, gates, False, **options), measured(tiny, gates, True, **options)
    np.testing.assert_allclose(shared.values, alone.values, atol=1e-5)
    np.testing.assert_allclose(shared.full, alone.full, atol=1e-5)
    assert np.ptp(shared.values) > 1e-3


def test_each_block_computes_every_beginning_of_the_gates_once(tiny):
    gates = nested(tiny)
    examples = 4
    counts = rows_computed(tiny, lambda: measured(tiny, gates, True))
    last = tiny.shape[0] - 1
    for block in range(last):
        beginnings = {gate[: block + 1].tobytes() for gate in gates}
        # One pass with every beginning; that of the baseline is among them.
        assert counts[block] == examples * len(beginnings)
    assert counts[last] == examples * (len(gates) + 1)
    assert sum(counts.values()) < 0.7 * examples * len(gates) * tiny.shape[0]


def test_single_heads_of_several_layers_share_one_batch(tiny):
    gates = single_gates(tiny.heads(), tiny.shape)
    counts = rows_computed(tiny, lambda: measured(tiny, gates, True))
    heads = tiny.shape[1]
    # Block k computes the baseline and every head of blocks 0 to k once per example, the last block all variants.
    assert list(counts.values()) == [4 * (1 + heads * (k + 1)) for k in range(tiny.shape[0])]
    np.testing.assert_allclose(
        measured(tiny, gates, True).effects, measured(tiny, gates, False).effects, atol=1e-5
    )


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt", "bloom", "gemma3_text", "falcon"])
def test_other_families_share_or_run_in_full_with_the_same_values(family):
    model = word_model(family)
    proven, gates = model.capabilities.share_rows, nested(model)
    if family in ("gpt2", "gpt_neox", "opt"):
        assert proven
    np.testing.assert_allclose(
        measured(model, gates, proven).values, measured(model, gates, False).values, atol=1e-5
    )


def test_a_model_whose_blocks_count_rows_in_their_own_way_runs_in_full():
    hf = tiny_model("llama", vocab_size=40)
    rows = []
    hf.register_forward_pre_hook(
        lambda _, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )

    def scaled(_, args, output):
        return output * torch.ones(rows[-1], 1, 1)

    hf.model.layers[1].register_forward_hook(scaled)
    inner = hf.model.layers[1].mlp
    inner.register_forward_hook(scaled)
    assert not verify(hf)[2].share_rows
    assert verify(tiny_model("llama", vocab_size=40))[2].share_rows


def test_as_many_rows_as_tokens_are_not_taken_for_one_another(tiny):
    task = word_task(1)
    length = len(Engine(tiny, task, metric("logit_diff")).rows[0].ids)
    heads = [Head(2, h % 4) for h in range(length - 1)]
    gates = np.stack([mask_gates(heads[: k + 1], tiny.shape) for k in range(length - 1)])  # and the baseline
    tiny.capabilities = replace(tiny.capabilities, share_rows=True)
    shared = Engine(tiny, task, metric("logit_diff")).measure(gates).values
    tiny.capabilities = replace(tiny.capabilities, share_rows=False)
    np.testing.assert_allclose(
        shared, Engine(tiny, task, metric("logit_diff")).measure(gates).values, atol=1e-5
    )
