"""Heads files: lists, saved scores, and the tables of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import headwise as hw
from headwise.cli.app import app
from headwise.cli.export import _ranked_on
from headwise.errors import HeadwiseError
from headwise.heads import Head, Scores, save_order
from headwise.heads.heads_file import _from_run, read_heads
from helpers import saved_word_model, word_task
from planted import written

VALUES = np.array([[0.1, -3.0], [2.0, 0.5]])


def scores(values=VALUES, **about):
    about = {"model": "m", "task": "t", "method": "ablation", **about}
    return Scores.from_examples(np.stack([values, values]), **about)


def test_a_list_of_names_may_be_longer_than_the_name_of_a_file():
    heads = [Head(layer, head) for layer in range(30) for head in range(9)]
    assert read_heads(",".join(map(str, heads))) == heads


def test_a_list_is_taken_in_its_order(tmp_path):
    save_order([Head(3, 1), Head(0, 2), Head(1, 1)], tmp_path / "heads.json")
    assert read_heads(tmp_path / "heads.json") == [Head(3, 1), Head(0, 2), Head(1, 1)]
    assert read_heads(tmp_path / "heads.json", 2) == [Head(3, 1), Head(0, 2)]
    with pytest.raises(HeadwiseError, match="has 3 heads, fewer than the 4 asked for"):
        read_heads(tmp_path / "heads.json", 4)


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_scores_give_their_first_heads(tmp_path, kind):
    path = tmp_path / f"scores.{kind}"
    if kind == "npz":
        scores().save(path)
    else:
        scores().table().to_parquet(path)
    assert read_heads(path, 2) == [Head(1, 0), Head(1, 1)]
    assert read_heads(path, 1, by="absolute") == read_heads(path, 1, by="hinders") == [Head(0, 1)]
    with pytest.raises(HeadwiseError, match="top=16"):
        read_heads(path)
    with pytest.raises(HeadwiseError, match="has 4 heads, fewer"):
        read_heads(path, 5)


def test_the_standard_errors_of_a_run_are_those_of_its_table(tmp_path):
    path = tmp_path / "scores.parquet"
    examples = np.random.default_rng(0).normal(size=(5, 2, 2))
    table = Scores.from_examples(examples, model="m", task="t", method="ablation").table()
    table.to_parquet(path)
    read = _from_run(path, None, None, None)
    assert read.stderr == pytest.approx(examples.std(0, ddof=1) / np.sqrt(5))
    assert read.values == pytest.approx(examples.mean(0))
    table.drop(columns="stderr").to_parquet(path)
    assert np.isnan(_from_run(path, None, None, None).stderr).all()


def test_of_several_maps_one_must_be_named(tmp_path):
    import pandas as pd

    path = tmp_path / "scores.parquet"
    pd.concat([scores().table(), scores(-VALUES, task="u").table()]).to_parquet(path)
    assert read_heads(path, 1, task="u") == [Head(0, 1)]
    with pytest.raises(HeadwiseError, match=r"has 2 maps that fit.*t by ablation \(m\); u by ablation \(m\)"):
        read_heads(path, 1)
    with pytest.raises(HeadwiseError, match="has 0 maps that fit"):
        read_heads(path, 1, method="probe")


def test_the_command_writes_a_checkpoint_and_says_what_it_did(tiny, tmp_path, monkeypatch):
    import headwise.model.load.load as load_module

    monkeypatch.setattr(load_module, "load", lambda name, **_: tiny)
    (tmp_path / "heads.json").write_text(json.dumps(["L1H2", "L0H0", "L3H3"]))
    command = ["export", "tiny", "--heads", str(tmp_path / "heads.json"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*command, "--top", "2", "--measure", "none"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "tiny with 2 heads at 0, float32" in done.output
    assert json.loads((tmp_path / "out/headwise.json").read_text())["heads"] == ["L1H2", "L0H0"]
    assert (tmp_path / "out/model.safetensors").is_file()


def test_of_several_models_the_one_at_hand_is_meant(tmp_path):
    import pandas as pd

    path = tmp_path / "scores.parquet"
    pd.concat([scores().table(), scores(-VALUES, model="other").table()]).to_parquet(path)
    assert read_heads(path, 1, model="other") == [Head(0, 1)]
    assert read_heads(path, 1, model="m") == [Head(1, 0)]
    with pytest.raises(HeadwiseError, match=r"has 2 maps that fit.*\(m\).*\(other\)"):
        read_heads(path, 1, model="a third")
    scores().table().to_parquet(path)
    assert read_heads(path, 1, model="a copy of m") == [Head(1, 0)]  # a single map fits whoever asks
    save_order([Head(0, 1)], tmp_path / "heads.json")
    with pytest.raises(HeadwiseError, match="holds one list of heads"):
        read_heads(tmp_path / "heads.json", task="t")


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_scores_of_another_model_are_refused_and_those_of_a_copy_are_taken_with_a_warning(
    tmp_path, kind, caplog
):
    path = tmp_path / f"scores.{kind}"
    if kind == "npz":
        scores().save(path)
    else:
        scores().table().to_parquet(path)
    own = [Head(*place) for place in np.ndindex(VALUES.shape)]
    assert read_heads(path, 1, model="m", existing=own) == [Head(1, 0)]
    assert not caplog.records
    assert read_heads(path, 1, model="a copy of m", existing=own) == [Head(1, 0)]
    assert "has scores of m, not of a copy of m" in caplog.text
    for other in (own[:3], [*own, Head(2, 0)]):  # smaller and larger models
        with pytest.raises(HeadwiseError, match="has scores of m, whose heads are not those of large; give"):
            read_heads(path, 1, model="large", existing=other)


def test_the_command_refuses_scores_of_another_model_and_writes_nothing(tiny, tmp_path, monkeypatch):
    import headwise.model.load.load as load_module

    monkeypatch.setattr(load_module, "load", lambda name, **_: tiny)
    scores().save(tmp_path / "scores.npz")
    command = ["export", "tiny", "--heads", str(tmp_path / "scores.npz"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*command, "--top", "1", "--measure", "none"])
    assert "has scores of m, whose heads are not those of tiny" in f"{done.exception}{done.output}"
    assert not (tmp_path / "out").exists()


def test_least_takes_the_smallest_absolute_scores_first(tmp_path):
    path = tmp_path / "scores.npz"
    scores().save(path)
    flat = {Head(*place): abs(value) for place, value in np.ndenumerate(VALUES)}
    assert read_heads(path, 4, by="least") == sorted(flat, key=flat.get)


def test_an_export_removes_the_least_important_heads_and_measures_what_that_costs(word_tokenizer, tmp_path):
    """Loss and accuracy of the checkpoint beside those that plain transformers gives for it."""
    saved_word_model(tmp_path / "model", "llama", max_position_embeddings=512)
    task = word_task(6)
    rows = [{"prompt": e.prompt, "target": e.target, "foils": list(e.foils)} for e in task]
    (tmp_path / "words.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model = hw.load(tmp_path / "model", device="cpu")
    scored = hw.score(model, task, reference="zero")
    scored.save(tmp_path / "scores.npz")
    command = ["export", str(tmp_path / "model"), "--heads", str(tmp_path / "scores.npz"), "--top", "5"]
    command += ["--out", str(tmp_path / "out"), "--measure", str(tmp_path / "words.jsonl"), "--device", "cpu"]
    done = CliRunner().invoke(app, [*command, "-n", "6"], catch_exceptions=False)
    removed = json.loads((tmp_path / "out/headwise.json").read_text())["heads"]
    assert removed == [str(head) for head in scored.order("absolute")[::-1][:5]]
    assert f"removed: {' '.join(removed)}" in done.output
    assert "has the size and the speed of the full model" in done.output
    for name, form in (("cross-entropy", ".3f"), ("accuracy", ".1%"), ("parameters", ","), ("speed", None)):
        (line,) = (line for line in done.output.splitlines() if line.strip().startswith(name))
        if form:
            before, after = (
                plain_numbers(tmp_path / folder, word_tokenizer, task)[name] for folder in ("model", "out")
            )
            shown = re.sub(r" \[[^]]*\]", "", line)  # the intervals
            assert shown.split()[-3:] == [format(before, form), "→", format(after, form)]
            assert (shown != line) is (name in ("cross-entropy", "accuracy"))


def test_the_task_of_saved_scores_is_known_where_it_is_a_built_in_one(tmp_path):
    for task, known in {"syntax": [("syntax", {})], "my facts": []}.items():
        scores(task=task).save(tmp_path / "scores.npz")
        assert _ranked_on(tmp_path / "scores.npz", None) == known
    assert _ranked_on(Path(",".join(f"L{layer}H1" for layer in range(300))), None) == []


def test_an_export_measures_what_its_heads_were_ranked_on(word_tokenizer, tmp_path, undrawn, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved_word_model(tmp_path / "model", "llama", max_position_embeddings=512)
    model = hw.load(tmp_path / "model", device="cpu")
    for name, n in (("words", 6), ("others", 5)):
        written(word_task(n), tmp_path / f"{name}.jsonl")
    given = {"models": [str(tmp_path / "model")], "methods": ["random"], "cards": 0, "progress": False}
    hw.run("score", "one", **given, tasks=["words.jsonl"])
    hw.run("score", "two", **given, tasks=["words.jsonl", "others.jsonl"])

    def losses(*arguments):
        command = ["export", "model", "--out", f"out{len(done)}", "--device", "cpu", "--json", "-n", "4"]
        result = CliRunner().invoke(app, [*command, *arguments], catch_exceptions=False)
        done.append(json.loads(result.stdout))
        return {name: value for name, value in done[-1]["before"].items() if name.startswith("cross")}

    def loss(source):
        task = hw.task(source, 4, model=model, seed=1)
        return pytest.approx(-hw.measure(model, task, metric="mean_logprob", progress=False).full.mean())

    done, line = [], "cross-entropy (nats per target token)"
    assert losses("--heads", "one", "--top", "2") == {line: loss("words.jsonl")}
    assert losses("--heads", "one/tables/scores.parquet", "--top", "2") == {line: loss("words.jsonl")}
    assert losses("--heads", "two", "--task", "others", "--top", "2") == {line: loss("others.jsonl")}
    assert losses("--heads", "one", "--top", "2", "--measure", "others.jsonl") == {line: loss("others.jsonl")}
    both = [word for name in ("words.jsonl", "others.jsonl") for word in ("--task", name)]
    assert losses("--shrink", *both, "--method", "random", "--share", "0.5") == {
        f"{line}, {name}": loss(f"{name}.jsonl") for name in ("words", "others")
    }
    assert done[-1]["measured_on"] == ["words", "others"]
    (tmp_path / "words.jsonl").unlink()
    gone = CliRunner().invoke(app, ["export", "model", "--heads", "one", "--top", "2", "--out", "out"])
    assert "the heads were ranked on it: give --measure another task" in str(gone.exception)


def test_an_export_can_keep_the_most_helpful_heads_and_remove_all_others(tmp_path):
    saved_word_model(tmp_path / "model", "llama", max_position_embeddings=512)
    model, task = hw.load(tmp_path / "model", device="cpu"), word_task(6)
    scored = hw.score(model, task, reference="zero")
    scored.save(tmp_path / "scores.npz")
    command = ["export", str(tmp_path / "model"), "--heads", str(tmp_path / "scores.npz"), "--keep", "3"]
    command += ["--out", str(tmp_path / "out"), "--measure", "none", "--device", "cpu"]
    CliRunner().invoke(app, command, catch_exceptions=False)
    kept = hw.load(tmp_path / "out", device="cpu")
    gates = model.gates(keep=scored.order()[:3])
    np.testing.assert_allclose(
        hw.measure(kept, task).full, hw.measure(model, task, gates, reference="zero").values, atol=1e-5
    )
    refused = CliRunner().invoke(app, [*command, "--top", "2"])
    assert "give it without --top and --gate" in str(refused.exception)


def plain_numbers(folder, tokenizer, task):
    """The same numbers without a line of ours."""
    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    losses, right = [], []
    for e in task:
        target, foil = (tokenizer.encode(text.strip())[0] for text in (e.target, e.foils[0]))
        with torch.no_grad():
            logits = hf(input_ids=torch.tensor([tokenizer.encode(e.prompt)])).logits[0, -1]
        losses.append(-float(logits.log_softmax(-1)[target]))
        right.append(bool(logits[target] > logits[foil]))
    parameters = sum(p.numel() for p in hf.parameters())
    return {"cross-entropy": np.mean(losses), "accuracy": np.mean(right), "parameters": parameters}


def test_a_run_folder_stands_for_its_scores_and_names_for_themselves(tmp_path):
    (tmp_path / "run" / "tables").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    table = tmp_path / "run" / "tables" / "scores.parquet"
    scores().table().to_parquet(table)
    assert read_heads(tmp_path / "run", 3) == read_heads(table, 3)
    assert read_heads("L12H3, L0H1") == [Head(12, 3), Head(0, 1)]
    with pytest.raises(HeadwiseError, match="names L1H1 twice"):
        read_heads("L1H1,L1H1")
    with pytest.raises(HeadwiseError, match="no heads file at L12"):
        read_heads("L12")
