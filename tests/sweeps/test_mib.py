"""MIB's metric, worked out a second time with hooks of plain PyTorch and MIB's own loop over fractions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.verify.tiny import tiny_model
from headwise.sweeps.mib import FRACTIONS, importances, mib_layout
from helpers import plain_logits, recorded, word_task

PARTS = ["heads", "mlps", "input"]


class Recorded:
    """Every component's output on one prompt: heads before the output projection, MLPs, embeddings."""

    def __init__(self, model, text):
        self.heads = recorded(model, text)
        self.modules = {}
        blocks = model.hf.model.layers
        modules = {Head(0, -2): model.hf.model.embed_tokens}
        modules |= {Head(i, -1): block.mlp for i, block in enumerate(blocks)}
        handles = [
            module.register_forward_hook(
                lambda _, __, out, name=name: self.modules.update({name: out.clone()})
            )
            for name, module in modules.items()
        ]
        plain_logits(model, model.tokens(text))
        for handle in handles:
            handle.remove()


def kept_logits(model, prompt, other, kept):
    """Logits after the prompt with every component but these taken from the other prompt."""
    from helpers import HeadsByHook

    seen = Recorded(model, other)

    def edit(layer, z):
        mixed = seen.heads[layer][None].clone()
        for head in range(z.shape[2]):
            if Head(layer, head) in kept:
                mixed[:, :, head] = z[:, :, head]
        return mixed

    handles = []
    modules = {Head(0, -2): model.hf.model.embed_tokens}
    modules |= {Head(i, -1): block.mlp for i, block in enumerate(model.hf.model.layers)}
    for name, module in modules.items():
        if name not in kept:
            handles.append(module.register_forward_hook(lambda _, __, out, name=name: seen.modules[name]))
    try:
        with HeadsByHook(model, edit):
            return plain_logits(model, model.tokens(prompt))[-1]
    finally:
        for handle in handles:
            handle.remove()


def by_hand(model, task, kept):
    """The mean logit difference with these components kept."""
    values = []
    for example in task:
        logits = kept_logits(model, example.prompt, example.counterfactual, set(kept))
        right, wrong = (model.tokens(text.strip())[-1] for text in (example.target, example.foils[0]))
        values.append(float(logits[right] - logits[wrong]))
    return np.mean(values)


def areas_by_hand(model, task, scores, absolute):
    """MIB's loop: faithfulness at each fraction, then the trapezoids one by one."""
    known = [one for one in scores.heads() if np.isfinite(scores[one])]
    every = model.layout(PARTS).listed()
    unscored = [one for one in every if one not in known]
    ranked = sorted(known, key=lambda one: -(abs(scores[one]) if absolute else scores[one]))
    none, full = by_hand(model, task, []), by_hand(model, task, every)
    shares = []
    for fraction in FRACTIONS:
        kept = [*ranked[: int(fraction * len(known))], *unscored]
        shares.append((by_hand(model, task, kept) - none) / (full - none))
    area = from_one = 0.0
    for i in range(len(shares) - 1):
        step = FRACTIONS[i + 1] - FRACTIONS[i]
        area += step * (shares[i] + shares[i + 1]) / 2
        from_one += step * (abs(1 - shares[i]) + abs(1 - shares[i + 1])) / 2
    return shares, area, from_one


@pytest.fixture(scope="module")
def model(word_tokenizer):
    tiny = tiny_model("llama", vocab_size=len(word_tokenizer), max_position_embeddings=512)
    return hw.load(tiny, tokenizer=word_tokenizer, name="tiny")


@pytest.fixture(scope="module")
def scores(model):
    return hw.score(model, word_task(4), "ablation", reference="patch", components=PARTS, progress=False)


@pytest.fixture(scope="module")
def result(model, scores):
    return hw.sweep.mib(model, word_task(5), scores, progress=False)


