"""Tasks that are a list of written examples: shuffled by the seed, dealt out evenly over the labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from headwise.errors import HeadwiseError
from headwise.tasks import Example, Task, register_list, registry, task


def example(number: int, label: str | None) -> Example:
    return Example(f"{label} number", f" {number}", (" none",), label=label)


@pytest.fixture
def listed():
    """Registers the given examples as the task "written" for the length of one test."""

    def add(examples: Sequence[Example], n: int, seed: int = 0, **options: str) -> Task:
        @register_list("written", metric="logprob", about="for this test", part=("all", "first"))
        def written(part: str = "all") -> Sequence[Example]:
            return examples if part == "all" else examples[:1]

        return task("written", n, seed=seed, **options)

    with registry.FAMILIES.restored():
        yield add


def test_a_beginning_of_a_list_is_the_beginning_of_every_longer_one(listed):
    examples = [example(i, "abc"[i % 3]) for i in range(30)]
    longest = listed(examples, 30).examples
    assert set(longest) == set(examples)
    for n in range(1, 30):
        assert listed(examples, n).examples == longest[:n]


@pytest.mark.parametrize("labels", ["ab", "abc", "abcdefgh"])
def test_every_beginning_and_both_of_its_halves_are_balanced(listed, labels: str):
    examples = [example(i, label) for i in range(6) for label in labels]
    for n in range(2, len(examples) + 1):
        whole = listed(examples, n)
        for part in (whole, *whole.halves()):
            counts = Counter(e.label for e in part)
            times = [counts[label] for label in labels]
            assert max(times) - min(times) <= 1


def test_when_one_label_has_run_out_the_others_go_on(listed):
    examples = [example(1, "few"), *(example(i, "many") for i in range(9))]
    assert set(listed(examples, 10)) == set(examples)
    assert Counter(e.label for e in listed(examples, 2)) == {"few": 1, "many": 1}


def test_a_list_without_labels_is_shuffled_by_its_seed(listed):
    examples = [example(i, None) for i in range(20)]
    one, two = listed(examples, 20, seed=1), listed(examples, 20, seed=2)
    assert list(one) != list(two)
    assert list(one) != examples
    assert set(one) == set(two)
    assert list(listed(examples, 20, seed=1)) == list(one)


def test_repeats_and_examples_whose_foil_is_right_are_left_out(listed):
    good, wrong = example(1, "a"), Example("p", " x", (" x",), label="a")
    assert listed([good, good, wrong], 1).examples == (good,)
    with pytest.raises(HeadwiseError, match="only 1 of 2"):
        listed([good, good, wrong], 2)


def test_options_reach_the_list_and_are_noted_in_the_settings(listed):
    made = listed([example(i, "a") for i in range(5)], 1, part="first")
    assert made.examples == (example(0, "a"),)
    assert made.settings == {"n": 1, "seed": 0, "part": "first"}
    with pytest.raises(HeadwiseError, match="did you mean 'first'"):
        listed([example(0, "a")], 1, part="frist")
