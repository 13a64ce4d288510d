"""Direct logit attribution: by hand on two families, as an exact sum on many, and refused where it is not one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.tasks import Example, Task
from helpers import answers, plain_difference, plain_logits, word_model, word_task


def loaded(family, **config):
    return word_model(family, load={"bos": False}, **config)


def seen_by(module, model, prompt):
    """What a module reads in a plain pass over the prompt."""
    inputs = []
    handle = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    logits = plain_logits(model, model.tokens(prompt))
    handle.remove()
    return inputs[0][0], logits


def what_the_logits_read(model, example):
    """The direction of a Llama's stream that logit(target) − logit(foil) reads, at the scale of the final norm."""
    x, _ = seen_by(model.hf.model.norm, model, example.prompt)
    scale = (x[-1].pow(2).mean() + model.hf.config.rms_norm_eps).rsqrt()
    target, foil = answers(model, example)
    answer = model.hf.lm_head.weight[target] - model.hf.lm_head.weight[foil]
    return (scale * model.hf.model.norm.weight * answer).detach()


def test_on_a_llama_it_is_the_head_s_columns_then_rms_norm_then_the_unembedding(tiny):
    with torch.no_grad():
        tiny.hf.model.norm.weight.copy_(torch.linspace(0.5, 1.5, 32))
    task = word_task(3)
    scores = hw.score(tiny, task, "direct", reference="zero")
    for e, example in enumerate(task):
        read = what_the_logits_read(tiny, example)
        for layer in range(4):
            projection = tiny.hf.model.layers[layer].self_attn.o_proj
            z, _ = seen_by(projection, tiny, example.prompt)
            for head in range(4):
                columns = slice(8 * head, 8 * head + 8)
                written = projection.weight[:, columns] @ z[-1, columns]
                share = float((written @ read).detach())
                assert scores.examples[e, layer, head] == pytest.approx(share, abs=1e-5)


def test_on_a_gpt2_it_also_takes_off_the_mean():
    model = loaded("gpt2")
    with torch.no_grad():
        model.hf.transformer.ln_f.weight.copy_(torch.linspace(0.5, 1.5, 32))
        model.hf.transformer.ln_f.bias.copy_(torch.linspace(-1, 1, 32))
    task = word_task(2)
    scores = hw.score(model, task, "direct", reference="zero")
    norm = model.hf.transformer.ln_f
    for e, example in enumerate(task):
        target, foil = answers(model, example)
        x, _ = seen_by(norm, model, example.prompt)
        scale = (x[-1].var(unbiased=False) + norm.eps).rsqrt()
        answer = model.hf.lm_head.weight[target] - model.hf.lm_head.weight[foil]
        for layer, head in [(0, 0), (1, 3), (3, 2)]:
            projection = model.hf.transformer.h[layer].attn.c_proj
            z, _ = seen_by(projection, model, example.prompt)
            rows = slice(8 * head, 8 * head + 8)
            written = z[-1, rows] @ projection.weight[rows]
            share = float(((written - written.mean()) * scale * norm.weight @ answer).detach())
            assert scores.examples[e, layer, head] == pytest.approx(share, abs=1e-5)


LAST_ADDITION = {  # the module whose output the last block adds beside attention, and the factor on the logits
    "llama": ("mlp", lambda config: 1),
    "gptj": ("mlp", lambda config: 1),
    "opt": ("fc2", lambda config: 1),
    "olmo2": ("post_feedforward_layernorm", lambda config: 1),
    "gemma3_text": ("post_feedforward_layernorm", lambda config: 1),
    "granite": ("mlp", lambda config: 1 / config.logits_scaling),
    "cohere": ("mlp", lambda config: config.logit_scale),
}


@pytest.mark.parametrize("family", LAST_ADDITION)
def test_the_last_layer_s_shares_are_what_the_stream_loses_without_its_heads(family):
    """All heads of the last block off, its MLP replayed: the stream before the final norm loses their writes."""
    options = {"residual_multiplier": 0.3, "logits_scaling": 2.0} if family == "granite" else {}
    model = loaded(family, **options)
    task = word_task(2)
    scores = hw.score(model, task, "direct", reference="zero")
    block, projection = model.hooks.blocks[-1], model.hooks.sites[-1].projections[0]
    name, factor = LAST_ADDITION[family]
    stack = model.hf.get_decoder()
    norm = next(getattr(stack, n) for n in ("norm", "ln_f", "final_layer_norm") if hasattr(stack, n))
    weight = model.hf.get_output_embeddings().weight.detach().double()
    for e, example in enumerate(task):
        replayed = []
        handle = getattr(block, name).register_forward_hook(
            lambda _, __, out, replayed=replayed: replayed.append(out) or replayed[0]
        )
        x, _ = seen_by(norm, model, example.prompt)
        off = projection.register_forward_pre_hook(lambda _, args: (torch.zeros_like(args[0]),))
        without, _ = seen_by(norm, model, example.prompt)
        off.remove()
        handle.remove()
        x, lost = x[-1], (x - without)[-1].double()
        bias = getattr(norm, "bias", None)
        with torch.no_grad():
            y = norm(x[None, None])[0, 0].double() - (0 if bias is None else bias.double())
        if isinstance(norm, torch.nn.LayerNorm) or family == "cohere":
            x, lost = x - x.mean(), lost - lost.mean()
        target, foil = answers(model, example)
        share = factor(model.hf.config) * float(lost * (y / x.double()) @ (weight[target] - weight[foil]))
        assert scores.examples[e, -1].sum() == pytest.approx(share, rel=2e-3, abs=1e-5)


