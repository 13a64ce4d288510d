"""Gates on MLPs and on the embeddings: against edited weights, and against plain hooks one row at a time."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import COMPONENTS, Head, keep_gates, mask_gates, ones, single_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.measure.references import REFERENCES, register
from helpers import HeadsByHook, plain_difference, plain_logits, word_model, word_task

DOWN = {
    "llama": r"layers\.{}\.mlp\.down_proj\.",
    "gpt2": r"h\.{}\.mlp\.c_proj\.",
    "gptj": r"h\.{}\.mlp\.fc_out\.",
    "gpt_neox": r"layers\.{}\.mlp\.dense_4h_to_h\.",
    "gemma2": r"layers\.{}\.mlp\.down_proj\.",
    "gemma3_text": r"layers\.{}\.mlp\.down_proj\.",
    "opt": r"layers\.{}\.fc2\.",
    "phi": r"layers\.{}\.mlp\.fc2\.",
    "mixtral": r"layers\.{}\.(mlp|block_sparse_moe)\.experts\..*(down_proj|w2)",
    "cohere": r"layers\.{}\.mlp\.down_proj\.",
    "olmo2": r"layers\.{}\.mlp\.down_proj\.",
    "granite": r"layers\.{}\.mlp\.down_proj\.",
}
"""The parameters of the last linear map of an MLP, by family: with a block after its MLP norm (Gemma, OLMo 2), parallel
blocks (GPT-J, GPT-NeoX, Phi, Cohere), experts (Mixtral), matrices in the block itself (OPT), a multiplier (Granite)."""


def engine(model, task=None, reference="zero", **more):
    options = {"components": COMPONENTS, "reference": reference, **more}
    return Engine(model, task or word_task(4), metric("logit_diff"), **options)


@pytest.mark.parametrize("family", DOWN)
def test_a_gate_on_an_mlp_equals_zeroing_its_last_map(family):
    model = word_model(family)
    measured = engine(model)
    gates = mask_gates([Head(1, -1), Head(2, -1)], measured.layout)
    gated = measured.measure(gates[None]).values[0]
    heads_alone = Engine(model, measured.task, metric("logit_diff"))
    before = heads_alone.full()
    changed = 0
    with torch.no_grad():
        for name, parameter in model.hf.named_parameters():
            if any(re.search(DOWN[family].format(layer), name) for layer in (1, 2)):
                parameter.zero_()
                changed += 1
    assert changed >= 2
    np.testing.assert_allclose(gated, heads_alone.full(), atol=2e-5)
    assert np.abs(gated - before).max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gemma3_text", "opt", "granite"])
@pytest.mark.parametrize("reference", ["zero", "mean"])
def test_a_gate_on_the_input_equals_replacing_every_embedding(family, reference):
    model = word_model(family)
    measured = engine(model, reference=reference)
    gated = measured.measure(mask_gates([Head(0, -2)], measured.layout)[None]).values[0]
    table = model.hf.get_input_embeddings()
    tokens = [token for row in measured.rows for token in row.ids]
    with torch.no_grad():
        mean = table.weight[tokens].mean(0)
        table.weight[:] = mean if reference == "mean" else 0
    expected = Engine(model, measured.task, metric("logit_diff")).full()
    np.testing.assert_allclose(gated, expected, atol=2e-5)


def record(model, ids):
    """MLP outputs `[T, width]` by layer and the embeddings, by plain hooks."""
    seen, handles = {}, []
    modules = {
        **{n: layer.mlp for n, layer in enumerate(model.hf.model.layers)},
        -1: model.hf.model.embed_tokens,
    }
    for number, module in modules.items():
        handles.append(
            module.register_forward_hook(lambda _, __, out, n=number: seen.__setitem__(n, out[0].clone()))
        )
    heads = {}
    with HeadsByHook(model, lambda layer, z: heads.__setitem__(layer, z[0].clone()) or z):
        plain_logits(model, ids)
    for handle in handles:
        handle.remove()
    return heads, seen


def one_by_one(model, task, gates, references):
    """logit_diff of every (variant, example), each in its own pass, all edits by plain hooks."""
    layers = model.hf.model.layers
    values = np.empty((len(gates), len(task)))
    for v, gate in enumerate(torch.tensor(gates, dtype=torch.float32, device=model.device)):
        for e, example in enumerate(task):
            heads, others = references(e)

            def mix(g, z, r):
                return g * z + (1 - g) * r

            def edit(layer, z, gate=gate, heads=heads):
                return mix(gate[layer, :-2][:, None], z, heads[layer])

            handles = [
                layer.mlp.register_forward_hook(
                    lambda _, __, out, n=n, gate=gate, others=others: mix(gate[n, -1], out, others[n])
                )
                for n, layer in enumerate(layers)
            ]
            handles.append(
                model.hf.model.embed_tokens.register_forward_hook(
                    lambda _, __, out, gate=gate, others=others: mix(gate[0, -2], out, others[-1])
                )
            )
            with HeadsByHook(model, edit):
                values[v, e] = plain_difference(model, example)
            for handle in handles:
                handle.remove()
    return values


def references_of(model, task, kind):
    """From an example to what replaces its heads, and its MLPs and embeddings."""
    prompts = [example.counterfactual if kind == "patch" else example.prompt for example in task]
    runs = [record(model, model.tokens(prompt)) for prompt in prompts]
    if kind == "patch":
        return lambda e: runs[e]
    if kind == "zero":
        return lambda e: tuple({n: 0 * out for n, out in part.items()} for part in runs[e])
    tokens = [{n: torch.stack([run[i][n] for run in runs]) for n in runs[0][i]} for i in (0, 1)]
    over = (0, 1) if kind == "mean" else 0
    means = tuple({n: out.mean(over) for n, out in part.items()} for part in tokens)
    return lambda e: means


def some_gates(layout):
    rng = np.random.default_rng(0)
    return np.stack(
        [
            ones(layout),
            np.zeros(layout.shape),
            mask_gates([Head(0, -2)], layout),
            mask_gates([Head(0, -1)], layout),
            mask_gates([Head(3, -1)], layout),
            mask_gates([Head(1, 2), Head(1, -1)], layout),
            mask_gates([Head(1, 2), Head(2, -1)], layout),
            keep_gates([Head(0, -2), Head(2, -1), Head(3, 1)], layout),
            *single_gates(layout.listed()[::3], layout),
            rng.uniform(0, 2, layout.shape),
        ]
    )


@pytest.mark.parametrize("kind", ["zero", "mean", "position_mean", "patch"])
def test_values_equal_one_forward_pass_per_row_with_plain_hooks(tiny, kind):
    """Variants share the blocks in which they are alike, so the rows that an MLP sees are not all rows."""
    task = word_task(5)
    measured = engine(tiny, task, kind)
    gates = some_gates(measured.layout)
    gates[:, ~measured.layout.exists] = 1
    expected = one_by_one(tiny, task, gates, references_of(tiny, task, kind))
    np.testing.assert_allclose(measured.measure(gates).values, expected, atol=2e-5)
    few = engine(tiny, task, kind, batch_tokens=40)
    np.testing.assert_allclose(few.measure(gates, baseline=gates[1]).values, expected, atol=2e-5)


def test_resampled_outputs_come_from_the_donor_of_each_example(tiny):
    """With two examples each is the other's donor, so resampling is patching with swapped prompts."""
    task = word_task(2)
    one, two = task.examples
    swapped = hw.task(
        [
            {"prompt": a.prompt, "target": a.target, "foils": list(a.foils), "counterfactual": b.prompt}
            for a, b in ((one, two), (two, one))
        ],
        metric="logit_diff",
    )
    resampled, patched = engine(tiny, task, "resample"), engine(tiny, swapped, "patch")
    gates = some_gates(resampled.layout)
    np.testing.assert_allclose(resampled.measure(gates).values, patched.measure(gates).values, atol=1e-5)


