"""Attention of chosen heads against transformers' eager maps, and against formulas written out by hand."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.attention import weights
from headwise.model.attention.weights import weight_blocks
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.verify.families import shipped
from headwise.model.verify.tiny import tiny_model

BAR = 3e-5
HOOKED = [f.name for f in shipped()[1] if f.status == "reached" and f.how.startswith("projection hook")]
CALLED = [f.name for f in shipped()[1] if f.status == "reached" and f.how.startswith("attention function")]


def token_lists(*lengths):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, 25, (length,), generator=generator).tolist() for length in lengths]


def eager_maps(model, ids):
    """Every head's map as transformers reports it, head -> [T, T], and the logits; the model stays eager."""
    model.hf.set_attn_implementation("eager")
    with torch.no_grad():
        run = model.hf(input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False)
    reported = run.attentions
    sites = model.hooks.sites
    # A few hybrids also report something for their layers without attention.
    maps = [reported[site.block] for site in sites] if len(reported) > len(sites) else reported
    assert len(maps) == len(sites)
    by_head = {
        Head(site.layer, head): of_layer[0, head].numpy()
        for site, of_layer in zip(sites, maps, strict=True)
        for head in range(site.heads)
    }
    return by_head, run.logits


def slow_profile(full):
    """For key j, the mean over later queries i of map[i, j]; nothing for the first and the last key."""
    length = len(full)
    means = [np.nan] * length
    for j in range(1, length - 1):
        means[j] = float(np.mean([full[i, j] for i in range(j + 1, length)]))
    return np.array(means)


def assert_everything_equals(found, maps, tolerance):
    for place, head in enumerate(found.heads):
        full = maps[head]
        np.testing.assert_allclose(found.maps[place], full, atol=tolerance, rtol=0)
        np.testing.assert_allclose(found.rows[place], full[found.queries], atol=tolerance, rtol=0)
        np.testing.assert_allclose(found.columns[place], full[:, found.keys], atol=tolerance, rtol=0)
        np.testing.assert_allclose(found.profile[place], slow_profile(full), atol=tolerance, rtol=0)


@pytest.mark.parametrize("family", CALLED)
def test_everything_equals_the_eager_maps_in_every_family_that_calls_the_attention_function(family):
    model = hw.load(tiny_model(family), name=family)
    prompts = token_lists(23, 9)  # longer than the tiny models' windows, and one of another length beside it
    found = hw.attention(model, prompts, queries=(0, 5, -1), keys=(0, 3, -2), maps=True)
    with torch.no_grad():
        plain = [model.hf(input_ids=torch.tensor([ids]), use_cache=False).logits for ids in prompts]
    for ids, one, fused in zip(prompts, found, plain, strict=True):
        maps, eager = eager_maps(model, ids)
        # Where the two implementations themselves drift apart by more than rounding (scores of an untrained
        # model may be large), the maps can be no closer than the models are.
        drift = float((fused - eager).abs().max())
        if _sink_left_out(model, maps):
            maps = {head: full * one.maps[one.index(head)].sum(1)[:, None] for head, full in maps.items()}
        assert one.ids == ids
        assert one.heads == model.heads()
        assert_everything_equals(one, maps, BAR if drift <= BAR else 4 * drift)


def _sink_left_out(model, maps):
    """Whether transformers reports rows that sum to 1 although a learned sink takes its share."""
    sinks = any(getattr(site.module, "sinks", None) is not None for site in model.hooks.sites)
    return sinks and all(np.allclose(full.sum(1), 1, atol=1e-4) for full in maps.values())


@pytest.mark.parametrize("family", ["gemma4", "gemma4_text", "gemma4_unified_text", "llama", "deepseek_v32"])
def test_under_eager_the_bar_holds_also_where_the_fused_model_drifts(family):
    hf = tiny_model(family)
    hf.set_attn_implementation("eager")
    model = hw.load(hf, name=family)
    (ids,) = token_lists(23)
    assert_everything_equals(hw.attention(model, [ids], maps=True)[0], eager_maps(model, ids)[0], BAR)


# ---- families that are reached by the hook -----------------------------------------------------------------


def eager_twin(model):
    """The same weights in a model that was eager from the start: some families choose when they are built."""
    config = copy.deepcopy(model.hf.config)
    hf = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    hf.load_state_dict(model.hf.state_dict())
    return hw.load(hf.eval(), name="twin")