def test_heads_and_rest_sum_to_the_logit_difference(tiny):
    task = word_task(4, equal_length=False)
    scores = hw.score(tiny, task, "direct", reference="zero")
    diffs = [plain_difference(tiny, example) for example in task]
    assert scores.values.sum() + scores.details["rest"] == pytest.approx(np.mean(diffs), abs=1e-5)


def test_with_a_patch_reference_it_is_the_share_of_what_differs(tiny):
    task = word_task(3)
    zero = hw.score(tiny, task, "direct", reference="zero").examples
    patch = hw.score(tiny, task, "direct", reference="patch").examples
    same = Task("same", tuple(Example(e.prompt, e.target, e.foils, e.prompt) for e in task))
    assert not hw.score(tiny, same, "direct", reference="patch", metric="logit_diff").examples.any()
    for e, example in enumerate(task):
        read = what_the_logits_read(tiny, example)
        projection = tiny.hf.model.layers[2].self_attn.o_proj
        other, _ = seen_by(projection, tiny, example.counterfactual)
        written = projection.weight[:, 8:16] @ other[-1, 8:16]
        replaced = float((written @ read).detach())
        assert patch[e, 2, 1] == pytest.approx(zero[e, 2, 1] - replaced, abs=1e-5)


def test_with_a_mean_reference_the_same_share_is_taken_off_at_the_same_scale(tiny):
    task = word_task(3)
    zero, mean = (hw.score(tiny, task, "direct", reference=r).examples for r in ("zero", "mean"))
    projection = tiny.hf.model.layers[1].self_attn.o_proj
    every = torch.cat([seen_by(projection, tiny, e.prompt)[0] for e in task]).mean(0)
    for e, example in enumerate(task):
        read = what_the_logits_read(tiny, example)
        replaced = float((projection.weight[:, :8] @ every[:8] @ read).detach())
        assert mean[e, 1, 0] == pytest.approx(zero[e, 1, 0] - replaced, abs=1e-5)


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("gemma2", "its logits are bent after the unembedding"),
        ("openai-gpt", "there is no residual path"),
        ("qwen3_next", "is not linear in their output"),
    ],
)
def test_a_family_that_is_not_linear_is_refused_with_the_part_that_is_not(family, why):
    with pytest.raises(HeadwiseError, match=why):
        hw.score(loaded(family), word_task(2), "direct")


def test_only_a_difference_of_logits_is_taken_apart(tiny):
    with pytest.raises(HeadwiseError, match="but the metric is 'logprob'"):
        hw.score(tiny, word_task(2), "direct", metric="logprob")


def test_reading_directly_leaves_no_hook_behind(tiny):
    before = plain_logits(tiny, [3, 4, 5])
    hw.score(tiny, word_task(2), "direct", reference="zero")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in tiny.hf.modules())
    assert torch.equal(plain_logits(tiny, [3, 4, 5]), before)


@pytest.mark.bundled
def test_on_the_real_model_the_name_mover_leads(smollm2):
    task = hw.task("ioi", 4, tokens=smollm2.tokens)
    scores = hw.score(smollm2, task, "direct", reference="zero")
    assert "L23H3" in [str(h) for h in scores.top(3)]
    assert scores["L23H3"] > 1


# ---- MLPs and the embeddings ---------------------------------------------------------------------------------

EVERYTHING = ["heads", "mlps", "input"]
GRANITE = {"residual_multiplier": 0.3, "logits_scaling": 2.0, "embedding_multiplier": 3.0}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("gemma3_text", {}),  # norms after attention and after the MLP
        ("gemma2", {"final_logit_softcapping": None}),
        ("olmo2", {}),
        ("granite", GRANITE),
        ("cohere", {}),  # parallel blocks, a factor on the logits
        ("mixtral", {}),
    ],
)
def test_heads_mlps_and_embeddings_sum_to_the_logit_difference(family, options):
    model = loaded(family, **options)
    task = word_task(3, equal_length=False)
    scores = hw.score(model, task, "direct", components=EVERYTHING, reference="zero")
    for e, example in enumerate(task):
        assert np.nansum(scores.examples[e]) == pytest.approx(plain_difference(model, example), abs=1e-4)
    heads = hw.score(model, task, "direct", reference="zero")
    np.testing.assert_allclose(scores.examples[:, :, :-2], heads.examples, atol=1e-6)


