"""The bounded objective: its value and slope against plain autograd, the multiplier against a loop."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.model.sparse import edge_gates as sparse
from headwise.sparsify import student as student_module
from headwise.sparsify.student import Multiplier, excess


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_excess_and_its_slope_equal_plain_autograd(weight, monkeypatch):
    monkeypatch.setattr(student_module, "_AT_ONCE", 40)  # several blocks
    generator = torch.Generator().manual_seed(0)
    student, dense = (torch.randn(2, 5, 11, generator=generator) for _ in range(2))
    ids = torch.randint(11, (2, 5), generator=generator)
    one, two = (student.clone().requires_grad_() for _ in range(2))
    ours = excess(one, dense, ids, torch.tensor([weight, 0.0]))
    (3 * ours).backward()
    log_p, log_q = two[:, :-1].log_softmax(-1), dense[:, :-1].log_softmax(-1)
    divergence = torch.nn.functional.kl_div(log_p, log_q, log_target=True, reduction="none").sum(-1)
    own = torch.nn.functional.one_hot(ids[:, 1:], 11)
    entropies = -(own * log_p).sum(-1) + (own * log_q).sum(-1)
    first = (1 - weight) * divergence[0] + weight * entropies[0]
    expected = (first + divergence[1]).mean() / 2  # the second sequence was sampled
    (3 * expected).backward()
    assert ours.item() == pytest.approx(expected.item(), abs=1e-6)
    assert float((one.grad - two.grad).abs().max()) < 1e-6


def test_the_multiplier_grows_while_the_bound_is_broken_and_falls_while_there_is_room():
    price = Multiplier(10.0, 0.05, 0.02, torch.device("cpu"))
    value, average = 10.0, 0.02
    for step in range(60):
        now = 0.05 if step < 30 else 0.001
        before = float(price.value)
        price.update(torch.tensor(now))
        average = 0.95 * average + 0.05 * now
        value *= math.exp(0.05 * max(-1.0, min(1.0, (average - 0.02) / 0.02)))
        assert float(price.value) == pytest.approx(value, rel=1e-4)
        assert (float(price.value) > before) == (average > 0.02)
    for _ in range(2000):
        price.update(torch.tensor(5.0))
    assert float(price.value) == Multiplier.MOST


def test_noisy_gates_open_as_often_as_the_sigmoid_says_and_pass_its_slope():
    torch.manual_seed(0)
    scores = torch.linspace(-3, 3, 7).repeat(1, 1, 20_000, 1).requires_grad_()
    bias, temperature = torch.tensor([0.5]), torch.tensor(0.7)
    allowed = torch.ones(1, 1, 20_000, 7, dtype=torch.bool)
    allowed[..., -1] = False
    weights, opened = sparse._noisy_weights(scores, bias, temperature, allowed, torch.rand_like(scores))
    plain = scores.detach().masked_fill(~allowed, -1e30).softmax(-1)
    chance = torch.sigmoid((scores.detach()[0, 0, 0] + 0.5) / 0.7)
    often = (weights[0, 0] > 0).float().mean(0)
    assert float((often - chance)[:-1].abs().max()) < 0.01
    assert float(often[-1]) == 0
    assert opened.item() == pytest.approx(20_000 * float(chance[:-1].sum()), rel=1e-4)
    # An open edge lets all of its weight through, whatever the soft number is.
    assert float((weights.detach() - plain)[weights > 0].abs().max()) < 1e-6
    opened.backward()
    slope = chance * (1 - chance) / 0.7
    assert float((scores.grad[0, 0, 5, :-1] - slope[:-1]).abs().max()) < 1e-5
    assert float(scores.grad[..., -1].abs().max()) == 0
