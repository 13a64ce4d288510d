"""The proof must fail when something is wrong: each identity is broken on purpose."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.model.sites import head_hooks
from headwise.model.verify import proof as proof
from headwise.model.verify.proof import verify, zeroed_columns
from headwise.model.verify.tiny import tiny_model


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(HeadwiseError, match=r"training mode.*model\.eval\(\)"):
        verify(tiny_model("llama").train())


def test_an_attention_implementation_that_cannot_be_wrapped_is_refused():
    model = tiny_model("llama")
    model.config._attn_implementation_internal = "made_up"
    with pytest.raises(HeadwiseError, match="made_up"):
        verify(model)


def test_a_mask_that_is_lost_breaks_causality_or_the_first_identity(monkeypatch):
    """Were no mask function registered under our name, transformers would build no mask for eager attention."""
    from transformers import AttentionInterface, AttentionMaskInterface

    model = tiny_model("llama")
    model.config._attn_implementation_internal = "eager"
    verify(model)
    monkeypatch.delitem(AttentionMaskInterface._global_mapping, "headwise_eager")
    assert "headwise_eager" in AttentionInterface._global_mapping
    with torch.no_grad():
        ones = proof._with_all_gates_at_one(head_hooks.HeadHooks(model, "attention function"))
    with pytest.raises(HeadwiseError, match="identity 1 broke"):
        proof._check_ones(model, ones.logits, proof._plain(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gate_on_the_wrong_head_breaks_the_second_identity(dtype, monkeypatch):
    """In half precision too, where what rounding may do to the largest number of a stream exceeds what a head does."""
    model = tiny_model("llama").to(dtype)
    right = zeroed_columns
    monkeypatch.setattr(proof, "zeroed_columns", lambda p, head, size: right(p, head - 1, size))
    monkeypatch.setattr(proof, "_check_split", lambda _: None)
    with pytest.raises(HeadwiseError, match="identity 2 broke"):
        verify(model)


def test_heads_that_change_nothing_leave_the_second_identity_empty():
    model = tiny_model("llama")
    for layer in model.model.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
    with pytest.raises(HeadwiseError, match="identity 2 is empty"):
        verify(model)


def test_a_layer_that_does_not_fire_breaks_the_third_identity():
    model = tiny_model("llama")
    found = head_hooks.HeadHooks(model, "attention function")
    found.sites = found.sites[:-1]
    with pytest.raises(HeadwiseError, match="identity 3 broke: the attention of layer 3"):
        proof._check_fired(found, proof._with_all_gates_at_one(found).fired)


def test_columns_that_are_not_heads_are_refused_by_the_hook():
    """The same weights with the columns of the output projection's input shuffled across heads."""
    model = tiny_model("gptj")
    verify(model)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    attention = model.transformer.h[0].attn
    attention.v_proj.weight.data = attention.v_proj.weight.data[order]
    # Attention still works head by head; what is shuffled is only which values a head reads, so this is fine:
    verify(model)

    original = attention._merge_heads
    attention._merge_heads = lambda tensor, heads, size: original(tensor, heads, size)[..., order]
    with pytest.raises(HeadwiseError, match="does not split into 4 heads of 8"):
        verify(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_the_last_block_only_what_no_other_token_reads_is_narrowed(dtype):
    """A feed-forward part that adds a trace of the token before it, too faint for the rounding of bfloat16."""
    model = tiny_model("llama").to(dtype)
    last = model.model.layers[-1]
    assert verify(model)[2].narrow == (last.self_attn.o_proj, last.mlp)
    own = last.mlp.forward
    last.mlp.forward = lambda x: own(x) + 0.01 * nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
    # What the projection gives at one token is then read one token later.
    assert verify(model)[2].narrow == ()


def test_of_two_attentions_in_the_last_block_only_the_last_output_projection_is_narrowed():
    """What follows the first of them might be taken for its output projection: the second one's queries, say."""
    model = tiny_model("longcat_flash")
    found, _, shown = verify(model)
    last = found.blocks[-1]
    assert shown.narrow == (last.self_attn[1].o_proj,)


def test_experts_whose_company_changes_are_narrowed_all_the_same():
    model = tiny_model("glm4_moe")
    last = model.model.layers[-1]
    assert verify(model)[2].narrow == (last.self_attn.o_proj, last.mlp)


def test_a_part_that_computes_one_token_otherwise_than_many_is_not_narrowed():
    model = tiny_model("llama")
    last = model.model.layers[-1]
    own = last.mlp.forward
    last.mlp.forward = lambda x: own(x) * x.shape[1]
    assert verify(model)[2].narrow == (last.self_attn.o_proj,)


def test_a_deterministic_model_is_proven_in_four_passes_of_all_its_blocks():
    """One plain, one that finds the heads, one with gates at 1, and one whose rows are shared; the passes that try the
    last block skip the blocks before it. The first block is computed in two more calls, which ablate its head."""
    model, calls = tiny_model("llama"), []
    for index in (0, 1):
        model.model.layers[index].self_attn.register_forward_pre_hook(
            lambda *_, index=index: calls.append(index)
        )
    _, shown, able = verify(model)
    assert shown.noise == 0
    assert able.share_rows
    assert len(able.narrow) == 2
    assert calls.count(1) == 4, "not ablated by itself"
    assert calls.count(0) == 4 + 3


def test_logits_that_differ_from_run_to_run_are_measured_as_noise():
    model, runs = tiny_model("llama"), []
    model.lm_head.register_forward_hook(
        lambda _, __, logits: logits + 1e-6 * (len(runs) % 7, runs.append(0))[0]
    )
    _, shown, _ = verify(model)
    assert 0 < shown.noise < 1e-5


def test_after_the_proof_the_model_is_as_it_was():
    model = tiny_model("llama")
    before = copy.deepcopy(model.state_dict())
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    verify(model, every_layer=True)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert model.config._attn_implementation == "sdpa"
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_two_models_hooked_at_once_do_not_disturb_one_another():
    one, two = tiny_model("llama"), tiny_model("llama", seed=1)
    (reach_one, *_), (reach_two, *_) = verify(one), verify(two)
    ids = torch.arange(5, 12)[None]
    plain = two(input_ids=ids).logits
    alone = {}
    with torch.no_grad():
        with reach_one.hook(lambda layer, z: z * 0):
            alone["one"] = one(input_ids=ids).logits
        with reach_one.hook(lambda layer, z: z * 0), reach_two.hook(lambda layer, z: z * 0.5):
            both_one, both_two = one(input_ids=ids).logits, two(input_ids=ids).logits
        with reach_one.hook(lambda layer, z: z * 0):
            assert torch.equal(two(input_ids=ids).logits, plain)
    assert torch.equal(both_one, alone["one"])
    assert not torch.equal(both_two, plain)


def test_a_quantised_projection_is_proven_by_its_input():
    model = tiny_model("llama")
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.o_proj = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(attention.o_proj), {nn.Linear}, dtype=torch.qint8
        )[0]
    found, shown, _ = verify(model)
    assert found.mechanism == "attention function"
    assert shown.largest_gap < 1e-4
