"""Certificates: every number again by hooks, states and verdicts, and the study."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.certificates.certificate import Certificate, verdict_of
from headwise.certificates.certify import random_sets, subsets_of
from headwise.certificates.checks import overall
from headwise.certificates.refits import half_samples
from headwise.model.verify.tiny import tiny_model
from helpers import WORDS, HeadsByHook, leaving, plain_logits, recorded, word_task
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
    """The metric of every example with some heads kept and the others at their mean, one prompt at a time.

    mlps: the output of every MLP is replaced as well, except for those that are kept.
    """

    def __init__(self, model, task, mlps=False):
        self.model, self.task = model, task
        seen = [recorded(model, example.prompt) for example in task]
        self.means = {layer: torch.cat([one[layer] for one in seen]).mean(0) for layer in seen[0]}
        self.every = {hw.Head(layer, head) for layer in self.means for head in range(model.shape[1])}
        self.mlps = [layer.mlp for layer in model.hf.model.layers] if mlps else []
        written = {layer: [] for layer in range(len(self.mlps))}
        with self.mlps_by_hook(lambda layer, output: written[layer].append(output[0].clone()) or output):
            for example in task if mlps else ():
                plain_logits(model, model.tokens(example.prompt))
        self.mlp_means = {layer: torch.cat(outputs).mean(0) for layer, outputs in written.items()}
        self.every |= {hw.Head(layer, -1) for layer in self.mlp_means}

    @contextmanager
    def mlps_by_hook(self, edit):
        handles = [
            mlp.register_forward_hook(lambda _, __, output, layer=layer: edit(layer, output))
            for layer, mlp in enumerate(self.mlps)
        ]
        yield
        for handle in handles:
            handle.remove()

    def logits(self, kept):
        edit = leaving([head for head in kept if head.head >= 0], lambda layer, _: self.means[layer])

        def edit_mlp(layer, output):
            return output if hw.Head(layer, -1) in kept else self.mlp_means[layer].expand_as(output)

        with HeadsByHook(self.model, edit), self.mlps_by_hook(edit_mlp):
            return [plain_logits(self.model, self.model.tokens(one.prompt))[-1] for one in self.task]

    def __call__(self, kept):
        """logit(target) − logit(foil) `[E]`."""
        ids = [[self.model.tokens(e.prompt + text)[-1] for text in (e.target, *e.foils)] for e in self.task]
        return np.array([float(x[i[0]] - x[i[1]]) for x, i in zip(self.logits(kept), ids, strict=True)])


def test_every_number_is_that_of_a_loop_of_hooks(model):
    # Its heads raise the target: there is an effect to explain.
    compare_with_hooks(model, with_families(told_apart([model], 40)), SET)


def test_every_number_of_a_set_with_mlps_is_that_of_a_loop_of_hooks(model):
    compare_with_hooks(
        model, with_families(told_apart([model], 40)), ["L0H1", "MLP0", "L1H3", "MLP2"], mlps=True
    )


def test_every_number_on_the_bundled_model_is_that_of_a_loop_of_hooks(smollm2):
    task = hw.task("ioi", 8, model=smollm2)
    compare_with_hooks(smollm2, task, ["L23H3", "L20H0", "L29H1"], draws=1, subsets=1)


def compare_with_hooks(model, task, heads, mlps=False, draws=5, subsets=3):
    """Checks 1 to 6 of a certificate, every number again by `ByHooks`."""
    found = hw.certify(model, task, heads, draws=draws, subsets=subsets, **QUIET)
    slow, chosen = ByHooks(model, task, mlps), [hw.Head.parse(name) for name in heads]
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
    drawn, _ = random_sets(model.layout(("heads", "mlps") if mlps else ("heads",)).listed(), chosen, draws, 0)
    as_large = sum((full - slow(every - set(heads))).mean() >= lost.mean() for heads in drawn)
    assert line[4, "p against layer-matched random sets"] == near((as_large + 1) / (draws + 1))
    gaps = [
        (slow(every - set(part)) - slow(set(chosen) - set(part))).mean() / effect
        for part in subsets_of(chosen, subsets, 0)
    ]
    assert line[5, "mean |difference| when both lose the same heads"] == near(np.abs(gaps).mean(), abs=1e-4)
    for name, change in zip(heads, found.changes["change"], strict=True):
        without = slow(set(chosen) - {hw.Head.parse(name)})
        assert change == near((kept - without).mean() / effect, abs=1e-4)
    for row in found.levels.to_dict("records"):
        some = [i for i, example in enumerate(task) if example.family[row["facet"]] == row["level"]]
        assert np.isnan(row["value"]) or row["value"] == near(
            (kept - none)[some].mean() / (full - none)[some].mean(), abs=1e-4
        )
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
    model, edit = slow.model, leaving(kept, lambda layer, _: slow.means[layer])
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


def in_groups(task, sizes):
    """The same examples, the first of them in the family "group = 0", and so on."""
    levels = np.repeat(np.arange(len(sizes)), sizes)
    examples = [replace(one, family={"group": str(level)}) for one, level in zip(task, levels, strict=True)]
    return replace(task, examples=tuple(examples))


def test_the_sentence_is_about_the_families_that_could_be_judged_alone(chains):
    for sizes, words in {
        (85, 8, 7): "the only one of 3 families that could be judged (group = 0, ",
        (45, 48, 7): "all families that could be judged (2 of 3; farthest from 1: group = ",
        (50, 50): "all families (farthest from 1: group = ",
    }.items():
        options = {"quick": True, "draws": 40, "thresholds": {"family": 0.5, "sufficient": 0.5}, **QUIET}
        found = hw.certify(chains, in_groups(cats_and_dogs(100), sizes), TRUE, **options)
        assert found.states[2] == "pass"
        assert words in found.sentence
    alone = in_groups(cats_and_dogs(100), (85, 8, 7))
    options |= {"thresholds": {"sufficient": 0.5}}
    missing = hw.certify(chains, alone, TRUE[:3], **options)
    assert (
        "family group = 0, the only one of 3 that could be judged, has an explained effect"
        in missing.sentence
    )
    assert "farthest" not in repr(missing)


def test_eight_examples_certify_nothing(chains, caplog):
    found = hw.certify(chains, cats_and_dogs(8), TRUE, **QUIET)
    assert found.verdict == "undecided"
    assert "too few" in caplog.text


def test_what_quick_leaves_out_is_a_limit(chains):
    found = hw.certify(chains, cats_and_dogs(160), TRUE, quick=True, draws=40, **QUIET)
    assert found.verdict == "certified with limits"
    assert "complete is not tested (left out); minimal is not tested (left out)" in found.sentence


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


def test_the_study_finds_a_set_on_one_half_and_tests_it_on_the_other(chains, tmp_path, caplog):
    from headwise.runs import read_table
    from headwise.studies.workbench import Workbench

    bench = Workbench(progress=False)
    bench.add(chains)
    settings = {"models": ["chains"], "tasks": [written(cats_and_dogs(60), tmp_path / "cats.jsonl")], "n": 30}
    settings |= {"method": "attribution", "draws": 5, "subsets": 3, "workbench": bench, "progress": False}
    again = {"stable": 4, "alternatives": 1, "method_options": {"rows": 100, "seeds": 1}, "top": 5}
    with caplog.at_level("INFO", "headwise"):
        out = hw.run("certify", tmp_path / "run", **settings, **again).path
    assert "4 half-samples, 1 fits that avoid the set, 3 other methods" in caplog.text
    row = read_table(out, "certificates").iloc[0]
    assert set(map(str, TRUE)) <= set(row["heads"].split())
    assert row["n"] == 30
    tested = set(read_table(out, "followed")["example"])
    find, half = hw.task(settings["tasks"][0], 60, model=chains).halves()
    assert tested == set(half.numbers)
    orders = [hw.score(chains, one, "attribution", **QUIET).order()[:5] for one in half_samples(find, 4, 0)]
    core = [name for name in row["heads"].split() if all(hw.Head.parse(name) in order for order in orders)]
    assert row["core"].split() == core != []
    checks = read_table(out, "checks").groupby("check").size()
    assert [checks[check] for check in (8, 10, 11)] == [3, 1, 3]
    assert hw.open_run(out).findings[0].sentence == row["sentence"]
    given = hw.run("certify", tmp_path / "given", **settings, heads="L0H2,L1H4,L3H1,L4H5", quick=True).path
    assert read_table(given, "certificates").iloc[0]["k"] == 4


def ranking_runs(chains, folder):
    """A run of `score` and one of `circuits` on the first of two files, and the settings of both."""
    from headwise.studies.workbench import Workbench

    bench = Workbench(progress=False)
    bench.add(chains)
    settings = {"models": ["chains"], "tasks": [written(cats_and_dogs(60), folder / "cats.jsonl")], "n": 30}
    settings |= {"cards": 0, "workbench": bench, "progress": False}
    scored = hw.run("score", folder / "score", **settings, methods=["attribution"]).path
    options = {"orders": ["attribution", "integrated"], "references": ["mean", "zero"], "maps": 0, "draws": 2}
    return bench, settings, scored, hw.run("circuits", folder / "circuits", **settings, **options).path


def test_a_run_gives_model_task_and_ranking_and_is_tested_on_other_examples(chains, tmp_path):
    from headwise.runs import read_table
    from headwise.studies.certify.settings import from_run

    bench, settings, scored, circuits = ranking_runs(chains, tmp_path)
    shared = {"draws": 3, "quick": True, "workbench": bench, "progress": False}
    out = hw.run("certify", tmp_path / "of_score", **from_run(scored), **shared, top=4, n=20).path
    found = read_table(out, "certificates").iloc[0]
    order = hw.open_run(scored).scores()[0].order()
    assert found["heads"].split() == [str(head) for head in order[:4]]
    ranked = {example.prompt for example in hw.task(settings["tasks"][0], 30, model=chains)}
    assert ranked.isdisjoint(read_table(out, "followed")["prompt"])
    out = hw.run("certify", tmp_path / "of_circuits", **from_run(circuits), **shared, n=20).path
    sizes = read_table(circuits, "circuits")
    best = sizes[sizes["chosen"] & (sizes["reference"] == "mean")].iloc[0]
    found = read_table(out, "certificates").iloc[0]
    assert found["heads"] == " ".join(best["heads"].split()[: int(best["stays"])])
    assert found["reference"] == "mean"
    task = hw.task(settings["tasks"][0], 60, model=chains)
    for run in (scored, str(scored), hw.open_run(scored)):
        assert hw.certify(chains, task, run, k=4, quick=True, draws=1, **QUIET).heads == order[:4]
    assert len(hw.certify(chains, task, circuits, quick=True, draws=1, **QUIET).heads) == best["stays"]
    with pytest.raises(hw.HeadwiseError, match="how many to take"):
        hw.certify(chains, task, scored, **QUIET)
    short = written(cats_and_dogs(31), tmp_path / "short.jsonl")
    whole = hw.run("score", tmp_path / "whole", **settings | {"tasks": [short]}, methods=["random"]).path
    with pytest.raises(hw.HeadwiseError, match="a certificate needs others"):
        hw.run("certify", tmp_path / "none", **from_run(whole), **shared, top=4)
    with pytest.raises(hw.HeadwiseError, match="run of the study certify"):
        from_run(out)
