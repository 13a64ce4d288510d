"""Effects of one head at one position, against one forward pass of plain hooks for each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.heads import single_gates
from headwise.metrics import metric
from headwise.model.measure.by_position import position_effects, position_gradients
from headwise.model.measure.engine import Engine
from helpers import HeadsByHook, answers, plain_logits, recorded, word_model, word_task


def references(model, task, reference):
    """For each example, layer -> `[T, H, D]`: what a head's output is replaced by."""
    prompts = [recorded(model, example.prompt) for example in task]
    if reference == "patch":
        return [recorded(model, example.counterfactual) for example in task]
    if reference == "mean":
        mean = {layer: torch.cat([of[layer] for of in prompts]).mean(0) for layer in prompts[0]}
        return [{layer: mean[layer].expand_as(z) for layer, z in of.items()} for of in prompts]
    return [{layer: torch.zeros_like(z) for layer, z in of.items()} for of in prompts]


def by_hooks(model, task, reference):
    """m(all heads) − m(one head replaced at one position) `[heads, E, T]`; NaN where a prompt is shorter."""
    longest = max(len(model.tokens(example.prompt)) for example in task)
    effects = np.full((len(model.heads()), len(task), longest), np.nan)
    for e, (example, other) in enumerate(zip(task, references(model, task, reference), strict=True)):
        ids = model.tokens(example.prompt)
        target, foil = answers(model, example)
        last = plain_logits(model, ids)[-1]
        for number, head in enumerate(model.heads()):
            for t in range(len(ids)):

                def edit(layer, z, head=head, t=t, other=other):
                    z = z.clone()
                    if layer == head.layer:
                        z[:, t, head.head] = other[layer][t, head.head]
                    return z

                with HeadsByHook(model, edit):
                    changed = plain_logits(model, ids)[-1]
                effects[number, e, t] = (last[target] - last[foil]) - (changed[target] - changed[foil])
    return effects


def engine_of(model, task, **options):
    return Engine(model, task, metric("logit_diff"), **options)


@pytest.mark.parametrize("reference", ["zero", "mean", "patch"])
@pytest.mark.parametrize("past", [True, False])
def test_every_head_at_every_position_gives_what_plain_hooks_give(tiny, reference, past):
    task = word_task(3, equal_length=False)
    assert tiny.capabilities.past
    object.__setattr__(tiny.capabilities, "past", past)  # without: every token is run with every variant
    engine = engine_of(tiny, task, reference=reference, batch_tokens=90)
    effects = position_effects(engine, single_gates(tiny.heads(), tiny.shape))
    np.testing.assert_allclose(effects, by_hooks(tiny, task, reference), atol=1e-5)


def test_positions_before_the_first_difference_are_exactly_0_and_cost_nothing(tiny):
    task = word_task(4)  # the counterfactuals differ from the second word on
    gates = single_gates(tiny.heads(), tiny.shape)
    engine, whole = engine_of(tiny, task, reference="patch"), engine_of(tiny, task)
    effects, _ = position_effects(engine, gates), position_effects(whole, gates)
    assert not effects[:, :, 0].any()
    assert engine.rows_spent * 6 == whole.rows_spent * 5


@pytest.mark.parametrize(
    ("family", "able"), [("gpt2", True), ("gpt_neox", True), ("gemma3_text", False), ("bloom", False)]
)
def test_tokens_before_a_position_are_run_once_where_that_is_exact(family, able):
    model, task = word_model(family), word_task(3, equal_length=False)
    gates = single_gates(model.heads()[:3], model.shape)
    found = position_effects(engine_of(model, task), gates)
    assert model.capabilities.past is able
    object.__setattr__(model.capabilities, "past", False)
    np.testing.assert_allclose(found, position_effects(engine_of(model, task), gates), atol=1e-5)


def test_slopes_at_positions_are_finite_differences_and_sum_to_the_slope_of_the_whole_gate(tiny64):
    task = word_task(2, equal_length=False)
    engine = engine_of(tiny64, task, reference="mean")
    slopes = position_gradients(engine)
    np.testing.assert_allclose(np.nansum(slopes, -1), engine.gradients()[1], atol=1e-10)
    step = 1e-4
    gates = np.ones((2, *tiny64.shape))
    gates[:, 1, 2] += (step, -step)
    for t in range(4):
        up, down = engine.measure(gates, at=t).values
        np.testing.assert_allclose(slopes[:, 1, 2, t], (up - down) / (2 * step), atol=1e-6)
    assert np.isnan(slopes[0, ..., 4:]).all()
