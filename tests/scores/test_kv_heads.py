"""Key/value heads: one gate for all query heads of a group."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head, lone_gates, mask_gates, single_gates
from headwise.metrics import metric
from headwise.model.forward.run import Pass, run
from headwise.model.forward.short_view import ShortView
from headwise.model.generation.streaming import Streaming
from headwise.model.measure.engine import Engine
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.verify.components import query_groups
from headwise.model.verify.tiny import tiny_model
from headwise.scores.registry import SHARED_ROW, method
from headwise.tasks import Example, Task
from helpers import word_model, word_task

KV = ["kv_heads"]
REFERENCES = ["zero", "mean", "position_mean", "patch", "resample", "window:2:1"]
FAMILIES = ["llama", "gemma2", "gpt_oss", "mimo_v2_flash", "falcon", "gpt_bigcode", "gpt2"]
"""Groups of two; a norm after attention; sinks; layers with different groups; one group for all heads, read by a
projection hook and by the attention function; no groups."""


def members(model, kv):
    """The query heads of a key/value head, from what the configuration says of its layer."""
    site = next(site for site in model.hooks.sites if site.layer == kv.layer)
    size, number = site.heads // site.kv_heads, -1000 - kv.head
    return [Head(kv.layer, head) for head in range(size * number, size * (number + 1))]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gate_of_a_key_value_head_is_that_of_its_query_heads(family):
    model, task = word_model(family), word_task(4)
    scores = hw.score(model, task, "ablation", reference="mean", components=KV, progress=False)
    engine = Engine(model, task, metric("logit_diff"), reference="mean")
    gates = np.stack([mask_gates(members(model, kv), model.shape) for kv in scores.heads()])
    expected = engine.measure(gates).effects.mean(1)
    assert sum(len(members(model, kv)) for kv in scores.heads()) == len(model.heads())
    np.testing.assert_allclose([scores[kv] for kv in scores.heads()], expected, atol=1e-5)
    assert np.ptp(expected) > 1e-3
    gradient = hw.score(model, task, "attribution", reference="mean", components=KV, progress=False)
    of_heads = hw.score(model, task, "attribution", reference="mean", progress=False)
    sums = [sum(of_heads[head] for head in members(model, kv)) for kv in gradient.heads()]
    np.testing.assert_allclose([gradient[kv] for kv in gradient.heads()], sums, atol=1e-5)


@pytest.mark.parametrize(
    "family", ["llama", "gemma3_text", "gpt_oss", "mimo_v2_flash", "phi3", "glm", "qwen3_next"]
)
def test_the_values_of_a_key_value_head_reach_its_query_heads_and_no_others(family):
    """What a layer attends to is changed: the groups of the score must be those of the attention itself."""
    hooks = HeadHooks(tiny_model(family))
    groups = query_groups(hooks)
    for site in hooks.sites:
        rows, outputs = torch.arange(site.kv_heads), {}

        def larger(layer, slots, rows=rows, site=site):
            query, key, value = slots
            if layer == site.layer:  # one more in each row, and none in the last
                value = value.clone()
                value[rows, rows] += 1
            return query, key, value

        def note(layer, z, outputs=outputs):
            outputs[layer] = z
            return z

        ids = torch.arange(3, 9).repeat(site.kv_heads + 1, 1)
        with torch.no_grad():
            run(
                hooks.model,
                Pass(ids=ids, heads=note, slots=larger),
                hooks,
            )
        z = outputs[site.layer]
        reached = (z[:-1] - z[-1]).abs().amax(dim=(1, 3)).numpy() > 1e-4  # KV, H
        assert np.array_equal(reached, groups[site.layer, : site.heads] == rows.numpy()[:, None])


def test_without_the_columns_of_a_group_in_the_output_projection(tiny):
    task = word_task(4)
    full = hw.measure(tiny, task, reference="zero", progress=False).values
    scores = hw.score(tiny, task, "ablation", reference="zero", components=KV, progress=False)
    assert scores.shape == (4, 2)
    with torch.no_grad():
        tiny.hf.model.layers[2].self_attn.o_proj.weight[:, 16:] = 0  # heads 2 and 3
    without = hw.measure(tiny, task, reference="zero", progress=False).values
    np.testing.assert_allclose(scores.examples[:, 2, 1], full - without, atol=1e-5)


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("method", ["ablation", "keep"])
def test_exact_scores_under_every_reference(tiny, method, reference):
    task, options = word_task(4), {"reference": reference, "progress": False}
    scores = hw.score(tiny, task, method, components=KV, **options)
    heads, make = scores.heads(), single_gates if method == "ablation" else lone_gates
    rows = make([head for kv in heads for head in members(tiny, kv)], tiny.shape)
    gates = (np.minimum if method == "ablation" else np.maximum)(rows[::2], rows[1::2])
    both = hw.measure(tiny, task, np.concatenate([gates, np.zeros((1, 4, 4))]), **options)
    expected = both.effects[:-1] if method == "ablation" else both.values[:-1] - both.values[-1]
    np.testing.assert_allclose(scores.examples[:, scores.exists], expected.T, atol=1e-5)


def test_integrated_scores_sum_to_all_minus_none_and_direct_ones_to_those_of_the_heads(tiny):
    task = word_task(4)
    found = hw.score(tiny, task, "integrated", reference="patch", components=KV, steps=64, progress=False)
    none = hw.measure(tiny, task, np.zeros((4, 4)), reference="patch", progress=False)
    assert found.values.sum() == pytest.approx(none.effects.mean(), rel=0.02)
    direct = hw.score(tiny, task, "direct", components=KV, progress=False)
    alone = hw.score(tiny, task, "direct", progress=False).examples
    np.testing.assert_allclose(direct.examples, alone.reshape(4, 4, 2, 2).sum(-1), atol=1e-6)


def test_the_direct_score_of_the_only_key_value_head_of_a_layer_is_that_of_all_its_heads():
    model = word_model("mimo_v2_flash")
    direct, alone = (
        hw.score(model, word_task(4), "direct", progress=False, **more) for more in ({"components": KV}, {})
    )
    for kv in direct.heads():
        assert direct[kv] == pytest.approx(sum(alone[head] for head in members(model, kv)), abs=1e-6)


@pytest.mark.parametrize("method", ["ablation", "attribution"])
def test_each_position(tiny, method):
    task = word_task(3)
    scores = hw.score(tiny, task, method, positions="each", components=KV, reference="mean", progress=False)
    assert scores.heads() == tiny.layout(KV).listed()
    for position in (1, 4):
        at = hw.score(
            tiny, task, method, positions=[position], components=KV, reference="mean", progress=False
        )
        for kv in ("L0KV1", "L3KV0"):
            assert scores[kv, position] == pytest.approx(at[kv], abs=1e-5)
    assert set(scores.table()["component"]) == {"kv_head"}


def test_frozen_groups_keep_their_plain_outputs(tiny):
    """With every other group frozen, ablating one is what freezing the other heads by hand gives."""
    task, kv = word_task(3), Head.parse("L1KV0")
    gates, frozen = {}, {}
    for components, chosen in (("kv_heads", [kv]), ("heads", members(tiny, kv))):
        layout = tiny.layout(components)
        gates[components] = mask_gates(chosen, layout)[None]
        frozen[components] = gates[components] == 1
    found = [
        Engine(tiny, task, metric("logit_diff"), components=name).measure(gates[name], frozen=frozen[name])
        for name in gates
    ]
    np.testing.assert_allclose(found[0].effects, found[1].effects, atol=1e-6)
    assert np.abs(found[0].effects).max() > 1e-3


# ---- sweeps, nested masks, precision, certificates ---------------------------------------------------------------


@pytest.mark.parametrize("action", ["keep", "mask"])
def test_a_sweep_over_key_value_heads_equals_sets_of_query_heads(tiny, action):
    task, options = word_task(5), {"reference": "mean", "progress": False}
    found = hw.score(tiny, task, "ablation", components=KV, **options)
    curve = hw.sweep(tiny, task, found, action, k=[0, 1, 3, 8], draws=2, control_points=3, **options)
    assert curve.total == 8
    name = "ablate" if action == "mask" else "keep"
    for k, values in zip(curve.k, curve.values, strict=True):
        heads = [head for kv in found.top(k) for head in members(tiny, kv)]
        gates = tiny.gates(**{name: heads})
        np.testing.assert_allclose(values, hw.measure(tiny, task, gates, **options).values, atol=1e-5)
    for control in curve.controls:
        for k, drawn in zip(control.k, control.sets, strict=True):
            assert {head.head for head in drawn} <= {-1000, -1001}
            assert not set(drawn) & set(found.top(k))
            if control.series == "random_layer":
                layers = [sorted(head.layer for head in heads) for heads in (drawn, found.top(k))]
                assert layers[0] == layers[1] or control.moved is not None
    again = hw.sweep(
        tiny, task, ["L2KV1", "L0KV0"], action, components="kv_heads", k=[1], controls=[], **options
    )
    assert again.order == [Head(2, -1001), Head(0, -1000)]


@pytest.fixture
def one_group(word_tokenizer):
    """A tiny Qwen2 in which L2H2 and L2H3, the group of L2KV1, each write the same for one answer; and its task."""
    first = word_task(1).examples[0]
    hf = tiny_model("qwen2", vocab_size=len(word_tokenizer))
    (target,), (foil,) = (word_tokenizer.encode(text.strip()) for text in (first.target, first.foils[0]))
    with torch.no_grad():
        attention = hf.model.layers[2].self_attn
        attention.v_proj.weight[8:] = 0
        attention.v_proj.bias[8:] = 1
        direction = hf.lm_head.weight[target] - hf.lm_head.weight[foil]
        attention.o_proj.weight[:, 16:] = (2 * direction / direction.norm())[:, None]
    examples = (Example(one.prompt, first.target, first.foils) for one in word_task(24))
    return hw.load(hf, tokenizer=word_tokenizer, name="one group"), Task(
        "same", tuple(examples), "logit_diff"
    )


def test_a_planted_group_is_first_in_the_learned_and_in_the_exact_ranking(one_group):
    options = {"reference": "zero", "components": KV, "progress": False}
    nested = hw.score(*one_group, "nested", rows=400, seeds=1, **options)
    exact = hw.score(*one_group, "ablation", **options)
    assert str(nested.top(1)[0]) == str(exact.top(1)[0]) == nested.details["order"][0] == "L2KV1"
    assert nested.shape == (4, 2)


def test_a_certificate_of_key_value_heads_measures_the_groups(one_group):
    options = {"reference": "zero", "quick": True, "draws": 20, "progress": False}
    of_groups = hw.certify(*one_group, ["L2KV1"], **options)
    of_heads = hw.certify(*one_group, ["L2H2", "L2H3"], **options)
    assert (of_groups.total, of_heads.total) == (8, 16)
    assert [str(head) for head in of_groups.heads] == ["L2KV1"]
    sufficient = [one.lines["value"].iloc[0] for one in (of_groups, of_heads)]
    assert sufficient[0] == pytest.approx(sufficient[1], abs=1e-5)


def test_scores_that_stop_early_agree_with_those_of_all_examples(tiny):
    task, options = word_task(20), {"reference": "mean", "components": KV, "progress": False}
    exact = hw.score(tiny, task, "ablation", **options)
    early = hw.score(tiny, task, "ablation", precision=0.0, **options)
    np.testing.assert_allclose(early.values, exact.values, atol=1e-5)
    assert early.table()["head"].tolist() == exact.table()["head"].tolist() == [-1000, -1001] * 4


# ---- where heads are named ---------------------------------------------------------------------------------------


def test_where_heads_are_named_a_key_value_head_stands_for_its_query_heads(tiny):
    assert np.argwhere(tiny.gates(ablate=["L1KV1", "L0H0"]) == 0).tolist() == [[0, 0], [1, 2], [1, 3]]
    kept = tiny.gates(keep="L3KV0")
    assert np.argwhere(kept == 1).tolist() == [[3, 0], [3, 1]]
    both = [
        hw.generate(tiny, ["the cat saw"], ablate=heads, max_new_tokens=4)
        for heads in (["L1KV1"], ["L1H2", "L1H3"])
    ]
    assert both[0].texts == both[1].texts
    assert tiny.query_heads(["L2H3", "L1KV0"]) == [(2, 3), (1, 0), (1, 1)]
    far = [
        Streaming(tiny.hooks, tiny.query_heads(heads), ShortView(4, 64))._far
        for heads in (["L1H2", "L1H3"], ["L1KV1"])
    ]
    assert all(
        torch.equal(*pair) for layer in far[0] for pair in zip(far[0][layer], far[1][layer], strict=True)
    )


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [["heads"], ["mlps"], ["input", "heads"]])
def test_key_value_heads_are_asked_for_alone(tiny, others):
    for call in (
        lambda: hw.score(tiny, word_task(2), "ablation", components=[*others, "kv_heads"]),
        lambda: hw.sweep(tiny, word_task(2), ["L0KV0"], components=["kv_heads", *others]),
        lambda: tiny.layout([*others, "kv_heads"]),
    ):
        with pytest.raises(HeadwiseError, match=r"kv_heads together with .*ask for kv_heads alone"):
            call()
    with pytest.raises(HeadwiseError, match="kv_heads together with heads"):
        hw.certify(tiny, word_task(2), ["L0KV0", "L1H1"])


def test_families_without_known_groups_are_refused():
    with pytest.raises(HeadwiseError, match=r"latent attention.*leave 'kv_heads' out"):
        hw.score(word_model("deepseek_v2"), word_task(2), "ablation", components=KV)
    with pytest.raises(HeadwiseError, match="reached by a projection hook, where it is not seen which share"):
        hw.score(word_model("diffllama"), word_task(2), "ablation", components=KV)


def test_a_key_value_head_that_the_model_does_not_have_is_refused(tiny):
    for call in (
        lambda: hw.score(tiny, word_task(2), "ablation", components=KV, heads=["L1KV2"]),
        lambda: tiny.gates(ablate=["L1KV2"]),
    ):
        with pytest.raises(
            HeadwiseError,
            match="tiny has no component L1KV2; it has 8 components in 4 layers of up to 2 key/value",
        ):
            call()
    with pytest.raises(HeadwiseError, match=r"no component L1H0.*asked for are kv_heads"):
        hw.score(tiny, word_task(2), "ablation", components=KV, heads=["L1H0"])
    with pytest.raises(HeadwiseError, match=r"names L1H0, which tiny does not have \(8 components\)"):
        hw.sweep(tiny, word_task(2), ["L1H0"], components=KV)
    with pytest.raises(HeadwiseError, match="names L1KV0"):
        hw.sweep(tiny, word_task(2), ["L1KV0"])


@pytest.mark.parametrize("method", ["gating", "probe", "pattern", "sensitivity"])
def test_methods_that_know_heads_alone_say_so(tiny, method):
    with pytest.raises(HeadwiseError, match=f"'{method}' scores heads alone"):
        hw.score(tiny, word_task(2), method, components=KV)


def test_edges_have_no_key_value_heads_but_lead_into_them(tiny):
    with pytest.raises(HeadwiseError, match="kv_heads is no component of edges"):
        hw.edges(tiny, word_task(2), components=KV)
    found = hw.edges(tiny, word_task(2), into="L2KV1", out_of=["L0H1"], progress=False)
    assert [str(edge) for edge in found.edges] == ["L0H1->L2KV1.K", "L0H1->L2KV1.V"]


@pytest.mark.parametrize("components", [["heads"], ["kv_heads"], ["heads", "mlps"]])
def test_progress_counts_what_is_scored(components, tiny):
    """And the rows of a plan are in proportion, so that the time left is right."""
    task, done = word_task(4), []
    hw.score(tiny, task, "ablation", components=components, progress=lambda steps=1: done.append(steps))
    ablation, scored = method("ablation"), len(tiny.layout(components).listed())
    assert sum(done) == ablation.steps(tiny, task, components) == scored * 4
    assert ablation.cost(tiny, task, "mean", {"components": components}) == SHARED_ROW * scored * 4
