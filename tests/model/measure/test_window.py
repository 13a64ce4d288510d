"""The reference `window`, live in every pass, against attention with every mask written out."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import headwise as hw
from explicit_attention import explicit_attention
from headwise.errors import HeadwiseError
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.verify import shortcuts
from helpers import WORDS, word_model

SINK, WINDOW = 2, 5
HOW = {"reference": "window", "window": WINDOW, "sink": SINK}
FAMILIES = (
    "llama gemma gemma2 gemma3_text gpt_oss mistral mixtral qwen2 qwen3 qwen3_moe deepseek_v3 gpt2 gpt_neox opt phi "
    "phi3 olmo olmo2 starcoder2 stablelm granite smollm3"
).split()


def long_task(lengths=(24, 21, 9), metric="logprob"):
    """Prompts of which all are longer than the short view, and some longer than the tiny models' sliding windows."""
    prompts = [[WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(n)] for i, n in enumerate(lengths)]
    answers = [(WORDS[i + 1], WORDS[i + 9]) for i in range(len(lengths))]
    examples = [
        hw.Example(" ".join(prompt), f" {right}", (f" {wrong}",))
        for prompt, (right, wrong) in zip(prompts, answers, strict=True)
    ]
    return hw.Task("long", tuple(examples), metric)


def some_gates(shape, count=3):
    return np.random.default_rng(0).choice([0.0, 1.0, 0.4], (count, *shape))


def explicit_values(model, task, gates, sink=SINK, window=WINDOW):
    """log p of each example's one target token, with masks written out."""
    values = []
    for example in task:
        ids = torch.tensor([model.tokens(example.prompt)])
        target = model.tokens(example.target)[-1]
        with explicit_attention(model.hf, gates, sink, window), torch.no_grad():
            logits = model.hf(input_ids=ids, use_cache=False).logits[0, -1]
        values.append(float(logits.log_softmax(-1)[target]))
    return np.array(values)


@pytest.mark.parametrize("family", FAMILIES)
def test_windowed_heads_equal_masks_written_out(family):
    model, task = word_model(family), long_task()
    gates = some_gates(model.shape)
    found = hw.measure(model, task, gates, **HOW, progress=False)
    expected = np.stack([explicit_values(model, task, one) for one in gates])
    np.testing.assert_allclose(found.values, expected, atol=1e-4)
    np.testing.assert_allclose(found.full[0], explicit_values(model, task, np.ones(model.shape)), atol=1e-4)
    assert np.abs(found.effects).max(1).min() > 1e-2
    assert found.reference == "window:5:2"


def test_long_prompts_are_read_in_chunks(tiny, monkeypatch):
    monkeypatch.setattr("headwise.model.forward.short_view.ShortView.chunk", 4)
    found = hw.measure(tiny, task := long_task(), keep=["L1H2"], **HOW, progress=False)
    np.testing.assert_allclose(
        found.values, explicit_values(tiny, task, tiny.gates(keep=["L1H2"])), atol=1e-4
    )


@pytest.mark.parametrize("gate", [1.0, 0.0, 0.4])
def test_gradients_equal_finite_differences(tiny64, gate):
    task = long_task((20, 14))
    engine = Engine(tiny64, task, metric("logprob"), reference="window:5:2")
    gates = np.full((2, *tiny64.shape), gate)
    _, gradients = engine.gradients(gates)
    step = 1e-5
    for layer, head in [(0, 1), (2, 3), (3, 0)]:
        ends = np.repeat(gates[:1], 2, axis=0)
        ends[:, layer, head] += [step, -step]
        high, low = engine.measure(ends).values
        np.testing.assert_allclose(gradients[:, layer, head], (high - low) / (2 * step), rtol=1e-5, atol=1e-8)
    assert np.abs(gradients).min() > 1e-6


@pytest.mark.parametrize(
    "method", ["ablation", "keep", "attribution", "integrated", "sensitivity", "nested", "gating"]
)
def test_every_causal_method_scores_heads_by_their_short_view(tiny, method):
    quick = {"nested": {"updates": 4}, "gating": {"updates": 4}}.get(method, {})
    scores = hw.score(tiny, task := long_task(), method, **HOW, **quick, progress=False)
    assert scores.reference == "window:5:2"
    if method == "ablation":
        gates = tiny.gates(ablate=["L2H1"])
        effects = explicit_values(tiny, task, np.ones(tiny.shape)) - explicit_values(tiny, task, gates)
        np.testing.assert_allclose(scores.examples[:, 2, 1], effects, atol=1e-4)


def test_at_one_position_the_head_sees_less_there_alone(tiny):
    task = long_task((12, 12))
    scores = hw.score(tiny, task, "ablation", positions="each", heads=["L1H2"], **HOW, progress=False)
    values = scores.examples[:, 0]
    assert (values[:, : SINK + WINDOW] == 0).all()
    assert (values[:, SINK + WINDOW :] != 0).all()
    engine = Engine(tiny, task, metric("logprob"), reference="window:5:2", positions=(9,))
    expected = engine.measure(tiny.gates(ablate=["L1H2"])[None]).effects[0]
    np.testing.assert_allclose(values[:, 9], expected, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "mistral"])
