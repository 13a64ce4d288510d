"""log p of tokens with a backward pass by hand, against torch's log softmax."""

from __future__ import annotations

import pytest
import torch

from headwise.model import backward
from headwise.model.backward import token_logprobs


@pytest.mark.parametrize("numbers", [1, 40, 2**20])
def test_values_and_slopes_are_those_of_log_softmax_whatever_is_worked_on_at_a_time(monkeypatch, numbers):
    monkeypatch.setattr(backward, "CPU_NUMBERS", numbers)
    torch.manual_seed(0)
    logits = (30 * torch.randn(3, 4, 17, dtype=torch.float64)).requires_grad_()
    tokens, weights = torch.randint(17, (3, 4)), torch.randn(3, 4, dtype=torch.float64)
    expected = logits.log_softmax(-1).gather(2, tokens[:, :, None])[:, :, 0]
    (slopes,) = torch.autograd.grad((expected * weights).sum(), logits)
    found = token_logprobs(logits, tokens)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad((found * weights).sum(), logits)[0], slopes)
    with torch.no_grad():
        torch.testing.assert_close(token_logprobs(logits, tokens), expected)


def test_slopes_hold_for_logits_that_lie_anyhow_in_memory():
    logits = torch.randn(5, 4, 3, dtype=torch.float64).transpose(0, 2).requires_grad_()
    tokens = torch.randint(5, (3, 4))
    assert torch.autograd.gradcheck(lambda x: token_logprobs(x, tokens), (logits,))
