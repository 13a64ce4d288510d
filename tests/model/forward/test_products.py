"""Products by oneDNN against torch's own, whatever the processor would choose."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual

import headwise as hw
from headwise.heads import single_gates
from headwise.metrics import metric
from headwise.model.forward import products
from headwise.model.forward.products import FEWEST, faster_products, onednn_is_right
from headwise.model.measure.engine import Engine
from headwise.model.verify.tiny import tiny_model
from helpers import word_task

pytestmark = pytest.mark.skipif(not onednn_is_right(), reason="this torch has no oneDNN product")


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)


def frozen_linear(bias=True):
    torch.manual_seed(0)
    return nn.Linear(24, 40, bias=bias).requires_grad_(False)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(FEWEST - 1, 24), (51, 24), (3, 1, 24), (2, 5, 24), (0, 24)])
def test_values_slopes_and_directions_of_a_product_are_those_of_torch(bias, shape):
    layer = frozen_linear(bias)
    hidden = torch.randn(*shape, requires_grad=True)
    weights, direction = torch.randn(*shape[:-1], 40), torch.randn(*shape)

    def everything():
        found = layer(hidden)
        (slopes,) = torch.autograd.grad((found * weights).sum(), hidden)
        with torch.no_grad(), dual_level():
            along = unpack_dual(layer(make_dual(hidden.detach(), direction))).tangent
        return found.detach(), slopes, along

    expected = everything()
    with faster_products(layer):
        found = everything()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_equal_rows_of_one_batch_give_equal_bits():
    """A head that does nothing must score exactly 0, wherever its rows are in the batch."""
    layer, rows = frozen_linear(), torch.randn(7, 24)
    with faster_products(layer), torch.no_grad():
        found = layer(rows.repeat(9, 1)).reshape(9, 7, 40)
    assert torch.equal(found, found[:1].expand_as(found))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_layers_of_another_kind_are_left_alone(dtype):
    """On a GPU too: there every call of Python counts."""
    layer, other = frozen_linear().to(dtype), frozen_linear().to("meta")
    with faster_products(nn.Sequential(layer, other)):
        assert not {"forward"} & {*vars(layer), *vars(other)}


def test_weights_that_are_trained_keep_their_gradients():
    layer = frozen_linear().requires_grad_(True)
    hidden = torch.randn(16, 24)
    expected = torch.autograd.grad(layer(hidden).square().sum(), layer.weight)[0]
    with faster_products(layer):
        found = torch.autograd.grad(layer(hidden).square().sum(), layer.weight)[0]
    assert torch.equal(found, expected)


def test_effects_and_gradients_of_gates_are_those_of_torchs_products(word_tokenizer, monkeypatch):
    model = hw.load(tiny_model("llama", vocab_size=len(word_tokenizer)), tokenizer=word_tokenizer)
    task = word_task(8)

    def everything():
        engine = Engine(model, task, metric("logit_diff"))
        return engine.measure(single_gates(model.heads(), model.shape)).effects, engine.gradients()[1]

    calls = []
    monkeypatch.setattr(
        products, "_by_onednn", lambda *args, own=products._by_onednn: calls.append(1) or own(*args)
    )
    found = everything()
    assert calls
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    for one, other in zip(found, everything(), strict=True):
        assert one == pytest.approx(other, abs=1e-5 * np.abs(other).max())