def test_generation_in_padded_batches_equals_masks_written_out(family):
    model = word_model(family)
    gates = some_gates(model.shape, 2)
    prompts = [example.prompt for example in long_task((24, 19, 9))]
    found = hw.generate(model, prompts, gates, max_new_tokens=10, **HOW, progress=False)
    assert found.reference == "window:5:2"
    for variant, one in enumerate(gates):
        for prompt, written in zip(prompts, found.tokens[variant], strict=True):
            ids = model.tokens(prompt)
            with explicit_attention(model.hf, one, SINK, WINDOW), torch.no_grad():
                for token in written:
                    logits = model.hf(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
                    assert float(logits[token]) > float(logits.max()) - 1e-4
                    ids.append(token)


def test_sweeps_cards_and_joint_effects_take_the_window_too(tiny):
    task = long_task((14, 12, 13, 12))
    assert (
        hw.sweep(tiny, task, ["L0H0", "L1H2"], k=[0, 2], draws=1, progress=False, **HOW).reference
        == "window:5:2"
    )
    assert hw.card(tiny, "L1H2", task, progress=False, **HOW).reference == "window:5:2"
    joint = hw.interactions(tiny, task, ["L1H2", "L2H0"], metric="logprob", progress=False, **HOW)
    both = explicit_values(tiny, task, tiny.gates(ablate=["L1H2", "L2H0"]))
    full = explicit_values(tiny, task, np.ones(tiny.shape))
    assert joint.table()["joint"].iloc[0] == pytest.approx(float((full - both).mean()), abs=1e-4)


def test_a_view_that_nothing_is_longer_than_is_refused(tiny):
    hw.measure(tiny, long_task((8, 5)), ablate=["L0H0"], **HOW, progress=False)
    with pytest.raises(HeadwiseError, match="the first 2 and the last 5 are all of it"):
        hw.measure(tiny, long_task((7, 5)), ablate=["L0H0"], **HOW, progress=False)
    with pytest.raises(HeadwiseError, match="are all of it"):
        hw.generate(tiny, "the cat", ablate=["L0H0"], reference="window", progress=False)


def test_what_has_no_view_is_refused(tiny):
    task = long_task()
    with pytest.raises(HeadwiseError, match="MLP0 sees nothing"):
        hw.score(tiny, task, components=["heads", "mlps"], **HOW, progress=False)
    with pytest.raises(HeadwiseError, match="computed in each pass, and direct contributions"):
        hw.score(tiny, task, "direct", metric="logit_diff", **HOW, progress=False)
    with pytest.raises(HeadwiseError, match="computed in each pass, and the edges"):
        hw.edges(tiny, task, reference="window", progress=False)
    falcon = word_model("gptj")
    with pytest.raises(HeadwiseError, match="accessed by a projection hook"):
        hw.measure(falcon, task, ablate=["L0H0"], **HOW, progress=False)


@pytest.mark.parametrize("given", ["window:0", "window:a", "window:1:2:3", "window:", "windows"])
def test_a_misspelt_window_is_refused(tiny, given):
    with pytest.raises(HeadwiseError, match="reference"):
        hw.measure(tiny, long_task(), ablate=["L0H0"], reference=given, progress=False)


def test_a_view_that_is_ignored_or_cut_wrongly_is_found(tiny, monkeypatch):
    def deaf(implementation, function, module, options):
        return lambda query, key, value, seen, own=None: function(module, query, key, value, own, **options)[
            0
        ]

    def plain(view, implementation, function, call, options):
        return function(*call, **options)[0]

    assert shortcuts.short_view_problem(tiny.hooks) == ""
    monkeypatch.setattr(shortcuts, "masked_attention", deaf)
    assert "written out" in shortcuts.short_view_problem(tiny.hooks)
    monkeypatch.setattr(shortcuts.ShortView, "z", plain)
    assert "ignores a mask" in shortcuts.short_view_problem(tiny.hooks)
    monkeypatch.undo()
    monkeypatch.setattr(shortcuts.ShortView, "z", plain)
    assert "written out" in shortcuts.short_view_problem(tiny.hooks)


@pytest.mark.parametrize("which", ["the bundled model", "the folder of benchmarks/stories.py"])
def test_a_trained_model_under_a_window_equals_masks_written_out(which, smollm2):
    """HEADWISE_TEST_STORIES: where TinyStories 15M is; `pytest -s` shows the largest difference."""
    folder = os.environ.get("HEADWISE_TEST_STORIES")
    if which != "the bundled model" and not folder:
        pytest.skip("HEADWISE_TEST_STORIES names no folder")
    model = smollm2 if which == "the bundled model" else hw.load(folder)
    task = hw.task("induction", 2, model=model)
    gates = np.random.default_rng(1).choice([0.0, 1.0, 0.4], (2, *model.shape))
    found = hw.measure(model, task, gates, metric="logprob", **HOW, progress=False)
    expected = np.stack([explicit_values(model, task, one) for one in gates])
    print(f"{which}: at most {np.abs(found.values - expected).max():.1e}")
    np.testing.assert_allclose(found.values, expected, atol=1e-4)
    assert np.abs(found.effects).min() > 1e-2
