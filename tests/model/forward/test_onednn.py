"""Products by oneDNN against torch's own."""

from __future__ import annotations

import platform

import pytest
import torch
from torch import nn
from torch.nn import functional

import headwise as hw
from headwise.metrics import metric
from headwise.model.forward import onednn
from headwise.model.forward.onednn import faster_products, onednn_works
from headwise.model.measure.engine import Engine
from headwise.model.verify.tiny import tiny_model
from helpers import word_task

needs_onednn = pytest.mark.skipif(not onednn_works(), reason="this torch has no oneDNN product")


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="only x86 uses it")
def test_this_torch_still_has_the_product_under_its_private_name():
    assert onednn_works(), "torch has changed: see model/forward/onednn.py"


def test_a_torch_without_the_product_is_warned_about_and_done_without(monkeypatch, caplog):
    monkeypatch.setattr(onednn.platform, "machine", lambda: "x86_64")

    def gone(*_):
        raise AttributeError("no such operator")

    monkeypatch.setattr(onednn, "_by_onednn", gone)
    onednn_works.cache_clear()
    try:
        assert not onednn_works()
    finally:
        onednn_works.cache_clear()
    assert "has no oneDNN product (no such operator); passes are slower" in caplog.text


def frozen(module):
    return module.requires_grad_(False)


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 24), (3, 1, 24), (2, 5, 24)])
def test_values_and_slopes_of_a_product_are_those_of_torch(bias, shape):
    torch.manual_seed(0)
    layer = frozen(nn.Linear(24, 40, bias=bias))
    hidden = torch.randn(*shape, requires_grad=True)
    weights = torch.randn(*shape[:-1], 40)
    expected = layer(hidden)
    (slopes,) = torch.autograd.grad((expected * weights).sum(), hidden)
    with faster_products(layer):
        found = layer(hidden)
        assert "_Product" in found.grad_fn.name()
        (found_slopes,) = torch.autograd.grad((found * weights).sum(), hidden)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_slopes, slopes)


@needs_onednn
def test_inputs_that_are_views_of_something_else_are_multiplied_rightly():
    torch.manual_seed(0)
    layer, wide = frozen(nn.Linear(8, 5)), torch.randn(6, 3, 16)
    with faster_products(layer):
        for hidden in (wide[:, :, 4:12], wide.transpose(0, 1)[:, :, :8], wide[::2, :, :8], wide[:1, :1, :8]):
            torch.testing.assert_close(layer(hidden), functional.linear(hidden, layer.weight, layer.bias))


@needs_onednn
def test_only_frozen_plain_float32_layers_change_and_only_meanwhile():
    class Own(nn.Linear):
        pass

    layers = nn.ModuleList(
        [frozen(nn.Linear(4, 4)), nn.Linear(4, 4), frozen(nn.Linear(4, 4).double()), frozen(Own(4, 4))]
    )
    with faster_products(layers):
        assert ["forward" in vars(layer) for layer in layers] == [True, False, False, False]
        assert layers[0](torch.empty(0, 4)).shape == (0, 4)
    assert not any("forward" in vars(layer) for layer in layers)


def test_without_onednn_the_model_runs_as_it_is(monkeypatch, tiny):
    expected = Engine(tiny, word_task(4), metric("mean_logprob")).gradients()
    monkeypatch.setattr(onednn, "onednn_works", lambda: False)
    found = Engine(tiny, word_task(4), metric("mean_logprob")).gradients()
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "gpt_neox", "mixtral", "gptj"])
def test_gradients_of_many_families_are_those_of_the_model_as_it_is(word_tokenizer, family, monkeypatch):
    model = hw.load(tiny_model(family, vocab_size=len(word_tokenizer)), tokenizer=word_tokenizer, name=family)
    task = word_task(4, equal_length=False)
    values, slopes = Engine(model, task, metric("mean_logprob")).gradients()
    assert abs(slopes).max() > 1e-4
    monkeypatch.setattr(onednn, "onednn_works", lambda: False)
    expected = Engine(model, task, metric("mean_logprob")).gradients()
    assert values == pytest.approx(expected[0], abs=1e-5)
    assert slopes == pytest.approx(expected[1], abs=1e-5)