def test_cpr_and_cmd_are_those_of_plain_hooks_and_mibs_loop(model, scores, result):
    shares, area, _ = areas_by_hand(model, word_task(5), scores, absolute=False)
    np.testing.assert_allclose(result.faithfulness("signed"), shares, atol=2e-4)
    assert result.cpr.value == pytest.approx(area, abs=2e-4)
    shares, _, from_one = areas_by_hand(model, word_task(5), scores, absolute=True)
    np.testing.assert_allclose(result.faithfulness("absolute"), shares, atol=2e-4)
    assert result.cmd.value == pytest.approx(from_one, abs=2e-4)


def test_the_fractions_are_of_heads_mlps_and_the_input(model, result):
    layers, heads = model.shape
    assert result.components == 1 + layers * (heads + 1)
    assert result.k.tolist() == [int(fraction * result.components) for fraction in FRACTIONS]
    assert result.faithfulness()[-1] == pytest.approx(1)
    assert result.table()["k"].tolist() == result.k.tolist()


def test_without_the_input_nothing_is_explained(model, scores):
    values = scores.values.copy()
    values[0, -2] = -np.nanmax(np.abs(values)) - 1  # the last of the signed order
    last = replace(scores, values=values)
    shares = hw.sweep.mib(model, word_task(4), last, progress=False).faithfulness("signed")
    np.testing.assert_allclose(shares[:-1], 0, atol=1e-4)
    assert shares[-1] == pytest.approx(1)


def test_components_without_a_score_are_always_kept(model):
    alone = hw.score(model, word_task(4), "ablation", reference="patch", progress=False)
    found = hw.sweep.mib(model, word_task(4), alone, progress=False)
    assert found.components == len(model.heads())
    shares, area, _ = areas_by_hand(model, word_task(4), alone, absolute=False)
    np.testing.assert_allclose(found.faithfulness("signed"), shares, atol=2e-4)
    assert found.cpr.value == pytest.approx(area, abs=2e-4)


def test_intervals_hold_the_value_and_differences_are_paired(model, scores, result):
    for estimate in (result.cpr, result.cmd):
        assert estimate.lo <= estimate.value <= estimate.hi
    assert result.minus(result) == {"cpr": (0, 0, 0), "cmd": (0, 0, 0)}
    other = hw.sweep.mib(model, word_task(4), scores, progress=False)
    with pytest.raises(HeadwiseError, match="needs the same examples: 5 and 4"):
        result.minus(other)


def test_the_file_of_importances_has_every_node_in_mibs_words(model, scores, result, tmp_path):
    result.save_importances(tmp_path / "importances.json")
    made = json.loads((tmp_path / "importances.json").read_text())
    layers, heads = model.shape
    assert made["cfg"] == {
        "n_layers": layers,
        "n_heads": heads,
        "parallel_attn_mlp": False,
        "d_model": model.hf.config.hidden_size,
    }
    nodes = made["nodes"]
    assert nodes.pop("logits") == {"in_graph": True}
    names = ["input"]
    for layer in range(layers):
        names += [*(f"a{layer}.h{head}" for head in range(heads)), f"m{layer}"]
    assert list(nodes) == names
    assert nodes["a1.h2"]["score"] == scores[Head(1, 2)]
    assert nodes["m3"]["score"] == scores["MLP3"]
    assert nodes["input"]["score"] == scores["input"]
    assert made["edges"] == {}


def test_a_component_without_a_score_has_none_in_the_file(model):
    alone = hw.score(model, word_task(4), "random", progress=False)
    nodes = importances(alone, mib_layout(model))["nodes"]
    assert "score" not in nodes["m0"]
    assert "score" not in nodes["input"]
    assert "score" in nodes["a0.h0"]


def test_attention_and_mlp_side_by_side_are_seen(word_tokenizer):
    neox = tiny_model("gpt_neox", vocab_size=len(word_tokenizer))
    loaded = hw.load(neox, tokenizer=word_tokenizer, name="neox")
    assert mib_layout(loaded)["parallel_attn_mlp"] is bool(neox.config.use_parallel_residual)
    assert mib_layout(loaded)["d_model"] == neox.config.hidden_size


def test_examples_without_a_counterfactual_are_refused(model, scores):
    with pytest.raises(HeadwiseError, match="counterfactual"):
        hw.sweep.mib(model, [hw.Example("the cat", " sat", (" ran",))], scores, progress=False)
