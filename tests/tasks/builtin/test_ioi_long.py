"""Long IOI: who is asked for, told by counting names."""

import re

from headwise.tasks import task


def count(name: str, text: str) -> int:
    return len(re.findall(rf"\b{name}\b", text))


def test_the_receiver_is_the_name_said_once_and_the_giver_the_name_said_twice():
    for e in task("ioi_long", 100):
        receiver, giver = e.target.strip(), e.foils[0].strip()
        assert (count(receiver, e.prompt), count(giver, e.prompt)) == (1, 2)
        assert (count(receiver, e.counterfactual), count(giver, e.counterfactual)) == (2, 1)


def test_the_counterfactual_differs_in_one_word_alone():
    for e in task("ioi_long", 100):
        pairs = list(zip(e.prompt.split(), e.counterfactual.split(), strict=True))
        assert [(a, b) for a, b in pairs if a != b] == [(e.foils[0].strip(), e.target.strip())]


def test_the_label_says_in_which_order_the_two_are_named():
    for pattern in ("ABB", "BAB"):
        for e in task("ioi_long", 30, pattern=pattern):
            receiver_first = e.prompt.index(e.target.strip()) < e.prompt.index(e.foils[0].strip())
            assert e.label == pattern == ("ABB" if receiver_first else "BAB")


def test_three_sentences_or_more_stand_between_the_names_and_the_question():
    for e in task("ioi_long", 100):
        before, question = e.prompt.rsplit(". ", 1)
        assert before.count(".") >= 2
        assert e.foils[0].strip() in question
        assert e.target.strip() not in question


def test_it_is_longer_than_every_short_one():
    longest = max(len(e.prompt.split()) for e in task("ioi", 200))
    assert min(len(e.prompt.split()) for e in task("ioi_long", 200)) > longest
