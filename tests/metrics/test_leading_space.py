"""Answers without their leading space are found by measuring, and said once with the two accuracies."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import warn_once
from headwise.metrics import leading_space
from headwise.metrics.leading_space import note_leading_space
from headwise.tasks import Example

COUNTRIES = {
    "France": "Paris",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Spain": "Madrid",
    "Egypt": "Cairo",
    "Russia": "Moscow",
    "Germany": "Berlin",
    "Greece": "Athens",
}
PAIRS = [(f"The capital of {country} is", city) for country, city in COUNTRIES.items()]


@pytest.fixture(autouse=True)
def nothing_said_before(monkeypatch):
    monkeypatch.setattr(leading_space, "_checked", {})
    warn_once.cache_clear()


def said(caplog):
    return [record.getMessage() for record in caplog.records if "leading space" in record.getMessage()]


def greedy(model, prompt, answer):
    """Whether plain transformers writes this answer, token by token."""
    text = model.text.tokenizer
    before, whole = text(prompt)["input_ids"], text(prompt + answer)["input_ids"]
    with torch.no_grad():
        logits = model.hf(torch.tensor([whole], device=model.device)).logits[0]
    return logits.argmax(-1)[len(before) - 1 : -1].tolist() == whole[len(before) :]


@pytest.mark.bundled
def test_the_hint_has_both_accuracies_and_comes_once(smollm2, tmp_path, caplog):
    path = tmp_path / "capitals.jsonl"
    path.write_text("\n".join(json.dumps({"stem": p, "answer": a}) for p, a in PAIRS))
    with caplog.at_level(logging.WARNING, logger="headwise"):
        for seed in (0, 1):
            hw.score(smollm2, path, "attribution", columns={"prompt": "stem", "target": "answer"}, seed=seed)
    (sentence,) = said(caplog)
    right = [np.mean([greedy(smollm2, p, space + a) for p, a in PAIRS]) for space in ("", " ")]
    assert right[1] > right[0] + 0.5
    assert f"the accuracy is {right[1]:.0%} instead of {right[0]:.0%}" in sentence
    assert "with ' Paris' instead of 'Paris'" in sentence
    assert "columns={'target': ' {answer}'}" in sentence


@pytest.mark.bundled
def test_nothing_is_said_where_the_space_is_there_or_not_wanted(smollm2, caplog):
    years = [(f"The war lasted from 17{n} to 17", f"{n + 3}") for n in range(20, 40, 2)]
    code = [(f"import numpy as np\nx_{n} = np", ".zeros") for n in range(8)]
    parts = [("He counted: one, two, thr", "ee"), ("They sang a beauti", "ful")]
    for data in ([(p, f" {a}") for p, a in PAIRS], [(f"{p} ", a) for p, a in PAIRS], years, code, parts):
        with caplog.at_level(logging.WARNING, logger="headwise"):
            note_leading_space(smollm2, hw.task(data))
    assert not said(caplog)


def test_only_own_data_that_lack_the_space_are_measured(tiny, monkeypatch):
    measured = []
    monkeypatch.setattr(
        leading_space, "leading_space_notice", lambda model, examples: measured.append(len(examples))
    )
    note_leading_space(
        tiny, hw.Task("t", (Example("the cat", "sat"),))
    )  # made in Python, as the built-in ones
    note_leading_space(tiny, hw.task([("the cat", " sat")]))
    assert not measured
    data = hw.task([(f"the cat {n}", "sat") for n in range(40)])
    for _ in range(2):
        note_leading_space(tiny, data)
    assert measured == [leading_space.EXAMPLES]
