"""The first two tasks: what they ask, and that the same seed asks the same."""

from __future__ import annotations

import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.tasks import Example, Task, families


def words(text):
    return text.split()


def test_the_fingerprints_are_these_on_every_platform():
    """A change of a word list or of the order in which it is read is a change of everybody's numbers."""
    found = {name: hw.task(name, 64, seed=0, tokens=words).fingerprint for name in families()}
    assert found == {
        "abilities": "961e03e0c5e330dc",
        "commonsense": "1eb687da1882b6ca",
        "commonsense_negative": "ed07b4a276d6c5a3",
        "docstring": "8c400769cd201009",
        "docstring_negative": "bce600d2e5e879ca",
        "docstring_rewrite": "55febbbc417d4d5e",
        "greater_than": "1d1b7f28acc80fc3",
        "greater_than_negative": "ad7adccf8bcc8629",
        "greater_than_rewrite": "4b1f0a72f47653ae",
        "induction": "3307c9ed78cd106b",
        "induction_negative": "581f3f3d41ae730e",
        "induction_rewrite": "da81aa9bbc42c6cf",
        "ioi": "bbd2c28c6d73215c",
        "ioi_long": "500cf35815d0c8f9",
        "ioi_long_negative": "bde083c01473b187",
        "ioi_long_rewrite": "8230302c4049b55b",
        "ioi_negative": "4523783e034167d7",
        "ioi_rewrite": "2c2eed82b3eab1fc",
        "math": "8019635e7589b66c",
        "math_rewrite": "6ec7d60d7ce3553d",
        "needle": "2f839828c0b12f44",
        "recall": "ff0d624a517ecc62",
        "recall_from_context": "738dacf0d4d9e453",
        "recall_negative": "c4ba98d88b02fd01",
        "recall_rewrite": "e45aca33b94667d5",
        "syntax": "fc93ba3d5f8fcb41",
        "syntax_negative": "cdcdafdf8fbd8b2c",
        "syntax_rewrite": "dc048b6469da8770",
        "word_problems": "c78b9096ce694e39",
        "word_problems_negative": "6291925a77f759c4",
        "word_problems_rewrite": "9923a4c512540373",
    }


def test_ioi_asks_for_the_name_that_is_not_repeated():
    for example in hw.task("ioi", 50):
        receiver, giver = example.target.strip(), example.foils[0].strip()
        assert example.prompt.count(receiver) == 1
        assert example.prompt.count(giver) == 2
        assert example.counterfactual.count(receiver) == 2


@pytest.mark.parametrize("pattern", ["ABA", "ABB"])
def test_induction_shows_the_rule_that_it_asks_for(pattern):
    for example in hw.task("induction", 20, pattern=pattern):
        *shown, last = [line.split() for line in example.prompt.splitlines()]
        repeated = pattern.index("A") if pattern == "ABA" else 1
        assert all(triple[2] == triple[repeated] for triple in shown)
        assert example.target.strip() == last[repeated]
        others = [line.split() for line in example.counterfactual.splitlines()][:-1]
        assert all(triple[2] == triple[1 - repeated] for triple in others)


def test_a_tokenizer_that_cuts_names_differently_still_gets_equal_lengths():
    """Letters as tokens: names of different length are only swapped where the sum stays equal, as it does."""
    task = hw.task("ioi", 50, tokens=lambda text: list(text.encode()))
    for example in task:
        assert len(example.prompt.encode()) == len(example.counterfactual.encode())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"source": "io"}, "did you mean 'ioi'"),
        ({"source": "ioi", "n": 0}, "from 1 to 1,000,000 examples, not 0"),
        ({"source": "ioi", "n": 10**5000}, "from 1 to 1,000,000 examples, not a int"),
        ({"source": "ioi", "shots": 10**5000}, "a int is not a number of shots"),
        ({"source": "ioi", "shots": "two"}, "'two' is not a number of shots"),
        ({"source": "ioi", "patern": "ABB"}, "did you mean 'pattern'"),
        ({"source": "ioi", "pattern": "ABBA"}, "Valid: ABB, BAB, mixed"),
        ({"source": "ioi", "n": 10**6}, "distinct examples that fit this tokenizer"),
    ],
)
def test_what_cannot_be_made_is_one_clear_sentence(arguments, said, monkeypatch):
    from headwise.tasks.builtin import ioi

    if arguments.get("n") == 10**6:
        few = {"names": ["Mary John"], "places": ["park"], "things": ["ball"]}
        for name, words in few.items():
            monkeypatch.setitem(ioi.SHORT, name, words)
        arguments["n"] = 100
    with pytest.raises(HeadwiseError, match=said):
        hw.task(**arguments)


def test_halves_are_disjoint_and_whole():
    task = hw.task("ioi", 9)
    one, two = task.halves()
    assert sorted([*one.examples, *two.examples], key=str) == sorted(task.examples, key=str)
    assert not set(one.examples) & set(two.examples)
    with pytest.raises(HeadwiseError, match="two halves"):
        Task("single", task.examples[:1]).halves()


def test_without_groups_halves_are_the_even_and_the_odd_examples():
    task = hw.task("ioi", 9)
    one, two = task.halves()
    assert (one.examples, two.examples) == (task.examples[::2], task.examples[1::2])


@pytest.mark.parametrize("name", ["commonsense", "recall"])
def test_no_fact_is_asked_in_both_halves(name):
    task = hw.task(name, 1000)
    one, two = ({example.group for example in half} - {None} for half in task.halves())
    assert not one & two
    assert len(one) + len(two) < sum(example.group is not None for example in task)  # some are asked twice
    assert abs(len(task.halves()[0]) - 500) <= 5


def test_examples_of_one_group_have_no_halves():
    task = Task("one fact", (Example("a b", " c", group="x"), Example("b a", " c", group="x")))
    with pytest.raises(HeadwiseError, match="one group only"):
        task.halves()


def test_a_group_is_part_of_the_fingerprint():
    plain, grouped = (Task("t", (Example("a", " b", group=group),)) for group in (None, "x"))
    assert plain.fingerprint != grouped.fingerprint


def test_every_family_says_what_it_asks():
    for family in families().values():
        assert len(family.about) > 20
