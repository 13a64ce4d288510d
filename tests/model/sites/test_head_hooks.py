"""The one place where heads are seen: the model computes what it computes without us."""

from __future__ import annotations

import copy

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.verify.tiny import tiny_model


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa", "llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_hook_that_returns_z_changes_nothing_in_a_prompt_longer_than_any_selection(family, implementation):
    """Sparse-attention families ask by name which implementation runs, and select keys only under some."""
    hf = tiny_model(family)
    if family != "gemma2":
        hf.set_attn_implementation(implementation)
    ids = torch.arange(3, 43)[None]
    with torch.no_grad():
        plain = hf(input_ids=ids, use_cache=False).logits
        with HeadHooks(hf).hook(lambda layer, z: z):
            hooked = hf(input_ids=ids, use_cache=False).logits
    assert torch.equal(plain, hooked)


def test_our_name_stands_for_the_one_it_replaces_and_survives_a_copy():
    hf = tiny_model("llama")
    with HeadHooks(hf).hook(lambda layer, z: z):
        name = copy.deepcopy(hf.config)._attn_implementation
    assert name == "sdpa"
    assert name in ("eager", "sdpa")
    assert name != "eager"
    assert {"sdpa": 1, "headwise_sdpa": 2}[name] == 2
    assert str.__str__(name) == "headwise_sdpa"


def test_a_watcher_sees_the_output_before_the_gates_and_both_work_together():
    hf = tiny_model("llama")
    hooks, ids = HeadHooks(hf), torch.arange(3, 12)[None]
    plain, watched, hooked = {}, {}, {}

    def halve(layer, z):
        hooked[layer] = z
        return z / 2

    def watch(layer, call):
        watched[layer] = call

    with torch.no_grad():
        with hooks.watching(lambda layer, call: plain.setdefault(layer, call)):
            hf(input_ids=ids)
        with hooks.hook(halve), hooks.watching(watch):
            hf(input_ids=ids)
        with hooks.watching(watch), hooks.hook(halve):
            hf(input_ids=ids)
    assert torch.equal(plain[0].z, watched[0].z)
    assert all(torch.equal(watched[layer].z, hooked[layer]) for layer in range(4))
    assert not torch.equal(plain[1].z, watched[1].z)
    assert (watched[0].implementation, watched[0].mask) == ("sdpa", None)
    assert watched[0].query.shape == (1, 4, 9, 8)
    assert watched[0].options["scaling"] == 8**-0.5


def test_after_an_error_nothing_of_ours_is_left():
    hf = tiny_model("llama")
    hooks = HeadHooks(hf)

    def fail(*_):
        raise ValueError("mine")

    for context in (hooks.watching(fail), hooks.hook(fail)):
        with pytest.raises(ValueError, match="mine"), context:
            hf(input_ids=torch.arange(3, 9)[None])
    assert type(hf.config._attn_implementation) is str
    assert not [m for m in hf.modules() if "_headwise_attached" in vars(m)]
    with hooks.watching(lambda *_: None), pytest.raises(HeadwiseError, match="already has a watcher"):
        hooks.watching(lambda *_: None).__enter__()


def test_a_family_without_an_attention_function_cannot_be_watched():
    with (
        pytest.raises(HeadwiseError, match="calls no attention function"),
        HeadHooks(tiny_model("gptj")).watching(lambda *_: None),
    ):
        pass


def test_a_hook_that_returns_none_only_reads_and_a_wrong_shape_is_refused(tiny):
    ids, seen = torch.arange(3, 12)[None], []
    with torch.no_grad():
        plain = tiny.hf(input_ids=ids).logits
        with tiny.hook(lambda layer, z: seen.append((layer, tuple(z.shape)))):
            read = tiny.hf(input_ids=ids).logits
        wrong = pytest.raises(HeadwiseError, match=r"for layer 0; expected z of shape \[1, 9, 4, 8\]")
        with wrong, tiny.hook(lambda layer, z: z[:, :, :1]):
            tiny.hf(input_ids=ids)
    assert torch.equal(plain, read)
    assert seen == [(layer, (1, 9, 4, 8)) for layer in range(4)]
