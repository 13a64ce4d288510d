"""The engine against slow, obvious computations: plain transformers, one row at a time, hooks by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head, keep_gates, mask_gates, ones, single_gates
from headwise.metrics import metric, metrics
from headwise.model.measure.engine import Engine
from headwise.tasks import Example, Task
from helpers import HeadsByHook, plain_difference, plain_logits, recorded, word_model, word_task


def one_by_one(model, task, gates, reference=None):
    """logit_diff of every (variant, example), each in its own forward pass with hooks.

    reference(example) gives r[layer] -> [T, H, D], by default zero.
    """
    values = np.empty((len(gates), len(task)))
    for v, gate in enumerate(gates):
        for e, example in enumerate(task):
            replaced = reference(e) if reference else None

            def edit(layer, z, gate=gate, replaced=replaced):
                g = torch.tensor(gate[layer], dtype=z.dtype, device=z.device)[:, None]
                r = torch.zeros_like(z[0]) if replaced is None else replaced[layer]
                return g * z + (1 - g) * r

            with HeadsByHook(model, edit):
                values[v, e] = plain_difference(model, example)
    return values


def some_gates(model):
    rng = np.random.default_rng(0)
    return np.stack(
        [
            ones(model.shape),
            mask_gates([Head(0, 1)], model.shape),
            mask_gates([Head(2, 3), Head(3, 0)], model.shape),
            keep_gates([Head(1, 2)], model.shape),
            rng.uniform(0, 2, model.shape).astype(np.float32),
        ]
    )


@pytest.mark.parametrize("equal_length", [True, False])
def test_values_equal_one_forward_pass_per_row_with_hooks(tiny, equal_length):
    task = word_task(equal_length=equal_length)
    gates = some_gates(tiny)
    values = Engine(tiny, task, metric("logit_diff")).measure(gates).values
    np.testing.assert_allclose(values, one_by_one(tiny, task, gates), atol=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 7, 40, 10_000])
def test_any_batch_size_gives_the_same_values(tiny, batch_tokens):
    task, gates = word_task(equal_length=False), some_gates(tiny)
    whole = Engine(tiny, task, metric("logit_diff")).measure(gates).values
    cut = Engine(tiny, task, metric("logit_diff"), batch_tokens=batch_tokens).measure(gates).values
    np.testing.assert_allclose(cut, whole, atol=1e-5)


def test_the_same_chunks_give_the_same_bits(tiny):
    task, gates = word_task(), some_gates(tiny)
    first = Engine(tiny, task, metric("logit_diff")).measure(gates)
    again = Engine(tiny, task, metric("logit_diff")).measure(gates)
    assert np.array_equal(first.values, again.values)
    assert np.array_equal(first.full, again.full)


def test_a_head_that_does_nothing_scores_exactly_zero(tiny):
    with torch.no_grad():
        tiny.hf.model.layers[1].self_attn.o_proj.weight[:, 16:24] = 0  # head 2 of layer 1
    for batch_tokens in (30, 10_000):
        engine = Engine(tiny, word_task(equal_length=False), metric("logit_diff"), batch_tokens=batch_tokens)
        effects = engine.measure(single_gates(tiny.heads(), tiny.shape)).effects
        dead = tiny.heads().index(Head(1, 2))
        assert not effects[dead].any()
        assert np.abs(np.delete(effects, dead, axis=0)).min(axis=0).max() > 0


@pytest.mark.parametrize(
    ("reference", "equal_length", "mean_of"),
    [
        ("mean", False, lambda outputs: torch.cat(outputs).mean(0)[None]),
        ("position_mean", True, lambda outputs: torch.stack(outputs).mean(0)),
    ],
)
def test_a_mean_reference_is_the_mean_over_all_real_tokens_or_at_each_position(
    tiny, reference, equal_length, mean_of
):
    task = word_task(equal_length=equal_length)
    outputs = [recorded(tiny, e.prompt) for e in task]
    mean = {layer: mean_of([o[layer] for o in outputs]) for layer in range(4)}
    gates = some_gates(tiny)
    values = Engine(tiny, task, metric("logit_diff"), reference=reference).measure(gates).values
    np.testing.assert_allclose(values, one_by_one(tiny, task, gates, lambda e: mean), atol=1e-5)


def test_the_position_mean_reference_refuses_examples_of_different_lengths(tiny):
    with pytest.raises(HeadwiseError, match="equal length; these have 4 to 6 tokens"):
        Engine(tiny, word_task(equal_length=False), metric("logit_diff"), reference="position_mean")


@pytest.mark.parametrize(("words", "of_reference"), [((6,), 4), ((4,), 6), ((4, 5), 6)])
def test_the_position_mean_reference_refuses_prompts_of_another_length_than_its_reference_task(
    tiny, words, of_reference
):
    """Else it would fail inside the model, or replace a head by its mean at another place of the sentence."""

    def of_length(*lengths: int) -> Task:
        return Task("words", tuple(Example("the " * n + "cat", " dog", (" bird",)) for n in lengths))

    options = {"reference": "position_mean", "reference_task": of_length(of_reference, of_reference)}
    with pytest.raises(HeadwiseError, match="prompts as long as those of its reference examples"):
        Engine(tiny, of_length(*words), metric("logit_diff"), **options)
    assert Engine(tiny, of_length(of_reference), metric("logit_diff"), **options).full().shape == (1,)


def test_the_patch_reference_is_the_counterfactual_run(tiny):
    task, gates = word_task(equal_length=False), some_gates(tiny)
    values = Engine(tiny, task, metric("logit_diff"), reference="patch").measure(gates).values
    other = [recorded(tiny, e.counterfactual) for e in task]
    np.testing.assert_allclose(values, one_by_one(tiny, task, gates, lambda e: other[e]), atol=1e-5)


def test_the_resample_reference_is_another_example_of_equal_length(tiny):
    task = word_task()
    gates = mask_gates([Head(1, 0), Head(2, 1)], tiny.shape)[None]
    values = Engine(tiny, task, metric("logit_diff"), reference="resample", seed=3).measure(gates).values[0]
    outputs = [recorded(tiny, e.prompt) for e in task]
    for e in range(len(task)):
        candidates = [
            one_by_one(tiny, task.take([e]), gates, lambda _, o=o: outputs[o])[0, 0] for o in range(len(task))
        ]
        matching = [o for o, value in enumerate(candidates) if abs(value - values[e]) < 1e-5]
        assert matching
        assert e not in matching


def test_identical_prompts_with_a_patch_reference_give_exactly_zero(tiny):
    same = [Example(e.prompt, e.target, e.foils, e.prompt) for e in word_task()]
    for batch_tokens in (20, 10_000):
        engine = Engine(
            tiny,
            Task("same", tuple(same)),
            metric("logit_diff"),
            reference="patch",
            batch_tokens=batch_tokens,
        )
        assert not engine.measure(some_gates(tiny)).effects.any()


def test_a_counterfactual_of_another_length_is_an_error_with_both_lengths(tiny):
    example = Example("the cat saw", " dog", (" bird",), "the big cat saw")
    with pytest.raises(HeadwiseError, match="example 1: its prompt has 3 tokens and the counterfactual 4"):
        Engine(tiny, Task("odd", (example,)), metric("logit_diff"), reference="patch")


def test_gates_at_the_last_position_leave_the_prompt_before_it_alone(tiny):
    task = word_task(equal_length=False)
    gates = some_gates(tiny)[1:3]
    values = Engine(tiny, task, metric("logit_diff"), positions="last").measure(gates).values
    for v, gate in enumerate(gates):
        for e, example in enumerate(task):

            def edit(layer, z, gate=gate):
                z = z.clone()
                z[:, -1] *= torch.tensor(gate[layer], device=z.device)[:, None]
                return z

            with HeadsByHook(tiny, edit):
                assert values[v, e] == pytest.approx(plain_difference(tiny, example), abs=1e-5)


# ---- gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["zero", "mean", "patch", "resample"])
@pytest.mark.parametrize("name", ["logit_diff", "logprob", "prob", "prob_diff", "mean_logprob"])
def test_gradients_equal_finite_differences(tiny64, reference, name):
    task = word_task(3)
    engine = Engine(tiny64, task, metric(name), reference=reference)
    at = np.random.default_rng(1).uniform(0.2, 1.3, (len(task), *tiny64.shape))
    values, slopes = engine.gradients(at)
    step = 1e-5
    for layer, head in [(0, 0), (1, 3), (3, 2)]:
        for e in range(len(task)):
            moved = np.stack([at[e], at[e]])
            moved[:, layer, head] += [step, -step]
            up, down = engine.measure(moved).values[:, e]
            assert slopes[e, layer, head] == pytest.approx((up - down) / (2 * step), rel=1e-5, abs=1e-8)
        np.testing.assert_allclose(
            values, [engine.measure(at[e][None]).values[0, e] for e in range(len(task))]
        )


def test_shared_gates_give_the_gradient_of_each_example(tiny64):
    task = word_task(4)
    engine = Engine(tiny64, task, metric("logit_diff"))
    shared = np.full(tiny64.shape, 0.7)
    _, together = engine.gradients(shared)
    _, each = engine.gradients(np.broadcast_to(shared, (4, *tiny64.shape)))
    assert np.array_equal(together, each)


def test_no_weight_needs_a_gradient_while_those_of_the_gates_are_computed(tiny):
    engine = Engine(tiny, word_task(), metric("logit_diff"))
    trainable = []

    def note(module, args, kwargs):
        trainable.append(any(parameter.requires_grad for parameter in module.parameters()))

    note_handle = tiny.hf.register_forward_pre_hook(note, with_kwargs=True)
    engine.measure(np.ones((1, *tiny.shape)))
    assert trainable == [True]  # a loaded model may be trained further
    trainable.clear()
    engine.gradients()
    engine.mean_gradients([0.5])
    engine.row_gradients([0], np.ones((1, *tiny.shape)))
    note_handle.remove()
    assert trainable == [False] * 3


def test_a_metric_without_gradient_is_refused(tiny):
    with pytest.raises(HeadwiseError, match="'accuracy' has no gradient"):
        Engine(tiny, word_task(), metric("accuracy")).gradients()


# ---- memory ------------------------------------------------------------------------------------------------


def test_running_out_of_memory_halves_the_batch_and_changes_no_value(tiny, monkeypatch):
    task, gates = word_task(equal_length=False), some_gates(tiny)
    expected = Engine(tiny, task, metric("logit_diff")).measure(gates).values
    engine = Engine(tiny, task, metric("logit_diff"))
    forward = engine._logits

    def greedy(block, chunk, *more):
        if len(chunk) * block.size * block.length > 40:
            raise torch.OutOfMemoryError("out of memory")
        return forward(block, chunk, *more)

    monkeypatch.setattr(engine, "_logits", greedy)
    np.testing.assert_allclose(engine.measure(gates).values, expected, atol=1e-5)
    assert engine.batch_tokens < tiny.batch_tokens


@pytest.mark.parametrize(
    ("raised", "expected", "said"),
    [
        (torch.OutOfMemoryError, HeadwiseError, r"example 1 of task 'words' \(6 tokens\) does not fit"),
        (RuntimeError, RuntimeError, "something else"),
    ],
)
def test_a_row_that_cannot_fit_is_named_and_other_errors_are_not_taken_for_it(
    tiny, monkeypatch, raised, expected, said
):
    engine = Engine(tiny, word_task(), metric("logit_diff"))

    def broken(*_):
        raise raised("something else")

    monkeypatch.setattr(engine, "_logits", broken)
    with pytest.raises(expected, match=said):
        engine.measure(some_gates(tiny))


def test_logits_are_computed_at_scored_positions_only(tiny):
    seen = []
    unembedding = tiny.hf.get_output_embeddings()
    handle = unembedding.register_forward_hook(lambda _, args, out: seen.append(out.shape))
    Engine(tiny, word_task(), metric("logit_diff")).measure(some_gates(tiny))
    handle.remove()
    assert {shape[1] for shape in seen} == {1}


# ---- bad input ---------------------------------------------------------------------------------------------


def test_gates_of_the_wrong_shape_say_what_was_expected(tiny):
    with pytest.raises(HeadwiseError, match=r"\(4, 4\) do not fit tiny: expected \[variants, 4, 4\]"):
        Engine(tiny, word_task(), metric("logit_diff")).measure(np.ones((4, 4)))


def test_gates_that_are_not_numbers_are_refused(tiny):
    with pytest.raises(HeadwiseError, match="finite"):
        Engine(tiny, word_task(), metric("logit_diff")).measure(np.full((1, 4, 4), np.nan))


@pytest.mark.parametrize(
    ("option", "value", "near"), [("reference", "zeros", "zero"), ("positions", "lasts", "last")]
)
def test_unknown_references_and_positions_name_the_nearest(tiny, option, value, near):
    with pytest.raises(HeadwiseError, match=f"did you mean '{near}'"):
        Engine(tiny, word_task(), metric("logit_diff"), **{option: value})


# ---- other families ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family", ["gpt2", "gptj", "gpt_oss", "gemma2", "deepseek_v3", "jamba", "falcon", "gemma3_text"]
)
def test_one_head_off_equals_edited_weights_in_other_families(family):
    model = word_model(family)
    task = word_task(3, equal_length=False)
    engine = Engine(model, task, metric("logprob"))
    head = model.heads()[-1]
    gated = engine.measure(mask_gates([head], model.shape)[None]).values[0]
    site = next(s for s in model.hooks.sites if s.layer == head.layer)
    projection = site.projections[0]
    weight = projection.weight.data
    columns = slice(head.head * site.head_dim, (head.head + 1) * site.head_dim)
    (weight if type(projection).__name__ == "Conv1D" else weight.T)[columns] = 0
    for e, example in enumerate(task):
        *_, target = model.tokens(example.target.strip())
        expected = plain_logits(model, model.tokens(example.prompt))[-1].log_softmax(-1)[target]
        assert gated[e] == pytest.approx(float(expected), abs=1e-4)


def test_heads_that_a_hybrid_does_not_have_are_never_gated():
    model = word_model("jamba")
    engine = Engine(model, word_task(3), metric("logprob"))
    gates = np.where(model.exists, 1.0, 0.0)[None]
    assert np.array_equal(engine.measure(gates).effects, np.zeros((1, 3)))
    scores = hw.score(model, word_task(3))
    assert np.isnan(scores.values).sum() == 8
    assert len(scores.table()) == 8


def test_every_metric_runs_and_kl_is_zero_at_full_gates(tiny):
    for name in metrics():
        values = Engine(tiny, word_task(), metric(name)).measure(some_gates(tiny)).values
        assert np.isfinite(values).all()
        if name == "kl":
            assert np.abs(values[0]).max() < 1e-6
            assert (values[1:] < 0).all()


def test_a_planted_head_is_found(tiny):
    """All heads silenced but one: ablation must give every other head exactly 0 and that one all of the effect."""
    with torch.no_grad():
        for layer in tiny.hf.model.layers:
            keep = layer.self_attn.o_proj.weight[:, 8:16].clone()
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            if layer is tiny.hf.model.layers[2]:
                layer.self_attn.o_proj.weight[:, 8:16] = 5 * keep
    scores = hw.score(tiny, word_task())
    others = [abs(scores[h]) for h in scores.heads() if h != Head(2, 1)]
    assert max(others) == 0
    assert abs(scores["L2H1"]) > 0.01


@pytest.mark.parametrize("batch_tokens", [30, 120, 10_000])
@pytest.mark.parametrize("reference", ["zero", "mean", "patch"])
def test_the_mean_of_slopes_over_levels_is_that_of_one_call_per_level(tiny64, batch_tokens, reference):
    engine = Engine(
        tiny64,
        word_task(equal_length=False),
        metric("logit_diff"),
        reference=reference,
        batch_tokens=batch_tokens,
    )
    levels = [0.1, 0.35, 0.9]
    single = [engine.gradients(np.full(tiny64.shape, level))[1] for level in levels]
    np.testing.assert_allclose(engine.mean_gradients(levels), np.mean(single, axis=0), atol=1e-12)
    assert not np.allclose(single[0], single[2])


def test_the_donors_of_rows_under_several_gates_run_once(tiny):
    engine = Engine(tiny, word_task(4), metric("logit_diff"), reference="patch", batch_tokens=10_000)
    rows = []
    counted = tiny.hf.register_forward_hook(lambda _, __, output: rows.append(len(output.logits)))
    engine.mean_gradients([0.2, 0.5, 0.8])  # three levels beside one another, as several rows of each example
    engine.measure(np.zeros((1, *tiny.shape)))  # no gradients: tensors that cannot be used in the next call
    engine.gradients()
    engine.gradients()
    counted.remove()
    donors, plain = 4, 4
    assert rows == [donors, 3 * plain, donors, 2 * plain, donors, plain, plain]
