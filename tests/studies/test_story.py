"""The story of the demo: its numbers are measured, and its words follow them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.scores.measure import Measurement
from headwise.studies import story
from headwise.tasks import Example

EXAMPLE = Example("Ann and Bob went out, Bob gave a book to", " Ann", (" Bob",))
HEAD = hw.Head(2, 1)


def measured(full, values):
    return Measurement(np.array(values), np.array(full), "tiny", "ioi", "logit_diff", "mean")


def told(full, values, answers):
    one = measured(full, values)
    return story.title("tiny", HEAD, one), story.sentences(HEAD, one, EXAMPLE, {EXAMPLE.prompt: answers}, 16)


def test_a_head_without_which_the_answer_changes_is_told_so():
    full = np.linspace(3, 5, 12)
    title, (first, second, third) = told(full, full - np.linspace(6, 7, 12), ("Ann", "Bob"))
    assert title == "Head 1 of layer 2 helps tiny name the right person"
    assert "says “Ann” (the right name)" in first
    assert "it says “Bob”" in first
    assert "mean ablation" in first
    assert re.search(
        r"in 100 % \(.*\) of the 12 sentences with the head, and in 0 % \(.*\) without it\.$", second
    )
    assert "goes from 4.0 to −2.5: the head is worth 6.5" in third
    assert third.endswith("so the head clearly helps.")


def test_an_effect_within_noise_and_an_answer_that_stays_are_told_as_such():
    full = np.linspace(3, 5, 12)
    title, (first, second, third) = told(full, full - np.tile([1.0, -0.9], 6), ("Bob", "Bob"))
    assert title == "No single head of tiny is shown to name the right person"
    assert "says “Bob” (the right name is “Ann”)" in first
    assert "it still says “Bob”" in first
    assert "the next word changes in 0." in first
    assert second.endswith("this difference is within noise.")
    assert third.endswith("which includes 0: these sentences do not show that it helps.")


@pytest.mark.bundled
def test_the_numbers_are_those_of_a_plain_loop(smollm2, monkeypatch):
    """The head's slice of the projection's input replaced by its mean over all tokens, prompt by prompt."""
    monkeypatch.setattr(story, "CHOOSE", 6)
    monkeypatch.setattr(story, "TEST", 8)
    found = story.tell_story(smollm2)
    head = hw.Head.parse(re.search(r"Switch off (L\d+H\d+)", found.sentences[0])[1])
    examples = hw.task("ioi", story.CHOOSE + story.TEST, model=smollm2).examples[story.CHOOSE :]
    projection = smollm2.hf.model.layers[head.layer].self_attn.o_proj
    columns = slice(64 * head.head, 64 * head.head + 64)
    read = []
    handle = projection.register_forward_pre_hook(lambda _, args: read.append(args[0][0, :, columns]))
    before = [_lead(smollm2, example) for example in examples]
    handle.remove()
    average = torch.cat(read).mean(0)

    def replace(_, args):
        changed = args[0].clone()
        changed[..., columns] = average
        return (changed,)

    handle = projection.register_forward_pre_hook(replace)
    after = [_lead(smollm2, example) for example in examples]
    handle.remove()
    numbers = re.search(r"goes from ([\d.]+) to ([\d.−]+): the head is worth ([\d.−]+)", found.sentences[2])
    full, without, effect = (float(number.replace("−", "-")) for number in numbers.groups())
    leads, others = (np.array([lead for lead, _ in part]) for part in (before, after))
    assert [full, without, effect] == pytest.approx(
        [leads.mean(), others.mean(), (leads - others).mean()], abs=0.06
    )
    assert f"in {(leads > 0).mean():.0%}".replace("%", " %") in found.sentences[1]
    shown = next(n for n, example in enumerate(examples) if f"“{example.prompt}”" in found.sentences[0])
    assert f"says “{before[shown][1]}”" in found.sentences[0]
    assert f"says “{after[shown][1]}”. " in found.sentences[0]
    changed = sum(one[1] != other[1] for one, other in zip(before, after, strict=True))
    assert f"the next word changes in {changed}." in found.sentences[0]
    ring = found.chart.panels[0].marks[-1]
    assert (ring.y[0], ring.x[0]) == tuple(head)


def _lead(model, example):
    """The logit of the right name minus that of the wrong one, and the likeliest next word."""
    with torch.no_grad():
        logits = model.hf(torch.tensor([model.tokens(example.prompt)])).logits[0, -1]
    (right,), (wrong,) = (model.tokens(name) for name in (example.target, example.foils[0]))
    return float(logits[right] - logits[wrong]), model.text.decode([int(logits.argmax())]).strip()
