"""The study `diff`, `hw.diff` and `headwise diff`: planted changes, the null, refusals, resuming."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import headwise as hw
from headwise import stats
from headwise.cli.app import app
from headwise.errors import HeadwiseError
from headwise.heads import Scores
from headwise.model.verify.tiny import tiny_model
from headwise.runs import read_table
from headwise.scores.difference import diff_table
from headwise.studies.diff.section import findings
from helpers import WORDS, assert_same_again, make_word_tokenizer, plain_logits, run_on, word_model
from planted import told_apart, written

WEAK = 0.3


def weakened(model, head, factor=WEAK, name="weak"):
    """A copy of a tiny Llama in which one head's columns of the output projection are scaled."""
    hf = copy.deepcopy(model.hf)
    head = hw.Head.parse(head)
    size = hf.config.head_dim
    with torch.no_grad():
        weight = hf.model.layers[head.layer].self_attn.o_proj.weight
        weight[:, size * head.head : size * (head.head + 1)] *= factor
    return hw.load(hf, tokenizer=model.text.tokenizer, name=name)


@pytest.fixture(scope="module")
def base():
    return word_model("llama", name="base", max_position_embeddings=512)


@pytest.fixture(scope="module")
def task(base):
    return told_apart([base], 24)


@pytest.fixture(scope="module")
def planted(base, task):
    """The head with the highest score, and a copy of the model in which it is weakened."""
    top = str(hw.score(base, task, reference="patch").top(1)[0])
    return top, weakened(base, top)


def test_a_weakened_head_is_first_and_no_other_change_is_larger(base, task, planted):
    top, weak = planted
    found = hw.diff(base, weak, task, reference="patch")
    table = found.table()
    first = table.iloc[0]
    assert f"L{first['layer']}H{first['head']}" == top
    assert first["difference"] < 0
    assert first["q"] < 0.05
    assert table["difference"].abs()[1:].max() < abs(first["difference"])
    assert top in repr(found)
    assert found._repr_png_().startswith(b"\x89PNG")


def test_a_difference_is_what_edited_weights_give_one_example_at_a_time(base, task, planted):
    """The change of one head's score on one example, from four plain forward passes over edited copies."""
    top, weak = planted
    example = task.examples[3]
    target, foil = (WORDS.index(text.strip()) + 3 for text in (example.target, example.foils[0]))

    def logit_diff(model):
        logits = plain_logits(model, model.tokens(example.prompt))[-1]
        return float(logits[target] - logits[foil])

    change = hw.diff(base, weak, task, reference="zero").change
    for head in (top, "L2H2"):
        scores = [logit_diff(model) - logit_diff(weakened(model, head, 0.0)) for model in (base, weak)]
        assert change.examples[3][hw.Head.parse(head)] == pytest.approx(scores[1] - scores[0], abs=1e-5)


def test_the_study_gives_the_numbers_of_the_python_call_and_a_report(base, task, planted, tmp_path):
    _, weak = planted
    file, options = written(task, tmp_path / "apart.jsonl"), {"metric": "logit_diff", "reference": "patch"}
    folder = run_on("diff", tmp_path / "run", base, weak, tasks=[file], n=24, **options)
    found = hw.diff(base, weak, hw.task(file, 24, model=base), **options)
    table = read_table(folder.path, "diff")
    pd.testing.assert_frame_equal(table, found.table(), check_dtype=False)
    outcomes = read_table(folder.path, "outcomes")
    pd.testing.assert_frame_equal(outcomes, found.outcomes, check_dtype=False)
    assert set(read_table(folder.path, "scores")["model"]) == {"base", "weak"}
    assert (folder.path / "figures" / f"diff-{table['task'][0]}-ablation.png").stat().st_size > 5_000
    page = (folder.path / "report.html").read_text(encoding="utf-8")
    assert "Which heads changed between two models?" in page
    assert ">What changed between base and weak</h1>" in page
    assert "The largest of them is" in page
    assert_same_again(folder, base, weak)


def test_accuracies_are_counted_by_hand_and_tested_by_mcnemar(base, task):
    other = weakened(base, "L3H0", -20.0, "broken")
    row = hw.diff(base, other, task).outcomes.set_index("metric").loc["accuracy"]
    right = []
    for model in (base, other):
        logits = [plain_logits(model, model.tokens(e.prompt))[-1] for e in task]
        numbers = [(WORDS.index(e.target.strip()) + 3, WORDS.index(e.foils[0].strip()) + 3) for e in task]
        right.append(np.array([float(at[t] > at[f]) for at, (t, f) in zip(logits, numbers, strict=True)]))
    assert (row["base_value"], row["tuned_value"]) == (right[0].mean(), right[1].mean())
    only = int((right[0] > right[1]).sum()), int((right[1] > right[0]).sum())
    assert only[0] > 0
    assert (row["only_base"], row["only_tuned"]) == only
    assert row["test"] == "McNemar"
    assert row["p"] == stats.mcnemar_exact(*only)
    assert row["lo"] <= row["difference"] <= row["hi"]