def attentions_per_layer(model):
    """How often a layer calls the attention function in one pass."""
    try:
        return HeadHooks(model.hf, "attention function").sites[0].calls
    except HeadwiseError:
        return 0


@pytest.mark.parametrize("family", HOOKED)
def test_hooked_families_show_their_eager_maps_or_refuse_in_a_sentence(family):
    model = hw.load(tiny_model(family), name=family)
    prompts = token_lists(9, 14)
    if attentions_per_layer(model) > 1:  # a head is then the difference of two maps
        with pytest.raises(HeadwiseError, match="no single attention map"):
            hw.attention(model, prompts)
        return
    found = hw.attention(model, prompts, queries=(0, 5, -1), keys=(0, 3, -2), maps=True)
    twin = eager_twin(model)
    for ids, one in zip(prompts, found, strict=True):
        assert_everything_equals(one, eager_maps(twin, ids)[0], BAR)


def test_reported_weights_that_are_not_those_of_the_heads_are_refused(monkeypatch):
    model = hw.load(tiny_model("gptj"), name="gptj")
    honest = weights._eager_maps
    monkeypatch.setattr(
        weights, "_eager_maps", lambda *args: {k: w.flip(1) for k, w in honest(*args).items()}
    )
    with pytest.raises(HeadwiseError, match="do not give the outputs of its heads"):
        hw.attention(model, token_lists(6))


def test_gates_act_in_hooked_families_too():
    model = hw.load(tiny_model("gptj"), name="gptj")
    (ids,) = token_lists(9)
    with model.hook(lambda layer, z: z * 0 if layer == 0 else z):
        (gated,) = hw.attention(model, [ids], maps=True)
    with torch.no_grad():
        model.hf.transformer.h[0].attn.out_proj.weight.zero_()
    assert_everything_equals(gated, eager_maps(model, ids)[0], BAR)


def test_a_long_prompt_of_a_hooked_family_is_refused_before_it_fills_the_memory(monkeypatch):
    model = hw.load(tiny_model("gptj"), name="gptj")
    monkeypatch.setattr("headwise.model.attention.weights.LARGEST", 16 * 100)
    assert len(hw.attention(model, token_lists(10), "L0H0")) == 1
    with pytest.raises(HeadwiseError, match="all maps of all heads are held at once"):
        hw.attention(model, token_lists(11), "L0H0")


# ---- one property at a time, by hand -----------------------------------------------------------------------


def calls_of(model, ids):
    """What each layer's attention function was given."""
    seen = {}
    with torch.no_grad(), model.hooks.watching(seen.__setitem__):
        model.hf(input_ids=torch.tensor([ids]), use_cache=False)
    return seen


