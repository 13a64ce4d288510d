"""Amplified and shifted heads, against hooks and plain sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.outputs.answers import directions, last_outputs
from headwise.runs import Job
from headwise.studies.masking.texts import Case, Judge, contrast, intervene, variants
from headwise.tasks import Example, Task
from helpers import WORDS, HeadsByHook, plain_logits

HEADS = [Head(1, 2), Head(3, 0)]
PROMPTS = ["the cat saw", "a dog met the big bird", "she liked"]


def questions(n=8, foils=True):
    draw = np.random.default_rng(3)
    examples = []
    for _ in range(n):
        words = [str(word) for word in draw.choice(WORDS[:20], 6, replace=False)]
        examples.append(Example(" ".join(words[:4]), f" {words[4]}", (f" {words[5]}",) if foils else ()))
    return Task("made up", tuple(examples))


def slow_outputs(model, text):
    """Every head's output at the last token of a text, by hooks: `[L, H, D]`."""
    seen = {}

    def note(layer, z):
        seen[layer] = z[0, -1].double()
        return z

    with HeadsByHook(model, note):
        plain_logits(model, model.tokens(text))
    return torch.stack([seen[layer] for layer in sorted(seen)]).numpy()


def slow_text(model, prompt, added, count, from_last):
    """Greedy decoding without batch or cache, with vectors added to head outputs by hooks."""
    ids = model.tokens(prompt)
    start = len(ids)

    def add(layer, z):
        z = z.clone()
        begin = start - 1 if from_last else 0
        z[:, begin:] += torch.from_numpy(added[layer]).to(z)
        return z

    for _ in range(count):
        with HeadsByHook(model, add):
            ids = [*ids, int(plain_logits(model, ids)[-1].argmax())]
    return ids[start:]


def test_outputs_at_the_last_token_are_those_that_hooks_see(tiny):
    texts = [*PROMPTS, "the"]
    found = last_outputs(tiny, texts)
    for text, outputs in zip(texts, found, strict=True):
        np.testing.assert_allclose(outputs, slow_outputs(tiny, text), atol=1e-5)


def test_a_direction_is_the_scaled_difference_of_means_and_its_spread_that_of_the_projections(tiny):
    right, wrong = ["the cat sat", "a dog ran", "she saw it"], ["the cat red", "a dog and"]
    found = directions(tiny, right, wrong)
    outputs = np.stack([slow_outputs(tiny, text) for text in (*right, *wrong)])
    for layer, head in ((0, 0), (2, 3)):
        own = outputs[:, layer, head]
        difference = own[:3].mean(0) - own[3:].mean(0)
        unit = difference / np.sqrt((difference**2).sum())
        np.testing.assert_allclose(found.unit[layer, head], unit, atol=1e-5)
        assert found.spread[layer, head] == pytest.approx(np.std(own @ unit), rel=1e-4)
    shifts = found.shifts([Head(2, 3)], 4.0)
    np.testing.assert_allclose(shifts[2, 3], 4 * found.spread[2, 3] * found.unit[2, 3])
    assert np.count_nonzero(shifts.any(axis=2)) == 1


@pytest.mark.parametrize("positions", ["all", "last"])
def test_shifted_text_equals_a_slow_loop_with_hooks(tiny, positions):
    tiny.hf.generation_config.eos_token_id = None
    tiny.text.tokenizer.eos_token = None
    draw = np.random.default_rng(0)
    shifts = np.zeros((2, *tiny.shape, 8))
    shifts[0, 1, 2], shifts[1, 3, 0], shifts[1, 0, 1] = draw.normal(size=(3, 8)) * 2
    written = hw.generate(tiny, PROMPTS, shifts=shifts, positions=positions, max_new_tokens=5)
    for variant, prompt in ((v, p) for v in range(2) for p in range(3)):
        slow = slow_text(tiny, PROMPTS[prompt], shifts[variant], 5, positions == "last")
        assert written.tokens[variant][prompt] == slow
    tiny.text.tokenizer.eos_token = "</s>"