def test_a_killed_run_resumes_without_scoring_again(base, task, planted, tmp_path, monkeypatch, undrawn):
    _, weak = planted
    file = written(task, tmp_path / "apart.jsonl")
    settings = {"tasks": [file], "n": 16}
    with monkeypatch.context() as patched:
        patched.setattr("headwise.scores.difference.diff_table", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_on("diff", tmp_path / "run", base, weak, **settings)
    monkeypatch.setattr("headwise.studies.steps.score", lambda *given, **more: pytest.fail("scored again"))
    folder = run_on("diff", tmp_path / "run", base, weak, **settings)
    assert len(read_table(folder.path, "diff")) == 16


def test_a_consistent_change_comes_before_a_larger_one_that_may_be_chance():
    """Head 0 changes by 3 in one example of 16; head 1 by −0.5 in all; head 2 not at all."""
    base = np.zeros((16, 1, 3))
    tuned = base.copy()
    tuned[0, 0, 0] = 48.0
    tuned[:, 0, 1] = -0.5
    about = {"task": "t", "method": "ablation", "metric": "logit_diff"}
    table = diff_table(
        *(Scores.from_examples(x, model=name, **about) for x, name in ((base, "a"), (tuned, "b")))
    )
    assert table["head"].tolist() == [1, 0, 2]
    assert table["difference"].tolist() == [-0.5, 3.0, 0.0]
    assert table["tuned_score"].tolist() == [-0.5, 3.0, 0.0], "both scores stay beside their head"
    assert ((table["q"] < 0.05) == [True, False, False]).all()


def test_the_sentence_names_a_significant_head_although_a_noisy_one_changed_more():
    row = {"task": "t", "method": "ablation", "base": "a", "tuned": "b", "metric": "logit_diff", "n": 16}
    row |= {"lo": -1, "hi": 1, "base_score": 1.0, "tuned_score": 0.5, "layer": 0}
    rows = [{"head": 0, "difference": 2.0, "q": 0.2}, {"head": 1, "difference": -0.5, "q": 0.01}]
    table = pd.DataFrame([row | one for one in rows])
    message = findings({"diff": table})[0].sentence
    assert "1 of 2 heads differs" in message
    assert "The largest of them is L0H1" in message
    assert "The largest change is L0H0" in findings({"diff": table.assign(q=0.2)})[0].sentence


@pytest.mark.slow
def test_the_highest_scoring_head_of_smollm2_is_first_when_it_is_weakened(smollm2):
    """With the default ablation type; among the 24 heads with the largest effects, which keeps the test short."""
    task = hw.task("ioi", 16, model=smollm2)
    heads = hw.score(smollm2, task, "attribution").top(24, by="absolute")
    top = hw.score(smollm2, task, heads=heads).top(1)[0]
    table = hw.diff(smollm2, weakened(smollm2, str(top)), task, heads=heads).table()
    first = table.iloc[0]
    assert (first["layer"], first["head"]) == top
    assert first["difference"] < 0
    assert first["q"] < 0.05
    assert table["difference"].abs()[1:].max() < abs(first["difference"])


def test_without_a_reference_heads_are_replaced_by_their_mean_with_and_without_counterfactuals(
    base, task, planted
):
    weak = planted[1]
    plain = hw.Task("plain", tuple(dataclasses.replace(e, counterfactual=None) for e in task), task.metric)
    for examples in (task, plain):
        found, named = (
            hw.diff(base, weak, examples, "attribution", **options) for options in ({}, {"reference": "mean"})
        )
        np.testing.assert_array_equal(found.change.examples, named.change.examples)
        assert found.base.reference == found.change.reference == "mean"


# ---- the null -------------------------------------------------------------------------------------------------------


def test_swapped_models_report_a_head_in_at_most_one_draw_of_twenty():
    """200 draws, each with the two models' values swapped at random per example.

    The values are those of `headwise diff smollm2 smollm2-sparse ioi --method attribution -n 32`.
    """
    with np.load(Path(__file__).with_name("attribution_ioi.npz")) as file:
        base, tuned = (file[name].reshape(32, 30, 9).astype(float) for name in ("base", "tuned"))
    about = {"model": "m", "task": "ioi", "method": "attribution", "metric": "logit_diff"}
    real = diff_table(*(Scores.from_examples(values, **about) for values in (base, tuned)))
    assert (real["q"] < 0.05).sum() == 35, "without swapping there is something to find"
    random = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        swapped = (random.random(len(base)) < 0.5)[:, None, None]
        pair = np.where(swapped, tuned, base), np.where(swapped, base, tuned)
        before, after = (Scores.from_examples(values, **about) for values in pair)
        change = after - before
        q = stats.benjamini_hochberg(stats.sign_flip(change.examples))  # as in the table, without intervals
        found += bool((q < 0.05).any())
    assert found <= 10


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_models_with_other_heads_are_refused_in_a_sentence(base, task):
    small = tiny_model("gpt2", vocab_size=len(base.text.tokenizer), n_layer=2)
    other = hw.load(small, tokenizer=base.text.tokenizer, name="other")
    with pytest.raises(HeadwiseError, match=r"base has 4 layers × 4 heads and other has 2 layers × 4 heads"):
        hw.diff(base, other, task)


def test_models_with_another_tokenizer_are_refused_in_a_sentence(base, task):
    words = make_word_tokenizer(WORDS[::-1])
    other = hw.load(copy.deepcopy(base.hf), tokenizer=words, name="other")
    with pytest.raises(HeadwiseError, match="base and other read different tokens in example 1 of apart"):
        hw.diff(base, other, task)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "compares two models, and none is given"),
        ({"models": ["a"]}, r"compares two models, and 1 are given \(a\)"),
        ({"models": ["a", "a"]}, "base and tuned are both 'a'"),
        ({"models": ["a", "b"], "method_options": {"top": 3}}, "precision and top run a head on some"),
    ],
)
def test_a_mistake_is_refused_before_a_model_is_loaded(settings, said, tmp_path):
    with pytest.raises(HeadwiseError, match=said):
        hw.run("diff", tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


# ---- names, adapters, the command -----------------------------------------------------------------------------------


def test_two_models_of_one_name_are_told_apart(base, task, planted):
    weak = planted[1]
    weak = hw.load(weak.hf, tokenizer=weak.text.tokenizer, name="base")
    assert {base.name, weak.name} == {"base"}
    table = hw.diff(base, weak, task, "attribution").table()
    assert (table["base"][0], table["tuned"][0]) == ("base (base)", "base (tuned)")


def test_the_command_names_the_head_of_two_folders(base, task, planted, tmp_path, monkeypatch):
    top, weak = planted
    monkeypatch.chdir(tmp_path)
    for folder, model in (("a/model", base), ("b/model", weak)):  # folders of one name
        model.hf.save_pretrained(folder)
        model.text.tokenizer.save_pretrained(folder)
    written(task, tmp_path / "apart.jsonl")
    done = CliRunner().invoke(
        app,
        ["diff", "a/model", "b/model", "apart.jsonl", "-n", "24", "--device", "cpu", "--reference", "patch"],
    )
    assert done.exit_code == 0, done.output
    assert f"The largest of them is {top}: −" in done.output
    assert "Accuracy on" in done.output
    assert f"Mean {task.metric} on apart: " in done.output
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "diff-a-model-b-model-apart"
    assert set(read_table(folder, "diff")["base"]) == {"a/model"}


def lora_folder(base, folder, layer, **config):
    """What peft saves for an adapter of rank 2 on one output projection; returns the product that it adds."""
    from safetensors.torch import save_file

    base.hf.save_pretrained(folder / "base")
    base.text.tokenizer.save_pretrained(folder / "base")
    weight = base.hf.model.layers[layer].self_attn.o_proj.weight
    random = torch.Generator().manual_seed(0)
    first, second = (
        torch.randn(shape, generator=random) for shape in ((2, weight.shape[1]), (weight.shape[0], 2))
    )
    name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
    tensors = {f"{name}.lora_A.weight": first, f"{name}.lora_B.weight": second} | config.pop("more", {})
    (folder / "lora").mkdir()
    save_file(tensors, folder / "lora/adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": 2, "lora_alpha": 1, "base_model_name_or_path": str(folder / "base")}
    (folder / "lora/adapter_config.json").write_text(json.dumps(about | config))
    return weight, second @ first / 2


def test_the_tuned_model_may_be_a_lora_adapter(base, task, tmp_path):
    weight, change = lora_folder(base, tmp_path, layer=2)
    merged = copy.deepcopy(base.hf)
    with torch.no_grad():
        merged.model.layers[2].self_attn.o_proj.weight.copy_(weight + change)
    merged = hw.load(merged, tokenizer=base.text.tokenizer, name="lora")
    found, expected = (
        hw.diff(base, tuned, task, "attribution").change for tuned in (tmp_path / "lora", merged)
    )
    np.testing.assert_allclose(found.values, expected.values, atol=1e-6)
    assert np.abs(found.values[2]).max() > 0.01


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"base_model_name_or_path": None}, "names no base model"),
        (
            {"more": {"base_model.model.lm_head.weight": torch.ones(2, 2)}},
            "changes more than low-rank products",
        ),
    ],
)
def test_an_adapter_that_cannot_be_merged_whole_is_refused(base, tmp_path, config, said):
    lora_folder(base, tmp_path, layer=2, **config)
    with pytest.raises(HeadwiseError, match=said):
        hw.load(tmp_path / "lora")
