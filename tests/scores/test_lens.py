"""The logit lens against a loop with plain hooks: the model's own end on what each block writes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.model.forward.products import faster_products
from headwise.model.outputs.stream import stage_logits
from helpers import answers, plain_logits, word_model, word_task

GRANITE = {"residual_multiplier": 0.3, "logits_scaling": 2.0, "embedding_multiplier": 3.0}
FAMILIES = {  # what the model does with the unembedding's output, in the words of its own configuration
    "llama": ({}, lambda logits, config: logits),
    "gemma2": (
        {"final_logit_softcapping": 0.5},
        lambda logits, config: 0.5 * torch.tanh(logits / 0.5),
    ),
    "cohere": ({"logit_scale": 0.25}, lambda logits, config: 0.25 * logits),
    "granite": (GRANITE, lambda logits, config: logits / 2.0),
    "gpt2": ({}, lambda logits, config: logits),
}


def loaded(family, **config):
    return word_model(family, load={"bos": False}, **config)


def streams(model, ids):
    """What the first block reads and what every block writes, by plain hooks `[S, T, W]`."""
    seen = []
    blocks = model.hooks.blocks
    handles = [blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0][0]))]
    handles += [
        block.register_forward_hook(
            lambda _, __, out: seen.append((out[0] if isinstance(out, tuple) else out)[0])
        )
        for block in blocks
    ]
    plain_logits(model, ids)
    for handle in handles:
        handle.remove()
    return torch.stack(seen).detach()


@pytest.mark.parametrize("family", FAMILIES)
def test_each_layer_is_the_final_norm_and_the_unembedding_of_its_stream(family):
    options, end = FAMILIES[family]
    model = loaded(family, **options)
    stack = model.hf.get_decoder()
    norm = next(getattr(stack, name) for name in ("norm", "ln_f") if hasattr(stack, name))
    task = word_task(3, equal_length=False)
    result = hw.lens(model, task)
    assert result.values.shape == (5, 3)
    for e, example in enumerate(task):
        target, foil = answers(model, example)
        for stage, stream in enumerate(streams(model, model.tokens(example.prompt))):
            with torch.no_grad():
                logits = end(model.hf.lm_head(norm(stream[None]))[0, -1], model.hf.config)
            assert result.values[stage, e] == pytest.approx(float(logits[target] - logits[foil]), abs=1e-5)
            assert result.tokens[stage][e] == model.text.decode([int(logits.argmax())])
            assert result.found[stage, e] == (int(logits.argmax()) == target)


@pytest.mark.parametrize("family", [*FAMILIES, "gptj", "bloom", "qwen3_next"])
def test_the_last_layer_is_the_model_itself_to_the_bit(family):
    model = loaded(family, **FAMILIES.get(family, ({},))[0])
    ids = torch.tensor([[3, 4, 5, 6, 7], [5, 9, 3, 3, 8]])
    positions = torch.tensor([[4, 1], [3, 3]])
    with torch.no_grad():
        *_, last = stage_logits(model, ids, positions)
        head = model.hf.get_output_embeddings()
        narrowed = head.register_forward_pre_hook(
            lambda _, args: (args[0][torch.arange(2)[:, None], positions],)
        )
        with faster_products(model.hf):  # as in every pass
            own = model.hf(input_ids=ids).logits
        narrowed.remove()
    assert torch.equal(last, own)


def test_the_table_has_the_mean_and_its_interval_and_the_plot_draws_them(tiny):
    result = hw.lens(tiny, word_task(6), metric="logprob")
    table = result.table()
    assert table["layer"].tolist() == [-1, 0, 1, 2, 3]
    np.testing.assert_allclose(table["value"], result.values.mean(1))
    assert ((table["lo"] < table["value"]) & (table["value"] < table["hi"])).all()
    full = hw.measure(tiny, word_task(6), metric="logprob")
    assert table["value"].iloc[-1] == pytest.approx(float(full.full.mean()), abs=1e-5)
    (axes,) = result.plot().axes
    (line,) = [line for line in axes.lines if len(line.get_xdata()) == 5]
    np.testing.assert_allclose(line.get_ydata(), table["value"])
    assert axes.collections, "the interval is a band"
    assert axes.get_xticklabels()[0].get_text() == "input"
    assert "layer 3" in repr(result)
    assert "target on top" in repr(result)


def test_prompts_have_the_likeliest_token_of_every_layer_at_every_position(tiny):
    texts = [example.prompt for example in word_task(2, equal_length=False)]
    results = hw.lens(tiny, texts)
    assert len(results) == 2
    for text, result in zip(texts, results, strict=True):
        ids = tiny.tokens(text)
        assert result.table().shape == (5, len(ids))
        for stage, stream in enumerate(streams(tiny, ids)):
            with torch.no_grad():
                share = tiny.hf.lm_head(tiny.hf.model.norm(stream[None]))[0].softmax(-1)
            assert result.tokens[stage] == [tiny.text.decode([int(t)]) for t in share.argmax(-1)]
            np.testing.assert_allclose(result.probabilities[stage], share.max(-1).values, atol=1e-6)
        assert "likeliest next token" in repr(result)


def test_a_model_with_several_streams_is_refused():
    with pytest.raises(HeadwiseError, match="logit lens is not defined for gemma3n_text"):
        hw.lens(loaded("gemma3n_text"), word_task(2))


def test_the_lens_leaves_no_hook_behind(tiny):
    before = plain_logits(tiny, [3, 4, 5])
    hw.lens(tiny, word_task(2))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in tiny.hf.modules())
    assert torch.equal(plain_logits(tiny, [3, 4, 5]), before)
