"""The evaluation harness under gates, on a task file of our own."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head, mask_gates
from helpers import WORDS, HeadsByHook

MASKED = [Head(0, 1), Head(2, 3), Head(3, 0)]


@pytest.fixture
def task_file(tmp_path):
    """Twelve made-up questions with two choices each, as a task of the harness."""
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(12):
        words = [str(word) for word in draw.choice(WORDS, 6, replace=False)]
        rows.append({"question": " ".join(words[:4]), "choices": words[4:], "answer": int(draw.integers(2))})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "words.yaml").write_text(
        "task: headwise_words\n"
        "dataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{test: {tmp_path / 'rows.jsonl'}}}}}\n"
        "test_split: test\n"
        "output_type: multiple_choice\n"
        'doc_to_text: "{{question}}"\n'
        'doc_to_choice: "{{choices}}"\n'
        'doc_to_target: "{{answer}}"\n'
        "metric_list: [{metric: acc}]\n"
    )
    return tmp_path / "words.yaml", rows


def by_hand(model, rows, heads):
    """Accuracy by one forward pass per choice, heads removed by hooks of our own."""

    def off(layer, z):
        gates = torch.ones(z.shape[2], 1)
        for head in heads:
            if head.layer == layer:
                gates[head.head] = 0
        return z * gates

    right = 0
    for row in rows:
        sums = []
        for choice in row["choices"]:
            ids = torch.tensor([model.text.tokenizer(f"{row['question']} {choice}")["input_ids"]])
            with HeadsByHook(model, off), torch.no_grad():
                logits = model.hf(input_ids=ids, use_cache=False).logits[0]
            sums.append(float(logits.log_softmax(-1)[-2, ids[0, -1]]))
        right += int(np.argmax(sums)) == row["answer"]
    return right / len(rows)


def test_the_harness_measures_the_masked_model(tiny, task_file, monkeypatch, tmp_path):
    pytest.importorskip(
        "lm_eval",
        reason="the harness is not installed: pip install 'headwise[lm-eval]'",
        exc_type=ImportError,
    )
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    file, rows = task_file
    accuracies = []
    for heads in ([], MASKED):
        report = hw.lm_eval(tiny, mask_gates(heads, tiny.shape), file)
        accuracies.append(report["results"]["headwise_words"]["acc,none"])
        assert accuracies[-1] == pytest.approx(by_hand(tiny, rows, heads))
    assert accuracies[0] != accuracies[1]


def test_a_mistake_is_told_before_the_harness_starts(tiny, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(HeadwiseError, match=r"pip install 'headwise\[lm-eval\]'"):
        hw.lm_eval(tiny, tasks="arc_easy")


def test_wrong_gates_and_missing_tasks_are_refused(tiny):
    pytest.importorskip("lm_eval", reason="the harness is not installed: pip install 'headwise[lm-eval]'")
    with pytest.raises(HeadwiseError, match="no task is given"):
        hw.lm_eval(tiny)
    with pytest.raises(HeadwiseError, match="one set of gates"):
        hw.lm_eval(tiny, np.ones((2, *tiny.shape)), tasks="arc_easy")
    with pytest.raises(HeadwiseError, match="no task file"):
        hw.lm_eval(tiny, tasks="nowhere/mine.yaml")
