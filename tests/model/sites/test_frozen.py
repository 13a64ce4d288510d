"""Frozen weights: no gradient of a weight is computed, and nothing is stored for one."""

from __future__ import annotations

import torch

from headwise.model.sites.patch import frozen, hooked
from headwise.model.verify.tiny import tiny_model


def _stored_inputs(hf, shift):
    """Of how many linear layers of the MLPs autograd stores the input, and the gradient by `shift`."""
    stored, inputs = set(), []
    layers = [block.mlp.down_proj for block in hf.model.layers]
    # `shift` makes the residual stream need a gradient from the embeddings on, as a gate does.
    embeddings = hf.get_input_embeddings()
    with (
        hooked([embeddings], after=lambda _, __, ___, output: output + shift),
        hooked(layers, before=lambda _, arguments, __: inputs.append(arguments[0])),
        torch.autograd.graph.saved_tensors_hooks(lambda t: stored.add(t.data_ptr()) or t, lambda t: t),
    ):
        loss = hf(input_ids=torch.arange(3, 12)[None], use_cache=False).logits[0, -1].log_softmax(-1)[5]
        loss.backward()
    return sum(one.data_ptr() in stored for one in inputs), shift.grad


def test_a_backward_pass_of_a_frozen_model_stores_no_inputs_of_weights_and_gives_the_same_gradient():
    hf = tiny_model("llama")
    shift, other = (torch.zeros(1, requires_grad=True) for _ in range(2))
    with frozen(hf):
        stored, gradient = _stored_inputs(hf, shift)
        assert not any(parameter.requires_grad for parameter in hf.parameters())
    assert all(parameter.grad is None for parameter in hf.parameters())
    assert stored == 0
    stored, expected = _stored_inputs(hf, other)
    assert stored == len(hf.model.layers)
    assert all(parameter.grad is not None for parameter in hf.parameters())
    assert abs(expected) > 1e-4
    torch.testing.assert_close(gradient, expected)


def test_only_the_weights_that_needed_a_gradient_need_one_again():
    hf = tiny_model("llama")
    hf.lm_head.weight.requires_grad_(False)
    before = [parameter.requires_grad for parameter in hf.parameters()]
    with frozen(hf):
        pass
    assert [parameter.requires_grad for parameter in hf.parameters()] == before
    assert not all(before)
