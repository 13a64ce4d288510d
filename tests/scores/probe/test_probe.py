"""The probe on planted truth, and its importance against one backward pass per example and number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head, Scores
from headwise.scores.probe import (
    UNIT,
    HeadClassifier,
    check_labels,
    fit,
    head_features,
    importance,
    probe,
    split,
)
from headwise.tasks import Example, Task
from helpers import WORDS

CARRIERS = (3, 17)


def planted(seed=0, examples=160, heads=24, size=8, classes=4):
    """Features in which only two heads know the label; all others are noise of the same size."""
    draw = np.random.default_rng(seed)
    labels = np.arange(examples) % classes
    features = draw.standard_normal((examples, heads, size))
    code = draw.standard_normal((classes, size))
    for head in CARRIERS:
        features[:, head] = 0.3 * features[:, head] + 1.5 * code[labels]
    return torch.from_numpy(features.astype(np.float32)), labels


def label_task(n=24):
    """Two made-up abilities that differ in their words, six words and an answer each."""
    kinds = {"animals": ["cat", "dog", "bird"], "colours": ["red", "blue", "small"]}
    examples = []
    for i in range(n):
        label = list(kinds)[i % 2]
        words = [WORDS[(i * 5 + j * 3) % 20] for j in range(4)]
        examples.append(
            Example(" ".join(words), f" {kinds[label][i % 3]} {kinds[label][(i // 2) % 3]}", label=label)
        )
    return Task("kinds", tuple(examples))


SILENT = 5


@pytest.fixture(scope="module")
def trained():
    """A classifier of planted features in which one more head writes nothing."""
    features, labels = planted()
    features[:, SILENT] = 0
    return features, labels, fit(features, labels, 4, 0)


def test_heads_that_carry_the_label_come_first_for_every_class(trained):
    features, labels, fitted = trained
    parts = fitted.parts
    assert fitted.hits.mean() > 0.9
    for label in range(4):
        mine = parts.held_out[labels[parts.held_out] == label]
        values = np.abs(importance(fitted.classifier, features[torch.from_numpy(mine)], label).mean(0))
        assert set(np.argsort(-values)[:2]) == set(CARRIERS)


def test_shuffled_labels_give_chance():
    rates = []
    for seed in range(4):
        features, labels = planted(seed)
        dealt = np.random.default_rng(seed).permutation(labels)
        rates.append(fit(features, dealt, 4, seed).hits.mean())
    # 128 held-out examples at one in four: a standard error of .04.
    assert 0.25 - 0.16 < np.mean(rates) < 0.25 + 0.16


def test_importance_equals_a_backward_pass_for_each_example():
    torch.manual_seed(0)
    classifier = HeadClassifier(heads=5, features=6, classes=3)
    features = torch.randn(7, 5, 6)
    found = importance(classifier, features, 2)
    classifier.eval()
    for e in range(7):
        projected = torch.stack([classifier.project.weight @ features[e, n] for n in range(5)]).detach()
        projected.requires_grad_()
        hidden = torch.relu(classifier.decide[1].weight @ projected.reshape(-1) + classifier.decide[1].bias)
        logit = (classifier.decide[4].weight @ hidden + classifier.decide[4].bias)[2]
        logit.backward()
        slow = [float((projected.grad[n] * projected[n]).sum() / 64) for n in range(5)]
        np.testing.assert_allclose(found[e], slow, rtol=1e-4, atol=1e-8)


def test_a_head_that_writes_nothing_has_no_importance(trained):
    features, _, fitted = trained
    found = importance(fitted.classifier, features, 1)
    assert not found[:, SILENT].any()
    assert found[:, SILENT + 1].any()


def test_no_group_is_both_learned_from_and_held_out():
    labels = np.repeat(np.arange(3), [40, 16, 8])
    groups = [number // 2 for number in range(64)]
    parts = split(labels, 7, groups)
    of = {name: {groups[n] for n in getattr(parts, name)} for name in ("train", "stop", "held_out")}
    assert sum(map(len, of.values())) == len(set.union(*of.values())) == 32
    assert sorted(np.concatenate([parts.train, parts.stop, parts.held_out])) == list(range(64))
    assert np.bincount(labels[parts.held_out]).tolist() == [8, 4, 2]


def test_answers_learned_by_heart_do_not_help_where_groups_stay_together():
    """Every example four times, with a label that nothing tells: where copies are parted they give it away."""
    draw = np.random.default_rng(0)
    features = torch.from_numpy(draw.normal(size=(60, 4, 8)).astype(np.float32)).repeat_interleave(4, 0)
    labels = np.repeat(draw.permutation(np.arange(60) % 2), 4)
    found = {}
    for name, groups in (("alone", None), ("together", [n // 4 for n in range(240)])):
        right = []
        for seed in range(2):
            right.extend(fit(features, labels, 2, seed, groups).hits)
        found[name] = np.mean(right)
    assert found["alone"] > 0.9
    assert found["together"] < 0.75  # 24 groups at one in two: a standard error of .10


def test_a_label_of_few_groups_is_refused():
    names = ["a"] * 6 + ["b"] * 6
    groups = [*range(6), 6, 6, 6, 7, 7, 7]
    with pytest.raises(HeadwiseError, match=r"label 'b' of task 't' has 2 groups of examples.* at least 3"):
        check_labels(names, "t", groups)
    assert check_labels(names, "t", range(12)) == ["a", "b"]


def test_parts_are_disjoint_and_hold_every_class_in_its_share():
    labels = np.repeat(np.arange(3), [40, 15, 3])
    parts = split(labels, 7)
    everything = np.concatenate([parts.train, parts.stop, parts.held_out])
    assert sorted(everything) == list(range(58))
    assert np.bincount(labels[parts.held_out]).tolist() == [8, 3, 1]
    assert np.bincount(labels[parts.stop]).tolist() == [4, 2, 1]
    assert np.array_equal(split(labels, 7).train, parts.train)
    assert not np.array_equal(split(labels, 8).held_out, parts.held_out)


def test_the_same_seed_gives_the_same_classifier_and_leaves_torchs_dice_alone(monkeypatch):
    monkeypatch.setattr("headwise.scores.probe.MOST_EPOCHS", 8)
    features, labels = planted(examples=60)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two = (fit(features, labels, 4, 3).classifier.project.weight for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one, two)
    assert not torch.equal(one, fit(features, labels, 4, 4).classifier.project.weight)


def test_features_are_the_head_beside_the_mean_of_its_layers_heads():
    outputs = np.random.default_rng(0).standard_normal((3, 2, 4, 5)).astype(np.float32)
    heads = [Head(0, h) for h in range(4)] + [Head(1, h) for h in range(3)]  # layer 1 has three heads
    features = head_features(outputs, heads).numpy()
    assert features.shape == (3, 7, 10)
    np.testing.assert_allclose(features[1, 5], [*outputs[1, 1, 1], *outputs[1, 1, :3].mean(0)], rtol=1e-6)


def test_probe_gives_a_map_per_label_from_its_held_out_examples(tiny):
    task = label_task()
    found = probe(tiny, task)
    assert list(found) == ["animals", "colours"]
    for label, scores in found.items():
        details = scores.details
        assert not scores.signed
        assert scores.task == label
        assert {task.examples[i].label for i in details["held_out"]} == {label}
        assert scores.n == len(details["held_out"])
        assert (scores.values >= 0).all()
        assert set(np.unique(details["signs"])) <= {-1, 1}
        assert details["chance"] == 0.5
        assert 0 <= details["lo"] <= details["accuracy"] <= details["hi"] <= 1
        assert details["bag_of_words"] > 0.9  # the two kinds share no answer
    again = probe(tiny, task)
    assert np.array_equal(again["animals"].examples, found["animals"].examples)


def test_one_label_by_the_registered_method_is_its_map_and_survives_a_file(tiny, tmp_path):
    scores, of_label = (
        hw.score(tiny, label_task(), "probe", label="colours"),
        probe(tiny, label_task())["colours"],
    )
    assert np.array_equal(scores.examples, of_label.examples)
    assert scores.order() == scores.order("absolute")
    assert scores.metric == UNIT == of_label.metric
    scores.save(tmp_path / "scores.npz")
    assert Scores.load(tmp_path / "scores.npz").details["accuracy"] == scores.details["accuracy"]


def test_one_label_is_told_from_the_examples_without_any(tiny):
    examples = [
        Example(e.prompt, e.target, label="animals" if e.label == "animals" else None) for e in label_task()
    ]
    scores = hw.score(tiny, Task("animals or not", tuple(examples)), "probe")
    assert scores.details["classes"] == 2
    assert all(examples[i].label == "animals" for i in scores.details["held_out"])


@pytest.mark.parametrize(
    ("keep", "options", "said"),
    [
        (slice(None), {}, "has 2 .animals, colours.; give label="),
        (slice(None), {"label": "animal"}, "did you mean 'animals'"),
        (slice(0, None, 2), {}, "has 1 .animals.; give examples of at least two labels"),
        (
            slice(0, 5),
            {"label": "animals"},
            "'colours' of task 'kinds' has 2 examples, but a probe needs at least 3",
        ),
    ],
)
def test_labels_that_cannot_be_told_apart_are_refused(tiny, keep, options, said):
    task = label_task()
    with pytest.raises(HeadwiseError, match=said):
        hw.score(tiny, task.take(range(len(task))[keep]), "probe", **options)
