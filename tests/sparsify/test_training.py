"""The trainer on a tiny model: fewer edges at a bounded loss, a kill that leaves no trace, sentences for mistakes."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.model.verify.tiny import tiny_model
from headwise.sparsify.data import Pool, read_text, sequences
from headwise.sparsify.sparsify import evaluate, sparsify
from helpers import WORDS, forked_command

pytest.importorskip("peft")

SMALL = {
    "batch": 8,
    "length": 32,
    "rank": 4,
    "warmup": 5,
    "sample": 12,
    "check_every": 20,
    "checkpoint_every": 5,
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """The files of a figure take longer than such a training; what is drawn is tested beside the figures."""
    monkeypatch.setattr("headwise.sparsify.sparsify.draw_training", lambda out: None)
    monkeypatch.setattr("headwise.charts.style.save", lambda figure, folder, name: [])


def riddles(n, seed):
    """Text with something to look back for: a word named early on comes again after 'then'."""
    draw = random.Random(seed)
    lines = []
    for _ in range(n):
        word = draw.choice(WORDS[:12])
        filler = [draw.choice(WORDS[12:20]) for _ in range(draw.randint(2, 5))]
        lines.append(" ".join(["one", word, *filler, "then", word, "."]))
    return " ".join(lines)


@pytest.fixture(scope="module")
def taught(made_once):
    """A tiny model that has learnt the riddles, so that some of its edges matter, on disk beside its text."""
    return made_once("taught", _teach)


def _teach(place):
    from helpers import make_word_tokenizer

    tokenizer = make_word_tokenizer()
    (place / "text.txt").write_text(riddles(700, 0))
    (place / "other.txt").write_text(riddles(120, 1))
    hf = tiny_model("llama", vocab_size=len(tokenizer)).train()
    ids = torch.tensor(tokenizer(riddles(3000, 2), add_special_tokens=False)["input_ids"])
    rows = ids[: len(ids) // 32 * 32].view(-1, 32)
    optimiser = torch.optim.AdamW(hf.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(250):
        batch = rows[torch.randint(len(rows), (32,), generator=generator)]
        hf(input_ids=batch, labels=batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    hf.eval().save_pretrained(place / "base")
    tokenizer.save_pretrained(place / "base")


def weights(folder):
    return load_file(folder / "training" / "state.safetensors")


def test_a_short_training_closes_edges_and_stays_within_its_bound(taught, tmp_path):
    done = sparsify(
        taught / "base",
        [taught / "text.txt"],
        tmp_path / "thin",
        steps=150,
        bound=0.05,
        rate=5e-3,
        multiplier_rate=0.05,
        bias=4.0,
        **SMALL,
    )
    assert done
    checks = pd.read_csv(tmp_path / "thin/training/checks.csv")
    assert checks["share"].iloc[0] > 0.9  # b = 4 starts with nearly everything open
    tables = evaluate(
        tmp_path / "thin", [taught / "other.txt"], tmp_path / "seen", length=32, ioi=0, device="cpu"
    )
    edges, texts = tables["edges"], tables["texts"].set_index("model")
    share = edges["edges"].sum() / edges["possible"].sum()
    assert share < 0.75 * checks["share"].iloc[0]
    assert texts.loc["sparse", "cross_entropy"] - texts.loc["dense", "cross_entropy"] < 0.08
    assert (tmp_path / "seen/summary.txt").read_text().startswith(f"open edges: {100 * share:.2f} %")
    # The last look is what was saved.
    kept = json.loads((tmp_path / "thin/edge_gates.json").read_text())["training"]["outcome"]
    assert kept["step"] == checks["step"].iloc[-1] == 150
    assert kept["share"] == pytest.approx(checks["share"].iloc[-1], rel=1e-3)


def test_a_training_killed_and_stopped_resumes_to_the_same_weights(taught, tmp_path):
    given = [str(taught / "base"), "--text", str(taught / "text.txt"), "--steps", "20", "--batch", "8"]
    given += ["--length", "32", "--rank", "4", "--sample", "12", "--device", "cpu", "--set", "warmup=5"]
    given += ["--set", "check_every=20", "--set", "checkpoint_every=5"]
    running = forked_command(tmp_path / "said", "sparsify", *given, "--out", tmp_path / "killed")
    state = tmp_path / "killed/training/state.safetensors"
    started = time.monotonic()
    while not state.exists() and running.is_alive() and time.monotonic() - started < 120:
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.join()
    assert state.exists(), (tmp_path / "said").read_text()
    with open(state, "rb") as file:
        assert b'"step":"20"' not in file.read(200)  # it was killed on the way
    # Twice more: stopped on purpose after an update or so, then through to the end.
    options = {**SMALL, "steps": 20, "report": lambda line: None}
    assert not sparsify(taught / "base", [taught / "text.txt"], tmp_path / "killed", seconds=0.01, **options)
    assert sparsify(taught / "base", [taught / "text.txt"], tmp_path / "killed", **options)
    assert sparsify(taught / "base", [taught / "text.txt"], tmp_path / "through", **options)
    one, two = weights(tmp_path / "killed"), weights(tmp_path / "through")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in two)
    finished = [
        (tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("killed", "through")
    ]
    assert finished[0] == finished[1]


def test_the_control_learns_the_text_without_gates_on_the_same_data(taught, tmp_path):
    options = {**SMALL, "steps": 12, "text_weight": 0.5}
    sparsify(taught / "base", [taught / "text.txt"], tmp_path / "control", dense=True, **options)
    sparsify(taught / "base", [taught / "text.txt"], tmp_path / "thin", **options)
    model = hw.load(tmp_path / "control", device="cpu")
    assert model.edge_gates.bias is None
    assert model.hf.config._attn_implementation == "sdpa"
    curve = pd.read_csv(tmp_path / "control/training/curve.csv")
    assert curve["excess"].iloc[0] == pytest.approx(
        0, abs=1e-6
    )  # before the first update it is the dense model
    assert (curve["share"] == 1).all()
    samples = [
        load_file(tmp_path / name / "training/samples.safetensors")["ids"] for name in ("control", "thin")
    ]
    assert torch.equal(*samples)
    tables = evaluate(
        tmp_path / "thin",
        [taught / "other.txt"],
        tmp_path / "seen",
        control=tmp_path / "control",
        length=32,
        limit=10,
        ioi=0,
        device="cpu",
    )
    assert set(tables["texts"]["model"]) == {"dense", "sparse", "control"}
    assert (tables["texts"]["n"] == 10).all()


def test_another_wish_in_the_same_folder_is_refused_unless_it_starts_over(taught, tmp_path):
    out = tmp_path / "thin"
    sparsify(taught / "base", [taught / "text.txt"], out, steps=2, **SMALL)
    with pytest.raises(HeadwiseError, match=r"steps: 2 → 3.*fresh=True"):
        sparsify(taught / "base", [taught / "text.txt"], out, steps=3, **SMALL)
    assert sparsify(taught / "base", [taught / "text.txt"], out, steps=3, fresh=True, **SMALL)
    with pytest.raises(HeadwiseError, match="already"):
        sparsify(out, [taught / "text.txt"], tmp_path / "more", steps=2, **SMALL)


def test_a_training_begins_where_another_one_ended(taught, tmp_path):
    options = {**SMALL, "sample": 0, "steps": 6, "check_every": 6}
    sparsify(taught / "base", [taught / "text.txt"], tmp_path / "first", **options)
    sparsify(
        taught / "base",
        [taught / "text.txt"],
        tmp_path / "second",
        start=tmp_path / "first",
        seed=1,
        **options,
    )
    ended = pd.read_csv(tmp_path / "first/training/checks.csv").iloc[-1]
    began = pd.read_csv(tmp_path / "second/training/checks.csv").iloc[0]
    assert began["excess"] == pytest.approx(ended["excess"], abs=2e-4)  # the adapter was rounded to bfloat16
    assert began["share"] == pytest.approx(ended["share"], abs=2e-3)
    with pytest.raises(HeadwiseError, match="another rank"):
        sparsify(
            taught / "base",
            [taught / "text.txt"],
            tmp_path / "third",
            start=tmp_path / "first",
            **{**options, "rank": 2},
        )


def test_mistakes_are_told_in_a_sentence(taught, tmp_path):
    with pytest.raises(HeadwiseError, match="nothing to train on"):
        sparsify(taught / "base", [], tmp_path / "a", **{**SMALL, "sample": 0})
    with pytest.raises(HeadwiseError, match="did you mean 'bound'"):
        sparsify(taught / "base", [], tmp_path / "b", bond=0.1)
    with pytest.raises(HeadwiseError, match=r"bound is 0; expected above 0"):
        sparsify(taught / "base", [], tmp_path / "b", bound=0)
    with pytest.raises(HeadwiseError, match="cannot be read"):
        sparsify(taught / "base", [tmp_path / "no.txt"], tmp_path / "c")
    (tmp_path / "short.txt").write_text("the cat")
    with pytest.raises(HeadwiseError, match="has 2 tokens"):
        sparsify(taught / "base", [tmp_path / "short.txt"], tmp_path / "d", **SMALL)
    with pytest.raises(HeadwiseError, match="no edge gates"):
        evaluate(taught / "base", [taught / "other.txt"], tmp_path / "e", device="cpu")


def test_every_sequence_is_drawn_once_before_any_comes_again_and_held_back_ones_never():
    texts = torch.arange(50)[:, None].expand(-1, 4)
    sampled = 1000 + torch.arange(30)[:, None].expand(-1, 4)
    pool = Pool(texts, sampled, batch=8, text_share=0.25, seed=3)
    drawn = torch.stack([pool.batch(step)[:, 0] for step in range(40)])
    assert drawn.shape == (40, 8)
    held = set(pool.held_back[:, 0].tolist())
    assert not held & set(drawn.flatten().tolist())
    from_text = drawn[:, :2].flatten().tolist()
    assert max(from_text) < 1000 <= int(drawn[:, 2:].min())
    assert pool.given.tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert torch.equal(pool.held_back_given == 1, pool.held_back[:, 0] < 1000)
    alone = torch.zeros(0, 4, dtype=torch.long)
    assert Pool(alone, sampled, batch=4, text_share=0.25, seed=3).given.sum() == 0
    assert Pool(texts, alone, batch=4, text_share=0.25, seed=3).given.sum() == 4
    once = 50 - sum(number < 1000 for number in held)
    assert len(set(from_text[:once])) == once
    assert from_text[:once] != from_text[once : 2 * once]  # another order the next time
    fresh = Pool(texts, sampled, batch=8, text_share=0.25, seed=3)
    assert torch.equal(fresh.batch(27)[:, 0], drawn[27])  # an update's data hang on its number alone


def test_texts_and_json_lines_become_rows_of_one_length(tmp_path, tiny):
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("the cat saw the dog " * 5)
    lines.write_text('{"question": "one cat", "answer": "two <<1+1=2>>dog"}\n\n{"text": "red bird"}\n')
    assert read_text(lines) == "one cat\ntwo dog\n\nred bird"
    rows = sequences(tiny.text, [plain, lines], 6)
    own = 6 - len(tiny.text.prefix)
    assert rows.shape == (25 // own + 6 // own, 6)
    assert tiny.text.decode(rows[0, -own:].tolist()).split() == plain.read_text().split()[:own]
    lines.write_text('{"text": "red"}\n{"other": 1}\n')
    with pytest.raises(HeadwiseError, match="line 2: no text in it"):
        read_text(lines)