def by_hand(call, head, *, window=None, cap=None, sink=None):
    """softmax of the scores of one head, in float64, with nothing of the family's code in it."""
    group = call.query.shape[1] // call.key.shape[1]
    q, k = call.query[0, head].double(), call.key[0, head // group].double()
    scores = q @ k.T * call.options["scaling"]
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    i, j = torch.meshgrid(torch.arange(len(q)), torch.arange(len(k)), indexing="ij")
    allowed = (j <= i) if window is None else (j <= i) & (j > i - window)
    scores = scores.masked_fill(~allowed, -torch.inf)
    if sink is None:
        return scores.softmax(-1).numpy()
    with_sink = torch.cat([scores, torch.full((len(q), 1), sink, dtype=torch.float64)], dim=1)
    return with_sink.softmax(-1)[:, :-1].numpy()


def test_grouped_keys_belong_to_their_heads():
    model = hw.load(tiny_model("llama", num_attention_heads=4, num_key_value_heads=2), name="llama")
    (ids,) = token_lists(11)
    found = hw.attention(model, [ids], ["L2H3", "L0H1", "L2H0"], maps=True)[0]
    assert found.heads == [Head(2, 3), Head(0, 1), Head(2, 0)]
    calls = calls_of(model, ids)
    assert calls[0].key.shape[1] == 2
    for head in found.heads:
        expected = by_hand(calls[head.layer], head.head)
        np.testing.assert_allclose(found.maps[found.index(head)], expected, atol=BAR)


@pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_sliding_window_smaller_than_the_prompt_is_kept(family, implementation):
    hf = tiny_model(family, sliding_window=4)
    hf.set_attn_implementation(implementation)
    model = hw.load(hf, name=family)
    (ids,) = token_lists(13)
    found = hw.attention(model, [ids], maps=True)[0]
    calls = calls_of(model, ids)
    windows = {layer: call.options["sliding_window"] for layer, call in calls.items()}
    assert 4 in windows.values()
    for head in found.heads:
        full = found.maps[found.index(head)]
        expected = by_hand(calls[head.layer], head.head, window=windows[head.layer])
        np.testing.assert_allclose(full, expected, atol=BAR)
        if windows[head.layer] == 4:
            assert not full[12, :9].any()


def test_soft_capping_is_kept():
    model = hw.load(tiny_model("gemma2", attn_logit_softcapping=0.5, sliding_window=6), name="gemma2")
    (ids,) = token_lists(12)
    found = hw.attention(model, [ids], maps=True)[0]
    calls = calls_of(model, ids)
    uncapped = 0.0
    for head in found.heads:
        call = calls[head.layer]
        window = call.options["sliding_window"]
        expected = by_hand(call, head.head, window=window, cap=0.5)
        np.testing.assert_allclose(found.maps[found.index(head)], expected, atol=BAR)
        uncapped = max(uncapped, np.abs(by_hand(call, head.head, window=window) - expected).max())
    assert uncapped > 0.01


@pytest.mark.parametrize("family", ["gpt_oss", "granite_swa"])
def test_sinks_take_their_share(family):
    """gpt_oss puts the sink into the softmax, granite_swa multiplies the output: the same mathematics."""
    hf = tiny_model(family)
    with torch.no_grad():
        for number, layer in enumerate(hf.model.layers):
            layer.self_attn.sinks.copy_(torch.tensor([0.5, -1.0, 2.0, 0.0]) + number / 4)
    model = hw.load(hf, name=family)
    (ids,) = token_lists(12)
    found = hw.attention(model, [ids], ["L0H2", "L1H3", "L3H0"], maps=True)[0]
    calls = calls_of(model, ids)
    for head in found.heads:
        call = calls[head.layer]
        sink = call.module.sinks[head.head].item()
        expected = by_hand(call, head.head, window=call.options["sliding_window"], sink=sink)
        np.testing.assert_allclose(found.maps[found.index(head)], expected, atol=BAR)
        assert expected.sum(1).min() < 0.9


def test_keys_that_a_sparse_family_does_not_select_get_nothing():
    model = hw.load(tiny_model("deepseek_v32"), name="deepseek_v32")  # the tiny one selects 8 keys
    found = hw.attention(model, token_lists(20), maps=True)[0]
    assert ((found.maps > 0).sum(-1) <= 8).all()


def test_half_precision_scores_are_those_of_the_fused_kernel():
    """In bfloat16 an eager score is rounded before the softmax; sdpa keeps it in float32, and so do we."""
    hf = tiny_model("llama").to(torch.bfloat16)
    model = hw.load(hf, name="half")
    (ids,) = token_lists(20)
    found = hw.attention(model, [ids], maps=True)[0]
    calls = calls_of(model, ids)
    for head in found.heads:
        expected = by_hand(calls[head.layer], head.head)
        np.testing.assert_allclose(found.maps[found.index(head)], expected, atol=BAR)


# ---- blocks, batches, early leaving ------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 3, 7, 100])
def test_any_block_of_queries_gives_the_same_weights(tiny, block):
    calls = calls_of(tiny, token_lists(17)[0])
    for call in calls.values():
        (start, whole), *rest = weight_blocks(call, [3, 1], block=100)
        assert (start, rest) == (0, [])
        for first, part in weight_blocks(call, [3, 1], block=block):
            stop = first + part.shape[2]
            torch.testing.assert_close(part, whole[:, :, first:stop, : part.shape[3]], atol=1e-6, rtol=0)
            assert not whole[:, :, first:stop, part.shape[3] :].any()


@pytest.mark.parametrize("elements", [1, 100, 2**22])
def test_streamed_profiles_equal_those_of_whole_maps(tiny, monkeypatch, elements):
    monkeypatch.setattr("headwise.model.attention.weights._BLOCK_CPU", elements)
    for one in hw.attention(tiny, token_lists(17, 5, 9, 2, 1), maps=True):
        for place in range(len(one.heads)):
            np.testing.assert_allclose(one.profile[place], slow_profile(one.maps[place]), atol=1e-6)


def test_prompts_of_other_lengths_in_the_batch_change_nothing(tiny):
    prompts = token_lists(17, 5, 9, 5, 12)
    together = hw.attention(tiny, prompts, maps=True, queries=(0, 2, -1), keys=(1, -1))
    for batch_tokens in (1, 30):
        for a, b in zip(
            together,
            hw.attention(
                tiny, prompts, maps=True, queries=(0, 2, -1), keys=(1, -1), batch_tokens=batch_tokens
            ),
            strict=True,
        ):
            assert a.ids == b.ids
            for name in ("maps", "rows", "columns", "profile"):
                np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-6)


