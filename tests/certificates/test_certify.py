"""Certificates: every number again by hooks, states and verdicts, and the study."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.certificates.certificate import Certificate, verdict_of
from headwise.certificates.certify import random_sets, subsets_of
from headwise.certificates.checks import overall
from headwise.model.verify.tiny import tiny_model
from helpers import WORDS, HeadsByHook, plain_logits, recorded, word_task
from planted import CHAINS, cats_and_dogs, chain_model, told_apart, written

SET = ["L0H1", "L1H0", "L1H3", "L2H2"]
QUIET = {"progress": False}


def with_families(task):
    """The same examples, each in the family of its target."""
    examples = [replace(one, family={"target": "early" if i % 2 else "late"}) for i, one in enumerate(task)]
    return replace(task, examples=tuple(examples))


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def model(request, word_tokenizer):
    """Gemma 2 has a norm between the output projection and the stream."""
    hf = tiny_model(request.param, vocab_size=len(word_tokenizer))
    return hw.load(hf, tokenizer=word_tokenizer, name=request.param)


class ByHooks:
    """The metric of every example with some heads kept and the others at their mean, one prompt at a time."""

    def __init__(self, model, task):
        self.model, self.task = model, task
        seen = [recorded(model, example.prompt) for example in task]
        self.means = {layer: torch.cat([one[layer] for one in seen]).mean(0) for layer in seen[0]}
        self.every = {hw.Head(layer, head) for layer in self.means for head in range(model.shape[1])}

    def logits(self, kept):
        def edit(layer, z):
            mixed = self.means[layer].expand_as(z).clone()
            for head in kept:
                if head.layer == layer:
                    mixed[:, :, head.head] = z[:, :, head.head]
            return mixed

        with HeadsByHook(self.model, edit):
            return [plain_logits(self.model, self.model.tokens(one.prompt))[-1] for one in self.task]

    def __call__(self, kept):
        """logit(target) − logit(foil) `[E]`."""
        ids = [[self.model.tokens(text.strip())[-1] for text in (e.target, *e.foils)] for e in self.task]
        return np.array([float(x[i[0]] - x[i[1]]) for x, i in zip(self.logits(kept), ids, strict=True)])


def test_every_number_is_that_of_a_loop_of_hooks(model):
    task = with_families(told_apart([model], 40))  # its heads raise the target: there is an effect to explain
    found = hw.certify(model, task, SET, draws=5, subsets=3, **QUIET)
    slow, chosen = ByHooks(model, task), [hw.Head.parse(name) for name in SET]
    every = slow.every
    full, none, kept = slow(every), slow(()), slow(chosen)
    effect = (full - none).mean()
    line = {(row["check"], row["measure"]): row["value"] for row in found.lines.to_dict("records")}
    near = pytest.approx

    assert line[1, "explained effect"] == near((kept - none).mean() / effect, abs=1e-4)
    spread = ((full - full.mean()) ** 2).sum()
    assert line[3, "R² over examples"] == near(1 - ((kept - full) ** 2).sum() / spread, abs=1e-4)
    assert line[3, "same answer"] == near(((kept > 0) == (full > 0)).mean())
    lost = full - slow(every - set(chosen))
    assert line[4, "share of the effect lost without it"] == near(lost.mean() / effect, abs=1e-4)
    drawn, _ = random_sets(sorted(every), chosen, 5, 0)
    as_large = sum((full - slow(every - set(heads))).mean() >= lost.mean() for heads in drawn)
    assert line[4, "p against layer-matched random sets"] == near((as_large + 1) / 6)
    gaps = [
        (slow(every - set(part)) - slow(set(chosen) - set(part))).mean() / effect
        for part in subsets_of(chosen, 3, 0)
    ]
    assert line[5, "mean |difference| when both lose the same heads"] == near(np.abs(gaps).mean(), abs=1e-4)
    for name, change in zip(SET, found.changes["change"], strict=True):
        without = slow(set(chosen) - {hw.Head.parse(name)})
        assert change == near((kept - without).mean() / effect, abs=1e-4)
    for row in found.levels.to_dict("records"):
        some = [i for i, example in enumerate(task) if example.family["target"] == row["level"]]
        assert row["value"] == near((kept - none)[some].mean() / (full - none)[some].mean(), abs=1e-4)
    assert np.allclose(found.examples[["full", "none", "kept"]], np.stack([full, none, kept], 1), atol=1e-4)


def test_the_answer_is_the_first_of_all_candidates_also_with_several_foils_and_long_ones(model):
    words = [f" {WORDS[i]} {WORDS[i + 1]}" for i in range(3)]
    several = [replace(e, target=" red", foils=(" blue", " cat")) for e in word_task(20)]
    short = replace(word_task(20), examples=tuple(several))
    long = [hw.Example(e.prompt, words[0], tuple(words[1:])) for e in word_task(20)]
    for task in (short, hw.task(long)):
        found = hw.certify(model, task, SET, quick=True, draws=1, metric="logprob", **QUIET)
        slow = ByHooks(model, task)
        winners = []
        for kept in (slow.every, [hw.Head.parse(name) for name in SET]):
            with_answers = [
                [_logprob(slow, kept, e.prompt, text) for text in (e.target, *e.foils)] for e in task
            ]
            winners.append(np.argmax(with_answers, axis=1))
        assert found.examples["same_answer"].tolist() == (winners[0] == winners[1]).astype(float).tolist()


def _logprob(slow, kept, prompt, answer):
    """log p of an answer after a prompt, with hooks."""
    model = slow.model

    def edit(layer, z):
        mixed = slow.means[layer].expand_as(z).clone()
        for head in kept:
            if head.layer == layer:
                mixed[:, :, head.head] = z[:, :, head.head]
        return mixed

    tokens, start = model.tokens(prompt + answer), len(model.tokens(prompt))
    with HeadsByHook(model, edit):
        logp = plain_logits(model, tokens).log_softmax(-1)
    return sum(float(logp[i - 1, tokens[i]]) for i in range(start, len(tokens)))


@pytest.fixture(scope="module")
def chains(word_tokenizer):
    return chain_model(word_tokenizer)


TRUE = sorted(CHAINS)


def test_a_planted_circuit_is_certified_and_a_broken_one_is_not(chains):
    task = cats_and_dogs(100)
    whole = hw.certify(chains, task, TRUE, **QUIET)
    assert whole.verdict.startswith("certified")
    assert whole.states[1] == whole.states[4] == whole.states[5] == whole.states[6] == "pass"
    assert hw.certify(chains, task, TRUE[:3], **QUIET).verdict == "rejected"
    idle = hw.certify(chains, task, [*TRUE, hw.Head(5, 1)], **QUIET)
    assert idle.states[6] == "fail"
    assert idle.passengers == ["L5H1"]
    assert "1 of them add nothing" in idle.sentence


def test_eight_examples_certify_nothing(chains, caplog):
    found = hw.certify(chains, cats_and_dogs(8), TRUE, **QUIET)
    assert found.verdict == "undecided"
    assert "too few" in caplog.text


def test_a_certificate_is_saved_and_loaded(chains, tmp_path):
    found = hw.certify(chains, cats_and_dogs(24), TRUE, quick=True, draws=3, **QUIET)
    found.save(tmp_path / "c.npz")
    assert repr(Certificate.load(tmp_path / "c.npz")) == repr(found)


@pytest.mark.parametrize(
    ("heads", "options", "sentence"),
    [
        ([], {}, "empty"),
        (["L0H0", "L0H0"], {}, "twice"),
        (["L9H0"], {}, "no head L9H0"),
        (["L0H0"], {"k": 2}, "expected 1 to 1"),
        (["L0H0"], {"thresholds": {"r3": 1}}, "r2"),
        (["L0H0"], {"reference": "nothing"}, "mean"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(chains, heads, options, sentence):
    with pytest.raises(hw.HeadwiseError, match=sentence):
        hw.certify(chains, cats_and_dogs(4), heads, **options, **QUIET)


@pytest.mark.parametrize(
    ("states", "verdict"),
    [
        ("pass pass pass pass pass pass", "certified"),
        ("pass pass fail pass pass pass", "certified with limits"),
        ("pass not_tested pass pass undecided fail", "certified with limits"),
        ("fail pass pass pass pass pass", "rejected"),
        ("undecided fail pass pass pass pass", "rejected"),
        ("pass pass pass fail pass pass", "rejected"),
        ("pass undecided pass pass pass pass", "undecided"),
        ("pass pass pass undecided pass pass", "undecided"),
    ],
)
def test_the_verdict_follows_from_the_states(states, verdict):
    named = [state.replace("_", " ") for state in states.split()]
    assert verdict_of(dict(enumerate(named, 1))) == verdict


def test_a_part_that_was_not_tested_decides_nothing():
    assert overall(["pass", "not tested"]) == "pass"
    assert overall(["pass", "undecided", "fail"]) == "fail"
    assert overall(["not tested"]) == "not tested"


def test_the_study_finds_a_set_on_one_half_and_tests_it_on_the_other(chains, tmp_path):
    from headwise.runs import read_table
    from headwise.studies.workbench import Workbench

    bench = Workbench(progress=False)
    bench.add(chains)
    settings = {"models": ["chains"], "tasks": [written(cats_and_dogs(60), tmp_path / "cats.jsonl")], "n": 30}
    settings |= {"method": "attribution", "draws": 5, "subsets": 3, "workbench": bench, "progress": False}
    out = hw.run("certify", tmp_path / "run", **settings).path
    row = read_table(out, "certificates").iloc[0]
    assert set(map(str, TRUE)) <= set(row["heads"].split())
    assert row["n"] == 30
    tested = set(read_table(out, "followed")["example"])
    _, half = hw.task(settings["tasks"][0], 60, model=chains).halves()
    assert tested == set(half.numbers)
    assert hw.open_run(out).findings[0].sentence == row["sentence"]
    given = hw.run("certify", tmp_path / "given", **settings, heads="L0H2,L1H4,L3H1,L4H5", quick=True).path
    assert read_table(given, "certificates").iloc[0]["k"] == 4
