"""`with model.gated(…)` around code of the user's own: against edited weights and plain hooks."""

from __future__ import annotations

import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from helpers import HeadsByHook, plain_logits, recorded

TEXT = "the dog met a bird and then he"


def logits(model):
    return plain_logits(model, model.tokens(TEXT))


def written(model, count=5):
    ids = torch.tensor([model.tokens(TEXT)], device=model.device)
    mask = torch.ones_like(ids)
    return model.hf.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=count, pad_token_id=0, eos_token_id=None
    )[0].tolist()


def test_a_forward_pass_and_generate_run_with_the_heads_ablated(tiny):
    full, text = logits(tiny), written(tiny)
    heads = ["L0H1", "L2H3"]
    with tiny.gated(ablate=heads):
        gated, gated_text = logits(tiny), written(tiny)
    assert not torch.allclose(gated, full, atol=1e-3)
    weights = [layer.self_attn.o_proj.weight for layer in tiny.hf.model.layers]
    with torch.no_grad():
        saved = [weight.clone() for weight in weights]
        for head in map(hw.Head.parse, heads):
            weights[head.layer][:, 8 * head.head : 8 * head.head + 8] = 0
        edited, edited_text = logits(tiny), written(tiny)
        for weight, before in zip(weights, saved, strict=True):
            weight.copy_(before)
    torch.testing.assert_close(gated, edited, atol=1e-5, rtol=1e-5)
    assert gated_text == edited_text
    assert torch.equal(logits(tiny), full)
    assert written(tiny) == text


def test_the_mean_is_over_all_tokens_of_the_reference_prompts(tiny):
    prompts = ["a cat saw the red bird", "she ran"]
    seen = [recorded(tiny, prompt)[1][:, 2] for prompt in prompts]
    mean = torch.cat(seen).mean(0)

    def edit(layer, z):
        if layer == 1:
            z = z.clone()
            z[:, :, 2] = mean
        return z

    with HeadsByHook(tiny, edit):
        expected = logits(tiny)
    with tiny.gated(ablate="L1H2", reference="mean", reference_prompts=prompts):
        torch.testing.assert_close(logits(tiny), expected, atol=1e-5, rtol=1e-5)


def test_gates_amplify_and_attention_can_be_read_inside(tiny):
    gates = tiny.gates()
    gates[0] = 2
    plain = hw.attention(tiny, TEXT, "L2H0", maps=True).maps
    with tiny.gated(gates):
        changed = hw.attention(tiny, TEXT, "L2H0", maps=True).maps
    assert abs(changed - plain).max() > 1e-4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ablate": "L0H0", "reference": "patch"}, "which prompt belongs to which row of your forward pass"),
        ({"ablate": "L0H0", "reference": "mean"}, "give reference_prompts="),
        ({"ablate": "L0H0", "reference": "zeros"}, "did you mean 'zero'"),
        ({"gates": [[[1.0] * 4] * 4] * 2}, "one set of gates"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(tiny, given, message):
    with pytest.raises(HeadwiseError, match=message):
        tiny.gated(**given)


def test_gates_inside_gates_are_refused_in_a_sentence(tiny):
    with (
        tiny.gated(ablate="L0H0"),
        pytest.raises(HeadwiseError, match="only one can be active; leave the outer"),
    ):
        hw.generate(tiny, [TEXT], ablate="L0H1", max_new_tokens=1)
    assert torch.equal(logits(tiny), logits(tiny))


def test_a_hook_sees_and_changes_every_head_before_the_output_projection(tiny):
    seen = {}

    def hook(layer, z):
        seen[layer] = z[0].clone()
        return z * 0 if layer == 3 else z

    with tiny.hook(hook):
        hooked = logits(tiny)
    expected = recorded(tiny, TEXT)
    assert seen.keys() == expected.keys()
    for layer in range(3):
        torch.testing.assert_close(seen[layer], expected[layer])
    with tiny.gated(ablate=[(3, head) for head in range(4)]):
        torch.testing.assert_close(logits(tiny), hooked)


def test_a_notebook_shows_the_model(tiny):
    assert "16 in 4 layers of up to 4" in tiny._repr_html_()
