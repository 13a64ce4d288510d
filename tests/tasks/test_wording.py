"""The bag of words: right where words tell the label, at chance where they do not."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.tasks import wording
from headwise.tasks.wording import bag_of_words_accuracy

FILLER = "the a man dog went home and saw it again on Monday with 3 red hats".split()


def sentence(draw: random.Random, *extra: str) -> str:
    chosen = [*draw.choices(FILLER, k=9), *extra]
    draw.shuffle(chosen)
    return " ".join(chosen)


def test_labels_that_a_word_gives_away_are_all_found():
    draw = random.Random(1)
    labels = [draw.choice("abcd") for _ in range(200)]
    texts = [sentence(draw, f"mark{label}") for label in labels]
    assert bag_of_words_accuracy(texts, labels, 0) == 1.0


def test_labels_that_a_word_gives_away_half_of_the_time_are_found_half_of_the_time_and_by_chance_else():
    draw = random.Random(2)
    labels = ["abcd"[i % 4] for i in range(800)]
    texts = [sentence(draw, *([f"mark{label}"] if draw.random() < 0.5 else [])) for label in labels]
    expected = 0.5 + 0.5 / 4
    assert abs(bag_of_words_accuracy(texts, labels, 0) - expected) < 4 * math.sqrt(expected / 4 / 800) + 0.02


def test_labels_that_have_nothing_to_do_with_the_words_are_found_by_chance():
    draw = random.Random(3)
    texts = [sentence(draw) for _ in range(600)]
    labels = ["abcd"[i % 4] for i in range(600)]
    accuracies = [bag_of_words_accuracy(texts, labels, seed) for seed in range(3)]
    assert abs(np.mean(accuracies) - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 600)


def test_the_order_of_words_is_not_seen():
    draw = random.Random(4)
    labels = ["dog bites man", "man bites dog"] * 50
    texts = [f"{label} {draw.choice(FILLER)}" for label in labels]
    assert bag_of_words_accuracy(texts, labels, 0) < 0.65


def test_signs_numbers_and_case_are_read_as_written_above_them():
    assert wording.lower_case_words("Ana's 12 + 3 = ?") == ["ana", "'", "s", "12", "+", "3", "=", "?"]
    assert wording.lower_case_words("Señora_Vega") == ["señora", "vega"]


def test_texts_of_one_group_are_never_on_both_sides():
    # Each pair shares a rare word and never its label: seen apart, the word points to the wrong label.
    draw = random.Random(5)
    texts = [sentence(draw, f"scene{i // 2}") for i in range(400)]
    labels = ["ab"[i % 2] for i in range(400)]
    groups = [i // 2 for i in range(400)]
    assert bag_of_words_accuracy(texts, labels, 0) < 0.4
    assert abs(bag_of_words_accuracy(texts, labels, 0, groups=groups) - 0.5) < 0.1
    fold = wording._folds(labels, groups, 0)
    assert all(fold[i] == fold[i + 1] for i in range(0, 400, 2))
    assert [fold.count(k) for k in range(5)] == [80] * 5


def test_every_fold_has_its_share_of_every_label():
    labels = ["a"] * 50 + ["b"] * 25
    fold = wording._folds(labels, range(75), 7)
    assert [fold[:50].count(k) for k in range(5)] == [10] * 5
    assert [fold[50:].count(k) for k in range(5)] == [5] * 5
    assert fold != wording._folds(labels, range(75), 8)


def test_the_fit_is_where_the_penalised_likelihood_is_flat():
    rng = np.random.default_rng(0)
    x = np.hstack([rng.poisson(1.0, (40, 5)), np.ones((40, 1))])
    classes = rng.integers(0, 3, 40)
    weights = wording._fit(x, np.eye(3)[classes])

    def loss(w: np.ndarray) -> float:
        total = wording.PENALTY / 2 * sum(w[i, j] ** 2 for i in range(5) for j in range(3))
        for row, c in zip(x, classes, strict=True):
            logits = [float(row @ w[:, j]) for j in range(3)]
            total += math.log(sum(math.exp(z) for z in logits)) - logits[c]
        return total

    for i in range(6):
        for j in range(3):
            step = np.zeros_like(weights)
            step[i, j] = 1e-4
            assert abs(loss(weights + step) - loss(weights - step)) / 2e-4 < 0.02


def test_the_same_seed_gives_the_same_accuracy():
    draw = random.Random(6)
    labels = [draw.choice("ab") for _ in range(100)]
    texts = [sentence(draw, *(["x"] if label == "a" and draw.random() < 0.4 else [])) for label in labels]
    assert bag_of_words_accuracy(texts, labels, 5) == bag_of_words_accuracy(texts, labels, 5)


@pytest.mark.parametrize(
    ("texts", "labels", "options", "message"),
    [
        (["a"] * 9, ["x"] * 8, {}, "9 texts, 8 labels"),
        (["a"] * 9, ["x", "y", "z"] * 3, {"groups": [1, 2]}, "2 groups"),
        (["a"] * 9, ["x"] * 9, {}, "at least two"),
        (["a"] * 4, ["x", "y"] * 2, {}, "5 folds"),
    ],
)
def test_what_cannot_be_measured_is_refused(texts, labels, options, message):
    with pytest.raises(HeadwiseError, match=message):
        bag_of_words_accuracy(texts, labels, 0, **options)