def test_blocks_after_the_last_chosen_head_are_not_computed(tiny):
    ran = []
    handles = [
        layer.mlp.register_forward_hook(lambda *_, i=i: ran.append(i))
        for i, layer in enumerate(tiny.hf.model.layers)
    ]
    early = hw.attention(tiny, "the cat saw a dog", "L1H2").rows
    assert ran == [0, 1]
    for handle in handles:
        handle.remove()
    np.testing.assert_array_equal(early[0], hw.attention(tiny, "the cat saw a dog", ["L1H2", "L3H0"]).rows[0])


def test_afterwards_the_model_is_as_it_was(tiny):
    ids = torch.tensor([tiny.tokens("the cat saw a dog")])
    before = tiny.hf(input_ids=ids).logits
    hw.attention(tiny, "the cat saw a dog", "L1H2")
    assert torch.equal(tiny.hf(input_ids=ids).logits, before)
    assert tiny.hf.config._attn_implementation == "sdpa"
    assert type(tiny.hf.config._attn_implementation) is str


def test_gates_around_the_call_act_on_later_layers(tiny):
    def off(layer, z):
        return z * 0 if layer == 0 else z

    plain = hw.attention(tiny, "the cat saw a dog", maps=True)
    with tiny.hook(off):
        gated = hw.attention(tiny, "the cat saw a dog", maps=True)
    first = [i for i, h in enumerate(plain.heads) if h.layer == 0]
    later = [i for i, h in enumerate(plain.heads) if h.layer > 0]
    np.testing.assert_array_equal(gated.maps[first], plain.maps[first])
    assert np.abs(gated.maps[later] - plain.maps[later]).max(axis=(1, 2)).min() > 1e-4
    with torch.no_grad():
        tiny.hf.model.layers[0].self_attn.o_proj.weight.zero_()
    np.testing.assert_allclose(hw.attention(tiny, "the cat saw a dog", maps=True).maps, gated.maps, atol=1e-6)


# ---- the proof ---------------------------------------------------------------------------------------------


def test_weights_that_do_not_give_the_output_are_refused(tiny, monkeypatch):
    from transformers.models.llama import modeling_llama

    honest = modeling_llama.eager_attention_forward

    def hotter(module, query, *args, **kwargs):
        return honest(module, query * 1.05, *args, **kwargs)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", hotter)
    with pytest.raises(HeadwiseError, match="does not give its output under 'sdpa'"):
        hw.attention(tiny, "the cat saw a dog", "L1H2")


def test_a_lost_sliding_window_is_refused(monkeypatch):
    model = hw.load(tiny_model("mistral", sliding_window=4), name="mistral")
    call = calls_of(model, token_lists(12)[0])[0]
    lost = type(call)(**{**vars(call), "mask": None, "options": {**call.options, "sliding_window": None}})
    with pytest.raises(HeadwiseError, match="does not give its output"):
        list(weight_blocks(lost, [0]))
    flash = type(call)(**{**vars(call), "mask": None})  # flash attention passes the window alone
    ((_, from_window),) = weight_blocks(flash, [0])
    ((_, from_mask),) = weight_blocks(call, [0])
    torch.testing.assert_close(from_window, from_mask)


# ---- what users see ----------------------------------------------------------------------------------------


def test_the_result_says_what_it_holds(tiny):
    found = hw.attention(tiny, "the cat saw a dog", ["L0H1", "L2H3"], queries=[-1, 2], keys=[0])
    assert found.tokens == ["the", "cat", "saw", "a", "dog"]
    assert (found.queries, found.keys) == ([4, 2], [0])
    assert found.rows.shape == (2, 2, 5)
    assert found.columns.shape == (2, 5, 1)
    assert found.profile.shape == (2, 5)
    assert found.maps is None
    np.testing.assert_allclose(found.rows.sum(-1), 1, atol=1e-6)
    assert not found.rows[:, 1, 3:].any()
    np.testing.assert_array_equal(np.isnan(found.profile[0]), [True, False, False, False, True])
    table = found.table()
    assert len(table) == 10
    row = table[(table["layer"] == 2) & (table["head"] == 3) & (table["key"] == 2)].iloc[0]
    assert (row.token, row.attention) == ("saw", found.profile[found.index("L2H3"), 2])