def test_shifts_that_do_not_fit_are_refused(tiny):
    with pytest.raises(HeadwiseError, match=r"expected \[4, 4, 8\]"):
        hw.generate(tiny, PROMPTS, shifts=np.zeros((4, 4, 7)))
    with pytest.raises(HeadwiseError, match="must be finite"):
        hw.generate(tiny, PROMPTS, shifts=np.full((4, 4, 8), np.nan))
    with pytest.raises(HeadwiseError, match="3 variants of gates and 2 of shifts"):
        hw.generate(tiny, PROMPTS, np.ones((3, 4, 4)), shifts=np.zeros((2, 4, 4, 8)))


def test_amplifying_sets_the_gates_of_the_chosen_heads(tiny):
    case = Case(tiny, *questions().halves(), Judge("contains", "chrf"))
    options = variants(Job(), case, "amplify", [HEADS, HEADS[:1]], (1.5, 3.0))
    assert options["gates"].shape == (4, *tiny.shape)
    assert options["gates"][2][1, 2] == options["gates"][2][3, 0] == 3
    assert options["gates"][1].sum() == tiny.shape[0] * tiny.shape[1] + 0.5


@pytest.mark.parametrize("kind", ["amplify", "shift"])
def test_accuracy_before_and_after_is_counted_on_the_other_half(tiny, kind):
    task = questions()
    table = intervene(tiny, task, HEADS, kind, (2.0, 5.0), answer="text", max_new_tokens=4)
    find, test = task.halves()
    options = {"gates": np.stack([np.ones(tiny.shape)] * 2)}
    if kind == "amplify":
        for gates, strength in zip(options["gates"], (2.0, 5.0), strict=True):
            gates[1, 2] = gates[3, 0] = strength
    else:
        right, wrong = [e.prompt + e.target for e in find], [e.prompt + e.foils[0] for e in find]
        found = directions(tiny, right, wrong)
        shifts = np.stack([found.shifts(HEADS, alpha) for alpha in (2.0, 5.0)])
        options = {"shifts": shifts, "positions": "last"}

    def share(texts):
        return np.mean([e.target.strip() in text.split() for e, text in zip(test, texts, strict=True)])

    prompts = [e.prompt for e in test]
    after = hw.generate(tiny, prompts, max_new_tokens=4, **options).texts
    assert table["after"].tolist() == [share(texts) for texts in after]
    assert set(table["before"]) == {share(hw.generate(tiny, prompts, max_new_tokens=4).texts[0])}
    np.testing.assert_allclose(table["change"], table["after"] - table["before"])
    assert ((table["change_lo"] <= table["change"]) & (table["change"] <= table["change_hi"])).all()


def test_without_foils_right_and_wrong_prompts_are_told_apart_by_what_the_model_writes(tiny):
    task = questions(6, foils=False)
    golds = [example.target.strip() for example in task]
    answers = [golds[0], golds[1], "nothing", "nothing", golds[4], "nothing"]
    found = contrast(tiny, task, Judge("contains", "chrf", "text"), lambda: answers)
    prompts = [example.prompt for example in task]
    expected = directions(tiny, [prompts[i] for i in (0, 1, 4)], [prompts[i] for i in (2, 3, 5)])
    np.testing.assert_allclose(found.unit, expected.unit)
    assert (found.right, found.wrong) == (3, 3)
    with pytest.raises(HeadwiseError, match="answers none of 6 correctly, so there is no direction"):
        contrast(tiny, task, Judge("contains", "chrf", "text"), lambda: ["nothing"] * 6)


def test_an_unknown_kind_is_refused(tiny):
    with pytest.raises(HeadwiseError, match="did you mean 'amplify'"):
        intervene(tiny, questions(), HEADS, "amplfy")
