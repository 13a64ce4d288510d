"""Compiled parts: which they are, that they are put back, and that compiling changes no number."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.heads import Head, single_gates
from headwise.metrics import metric
from headwise.model.forward import kernels
from headwise.model.forward.kernels import Compiled
from headwise.model.measure.engine import Engine
from headwise.model.sites.patch import without_cudnn_sdpa
from headwise.model.verify.tiny import tiny_model
from helpers import word_task


@pytest.fixture
def noted(monkeypatch):
    """Nothing is compiled; what would have been notes its calls."""
    calls = []

    def noting(work, sizes):
        def run(*args, **kwargs):
            calls.append(work.__qualname__.split(".")[0])
            return work(*args, **kwargs)

        return run

    monkeypatch.setattr(kernels, "_compiled", noting)
    return calls


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama", {"LlamaRMSNorm": 2, "LlamaMLP": 1, "apply_rotary_pos_emb": 1}),
        ("gemma3_text", {"Gemma3RMSNorm": 6, "Gemma3MLP": 1, "apply_rotary_pos_emb": 1}),
        ("gpt2", {"LayerNorm": 2}),  # its feed-forward part is made of transposed maps
        ("mixtral", {"MixtralRMSNorm": 2, "apply_rotary_pos_emb": 1}),  # and here a router chooses
        ("gpt_neox", {"LayerNorm": 2, "GPTNeoXMLP": 1, "apply_rotary_pos_emb": 1}),
    ],
)
def test_norms_feed_forward_parts_and_rotary_embeddings_are_compiled(family, expected, noted):
    model = hw.load(tiny_model(family), name=family)
    parts = Compiled(model.hooks)
    assert parts.works
    noted.clear()
    with parts.acting():
        model.hf(input_ids=torch.arange(3, 9)[None], use_cache=False)
    layers = model.shape[0]
    assert {name: noted.count(name) / layers for name in set(noted)} == expected


def test_what_was_compiled_is_put_back(noted):
    model = hw.load(tiny_model("llama"), name="tiny")
    family = sys.modules[type(model.hooks.sites[0].module).__module__]
    before = family.apply_rotary_pos_emb
    parts = Compiled(model.hooks)
    with parts.acting():
        assert family.apply_rotary_pos_emb is not before
        assert "forward" in vars(parts.parts[0])
    assert family.apply_rotary_pos_emb is before
    assert not any("forward" in vars(module) for module in model.hf.modules())


def test_a_compiler_that_fails_or_errs_is_done_without(monkeypatch, caplog):
    model = hw.load(tiny_model("llama"), name="tiny")

    def broken(work, sizes):
        def run(*args, **kwargs):
            raise RuntimeError("no C compiler\nand more")

        return run

    monkeypatch.setattr(kernels, "_compiled", broken)
    assert not Compiled(model.hooks).works
    assert "does not work here (no C compiler)" in caplog.text
    monkeypatch.setattr(kernels, "_compiled", lambda work, sizes: lambda part, *args: 1.5 * work(part, *args))
    monkeypatch.setattr(kernels, "_families", lambda hooks: [])
    assert not Compiled(model.hooks).works
    assert "compiled parts change the logits" in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_really_compiled_parts_give_the_same_scores(word_tokenizer):
    hf = tiny_model("llama", vocab_size=len(word_tokenizer)).to(torch.bfloat16)
    model = hw.load(hf, tokenizer=word_tokenizer, name="tiny", compile=True)
    assert model.capabilities.compiled.works
    engine = Engine(model, word_task(4), metric("logit_diff"))
    gates = single_gates([Head(0, 1), Head(2, 3)], model.shape)
    plain = engine.measure(gates).values
    with model.capabilities.compiled.acting():
        joined = engine.measure(gates).values
    np.testing.assert_allclose(joined, plain, atol=0.02 * np.abs(plain).max())


def test_the_width_of_one_model_does_not_leave_that_of_the_next_open(monkeypatch):
    """Rows and tokens may differ from call to call, and torch is to leave them open; widths it is to know."""
    open_widths = []

    def spy(graph, inputs):
        given = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
        streams = [t for t in given if isinstance(t, torch.Tensor) and t.dim() >= 3]
        open_widths.extend(isinstance(t.shape[-1], torch.SymInt) for t in streams)
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda work, **_: real(work, backend=spy))
    kernels._compiled.cache_clear()
    try:
        for width, heads in ((32, 4), (48, 4), (64, 4), (64, 8)):
            sizes = {"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads}
            model = hw.load(tiny_model("llama", head_dim=width // heads, **sizes), name=f"tiny-{width}")
            assert model.capabilities.compiled.works
            with torch.no_grad(), model.capabilities.compiled.acting():
                for tokens in (5, 9):
                    model.hf(input_ids=torch.arange(3, 3 + tokens)[None], use_cache=False)
    finally:
        kernels._compiled.cache_clear()
    assert open_widths
    assert not any(open_widths)


def test_cudnn_is_left_out_of_attention_and_let_in_again():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with without_cudnn_sdpa():
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