def test_what_is_left_in_a_gpt2_are_positions_and_biases():
    """Everything else that reaches the stream, through the final norm as it was: the rest, computed by hand."""
    model = loaded("gpt2")
    stack = model.hf.transformer
    with torch.no_grad():
        for block in stack.h:
            block.attn.c_proj.bias.copy_(torch.linspace(-0.5, 0.7, 32))
        stack.ln_f.bias.copy_(torch.linspace(-1, 1, 32))
    task = word_task(2)
    scores = hw.score(model, task, "direct", components=EVERYTHING, reference="zero")
    expected = []
    for e, example in enumerate(task):
        target, foil = answers(model, example)
        x, logits = seen_by(stack.ln_f, model, example.prompt)
        scale = (x[-1].var(unbiased=False) + stack.ln_f.eps).rsqrt()
        answer = (model.hf.lm_head.weight[target] - model.hf.lm_head.weight[foil]).detach()
        others = stack.wpe.weight[len(x) - 1] + sum(block.attn.c_proj.bias for block in stack.h)
        read = ((others - others.mean()) * scale * stack.ln_f.weight + stack.ln_f.bias) @ answer
        expected.append(float(read.detach()))
        full = float(logits[-1, target] - logits[-1, foil])
        assert np.nansum(scores.examples[e]) + expected[-1] == pytest.approx(full, abs=1e-4)
    assert scores.details["rest"] == pytest.approx(np.mean(expected), abs=1e-5)


ADDED = {  # what a block adds beside its heads, the embeddings, and the factors on the stream and on the logits
    "gemma3_text": ("post_feedforward_layernorm", 1, 1),
    "granite": ("mlp", GRANITE["residual_multiplier"], 1 / GRANITE["logits_scaling"]),
    "llama": ("mlp", 1, 1),
}


@pytest.mark.parametrize("family", ADDED)
def test_the_share_of_an_mlp_is_what_its_block_adds_to_the_stream(family):
    """One plain pass with hooks: what the module (or the norm behind it) gives out, through the norm as it was."""
    model = loaded(family, **(GRANITE if family == "granite" else {}))
    name, factor, on_logits = ADDED[family]
    norm, blocks = model.hf.model.norm, model.hf.model.layers
    weight = model.hf.lm_head.weight.detach().double()
    task = word_task(2)
    scores = hw.score(model, task, "direct", components=["mlps", "input"], reference="zero")
    assert np.isnan(scores.values[:, :-2]).all()
    for e, example in enumerate(task):
        added, first = [], []
        handles = [
            getattr(b, name).register_forward_hook(lambda _, __, out, a=added: a.append(out)) for b in blocks
        ]
        handles.append(blocks[0].register_forward_pre_hook(lambda _, args, f=first: f.append(args[0])))
        x, _ = seen_by(norm, model, example.prompt)
        for handle in handles:
            handle.remove()
        with torch.no_grad():
            diagonal = norm(x[None])[0, -1].double() / x[-1].double()
        target, foil = answers(model, example)
        read = on_logits * diagonal * (weight[target] - weight[foil])
        for layer, out in enumerate(added):
            share = float(factor * out[0, -1].detach().double() @ read)
            assert scores.examples[e, layer, -1] == pytest.approx(share, rel=1e-3, abs=1e-5)
        share = float(first[0][0, -1].detach().double() @ read)
        assert scores.examples[e, 0, -2] == pytest.approx(share, rel=1e-3, abs=1e-5)


def test_with_a_mean_reference_an_mlp_has_the_share_of_what_differs_from_its_mean(tiny):
    task = word_task(3)
    zero, mean = (
        hw.score(tiny, task, "direct", components=["mlps"], reference=r).examples[:, 2, -1]
        for r in ("zero", "mean")
    )
    outputs = []
    handle = tiny.hf.model.layers[2].mlp.register_forward_hook(lambda _, __, out: outputs.append(out[0]))
    read = [seen_by(tiny.hf.model.norm, tiny, example.prompt)[0][-1] for example in task]
    handle.remove()
    average = torch.cat(outputs).detach().mean(0)
    for e, (example, x) in enumerate(zip(task, read, strict=True)):
        scale = (x.pow(2).mean() + tiny.hf.config.rms_norm_eps).rsqrt()
        target, foil = answers(tiny, example)
        answer = (tiny.hf.lm_head.weight[target] - tiny.hf.lm_head.weight[foil]).detach()
        replaced = float((average * scale * tiny.hf.model.norm.weight).detach() @ answer)
        assert mean[e] == pytest.approx(zero[e] - replaced, abs=1e-5)


@pytest.mark.parametrize(
    ("family", "kind", "why"),
    [
        ("bloom", "mlps", "leave 'mlps' out"),
        ("bloom", "input", "does not read its embeddings times a number; leave 'input' out"),
    ],
)
def test_a_part_that_is_not_added_as_it_is_is_refused(family, kind, why):
    with pytest.raises(HeadwiseError, match=why):
        hw.score(loaded(family), word_task(2), "direct", components=[kind])