@pytest.mark.parametrize("reference", ["zero", "mean", "patch"])
def test_gradients_by_every_gate_equal_finite_differences(tiny64, reference):
    measured = engine(tiny64, word_task(3), reference)
    layout = measured.layout
    at = np.where(layout.exists, np.random.default_rng(1).uniform(0.2, 1.2, layout.shape), 1)
    _, gradients = measured.gradients(at)
    step = 1e-5
    for component in layout.listed():
        up, down = at.copy(), at.copy()
        up[component] += step
        down[component] -= step
        above, below = measured.measure(np.stack([up, down])).values
        slope = (above - below) / (2 * step)
        np.testing.assert_allclose(gradients[:, component.layer, component.head], slope, rtol=1e-4, atol=1e-6)


def test_gradients_over_a_path_leave_components_that_are_not_asked_for(tiny64):
    """With MLPs alone on the path heads stay at 1: the mean gradients share out the effect of all MLPs."""
    measured = engine(tiny64, word_task(3), "mean", components=("mlps",))
    scores = measured.mean_gradients((np.arange(200) + 0.5) / 200)
    ends = measured.measure(np.stack([np.zeros(measured.layout.shape), ones(measured.layout)])).values
    np.testing.assert_allclose(scores[:, measured.layout.exists].sum(1), ends[1] - ends[0], rtol=2e-3)


def test_heads_alone_are_computed_bit_for_bit_as_without_components(tiny):
    """Gates of MLPs at 1 change nothing: no module is hooked for them."""
    task = word_task(5)
    plain, wide = Engine(tiny, task, metric("logit_diff")), engine(tiny, task)
    gates = single_gates(tiny.heads(), tiny.shape)
    padded = np.concatenate([gates, np.ones((len(gates), 4, 2))], axis=2)
    assert np.array_equal(plain.measure(gates).values, wide.measure(padded).values)


@pytest.mark.parametrize(
    ("family", "kinds", "said"),
    [
        ("bloom", ["mlps"], "MLPs of BloomForCausalLM cannot be gated"),
        ("openai-gpt", ["mlps"], "cannot be gated"),
        ("jamba", ["mlps"], "cannot be gated"),
    ],
)
def test_a_family_whose_mlps_are_not_found_is_refused_in_a_sentence(family, kinds, said):
    model = word_model(family)
    with pytest.raises(HeadwiseError, match=said):
        engine(model, components=kinds)


def test_a_plug_in_that_knows_heads_alone_is_refused_for_other_components(tiny):
    with REFERENCES.restored():
        register("sevens")(lambda source: {layer: torch.full((4, 8), 7.0) for layer in range(4)})
        register("swapped")(lambda source: [e.counterfactual for e in source.task.examples])
        Engine(tiny, word_task(4), metric("logit_diff"), reference="sevens")
        with pytest.raises(HeadwiseError, match="'sevens' has no output for input"):
            engine(tiny, reference="sevens")
        gates = some_gates(engine(tiny).layout)
        swapped, patched = (
            engine(tiny, reference=name).measure(gates).values for name in ("swapped", "patch")
        )
        assert np.array_equal(swapped, patched)