def test_one_text_gives_one_result_and_a_list_gives_a_list(tiny):
    one = hw.attention(tiny, "the cat", "L0H0")
    (listed,) = hw.attention(tiny, ["the cat"], Head(0, 0))
    np.testing.assert_array_equal(one.rows, listed.rows)
    assert hw.attention(tiny, [], "L0H0") == []


def test_a_key_value_head_stands_for_its_query_heads(tiny):
    assert hw.attention(tiny, "the cat", "L1KV1").heads == [Head(1, 2), Head(1, 3)]
    patched, both = (
        hw.patch(tiny, "the cat", "a dog", heads).patched for heads in ("L1KV1", ["L1H2", "L1H3"])
    )
    np.testing.assert_array_equal(patched, both)


def test_a_prompt_of_one_or_two_tokens_has_an_empty_profile(tiny):
    for length in (1, 2):
        (one,) = hw.attention(tiny, token_lists(length))
        assert np.isnan(one.profile).all()
        np.testing.assert_allclose(one.rows.sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "L4H0"}, "tiny has no head L4H0; it has 16 heads in 4 layers of up to 4"),
        ({"heads": "head 3"}, "is not a head"),
        ({"heads": []}, "no heads are given"),
        ({"heads": "L0H0", "queries": [5]}, "query 5 is outside a prompt of 5 tokens"),
        ({"heads": "L0H0", "keys": [-6]}, "key -6 is outside a prompt of 5 tokens"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(tiny, options, message):
    with pytest.raises(HeadwiseError, match=message):
        hw.attention(tiny, "the cat saw a dog", **options)


def test_prompts_without_tokens_and_bare_numbers_are_refused(tiny):
    with pytest.raises(HeadwiseError, match="prompt 2 has no tokens"):
        hw.attention(tiny, ["the cat", ""], "L0H0")
    with pytest.raises(HeadwiseError, match="a list of lists of token ids"):
        hw.attention(tiny, [3, 4, 5], "L0H0")
    with pytest.raises(HeadwiseError, match="prompt 1 has the token id 999; those of tiny are 0 to 25"):
        hw.attention(tiny, [[3, 999]], "L0H0")


def test_maps_that_would_fill_the_memory_are_refused_before_anything_runs(tiny, monkeypatch):
    monkeypatch.setattr("headwise.model.attention.attention.LARGEST_MAPS", 16 * 100)
    assert len(hw.attention(tiny, token_lists(10), maps=True)) == 1
    with pytest.raises(HeadwiseError, match="maps of 16 heads over these prompts"):
        hw.attention(tiny, token_lists(11), maps=True)


def test_a_head_that_was_not_asked_for_is_named(tiny):
    with pytest.raises(HeadwiseError, match="has no head L1H1; it has L0H0"):
        hw.attention(tiny, "the cat", "L0H0").index("L1H1")


def test_a_map_draws_itself_with_its_tokens(tiny):
    found = hw.attention(tiny, "the cat saw a dog", ["L0H1", "L2H3"], maps=True)
    figure = found.plot("L2H3")
    axes = figure.axes[0]
    assert axes.get_title() == "Attention of L2H3, tiny"
    assert [t.get_text() for t in axes.get_yticklabels()] == found.tokens
    drawn = axes.images[0].get_array()
    np.testing.assert_array_equal(drawn.filled(0), np.tril(found.maps[1]))
    assert drawn.mask.sum() == 10
    with pytest.raises(HeadwiseError, match="maps=True"):
        hw.attention(tiny, "the cat", "L0H0").plot()


def test_layers_that_share_their_weights_have_no_single_map():
    model = hw.load(tiny_model("llama"), name="shared")
    model.hf.model.layers[2] = model.hf.model.layers[1]
    # What the loader records of a family whose blocks run several times per pass.
    model.hooks.sites = [replace(site, calls=2) if site.layer == 1 else site for site in model.hooks.sites]
    with pytest.raises(HeadwiseError, match="layer 1 of shared calls its attention function several times"):
        hw.attention(model, token_lists(6), "L1H0")
