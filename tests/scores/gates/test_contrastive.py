"""Contrastive gates: the loss against autograd, and what they do to what they keep and lose."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.scores.gates.contrastive import contrast_gradients, contrastive
from headwise.scores.gates.fit import FitSettings
from helpers import word_task


@pytest.mark.parametrize("gap", [2.0, -3.0, -7.0])
def test_the_slopes_are_those_of_the_loss_with_the_inner_likelihood_held_fixed(gap):
    """Two made-up likelihoods of the gates, one `gap` above the other, through autograd."""

    def kept(gates):
        return (gates**2).sum((1, 2))

    def lost(gates):
        return kept(gates).detach() + gap + (gates - gates.detach()).sum((1, 2)) * 3

    def slopes_of(function):
        def slopes(gates, places):
            at = torch.tensor(gates, requires_grad=True)
            value = function(at)
            value.sum().backward()
            return value.detach().numpy(), at.grad.numpy()

        return slopes

    gates = np.random.default_rng(0).uniform(size=(2, 3, 4))
    value, slopes = contrast_gradients(slopes_of(kept), slopes_of(lost))(gates, np.arange(2))
    at = torch.tensor(gates, requires_grad=True)
    a, b = kept(at), lost(at)
    loss = -a + torch.clamp(b - a.detach(), min=-5.0)
    loss.sum().backward()
    np.testing.assert_allclose(value, -loss.detach().numpy())
    np.testing.assert_allclose(slopes, -at.grad.numpy())


def sides(seed):
    """Two ways of asking that end in another word, on sentences of their own."""
    task = word_task(12)
    ask = {"keep": " then", "lose": " and"}
    return tuple(
        hw.Task(name, tuple(hw.Example(e.prompt + options, e.target) for e in task.examples[seed::2]))
        for name, options in ask.items()
    )


def test_gates_move_what_they_keep_and_lose_apart_and_the_table_says_so(tiny):
    keep, lose = sides(0)
    held_out = {"other sentences": sides(1)}
    found = contrastive(tiny, keep, lose, held_out, seeds=(0, 1), settings=FitSettings(updates=40, stop=None))
    start, end = found.fit.likelihood[0], found.fit.likelihood[-1]
    assert (end > start + 0.5).all()
    table = found.table.set_index(["side", "seed"])
    assert len(table) == 2 * 3
    for side, task in zip(("keep", "lose"), held_out["other sentences"], strict=True):
        engine = Engine(tiny, task, metric("mean_logprob"))
        assert table.loc[(side, -1), "mean_logprob"] == pytest.approx(engine.full().mean(), abs=1e-6)
        under = engine.measure(found.gates).values.mean(axis=1)
        np.testing.assert_allclose(table.loc[side].loc[[0, 1], "mean_logprob"], under, atol=1e-5)
    summary = found.summary()
    assert set(summary.index) == {(s, g) for s in ("keep", "lose") for g in ("none", "contrastive")}


def test_a_held_out_pair_that_was_fitted_on_is_refused(tiny):
    keep, lose = sides(0)
    with pytest.raises(HeadwiseError, match="the held-out pair 'same' shares an example"):
        contrastive(tiny, keep, lose, {"same": (keep, lose)})
