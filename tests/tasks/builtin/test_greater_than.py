"""Greater-Than: the right endings are those of later years, however the tokenizer cuts a year."""

import re

import pytest

from headwise.tasks import task

WORD = r" ?[A-Za-z]+"


def cutting(pattern):
    """An encode function that cuts text into the matches of a pattern."""
    seen = {}

    def encode(text):
        pieces = re.findall(pattern, text)
        assert "".join(pieces) == text
        return [seen.setdefault(piece, len(seen)) for piece in pieces]

    return encode


KINDS = {
    "17|42": (cutting(rf"{WORD}| ?\d\d|."), "year", 2),
    "1|7|4|2": (cutting(rf"{WORD}|\d|."), "tens", 1),
    "174|2": (cutting(rf"{WORD}|\d{{1,3}}|."), "tens", 3),
    "1742": (cutting(rf"{WORD}| \d+|."), "year", 5),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_sentence_is_cut_where_the_tokenizer_cuts_it(kind):
    encode, label, letters = KINDS[kind]
    for e in task("greater_than", 60, tokens=encode):
        assert e.label == label
        for answer in (e.target, *e.also, *e.foils):
            assert len(answer) == letters
            assert encode(e.prompt + answer)[:-1] == encode(e.prompt)  # one token, and the prompt's stay


def years_said(e, answer):
    """Every year the model may still mean after prompt and answer."""
    start, said = re.findall(r"\d+", e.prompt + answer)
    return int(start), [year for year in range(1000, 2000) if str(year).startswith(said)]


@pytest.mark.parametrize("kind", [*KINDS, "no tokenizer"])
def test_right_answers_say_later_years_and_wrong_ones_do_not(kind):
    encode, *_ = KINDS.get(kind, (None,))
    for e in task("greater_than", 60, tokens=encode):
        for answer in (e.target, *e.also):
            start, years = years_said(e, answer)
            assert min(years) > start
        for answer in e.foils:
            start, years = years_said(e, answer)
            assert max(years) <= start


@pytest.mark.parametrize("kind", [*KINDS, "no tokenizer"])
def test_all_endings_are_asked_for_but_the_tens_digit_that_says_nothing(kind):
    encode, label, _ = KINDS.get(kind, (None, "year", 2))
    for e in task("greater_than", 60, tokens=encode):
        answers = {e.target, *e.also, *e.foils}
        assert len(answers) == (100 if label == "year" else 9)
        missing = set(range(100)) - {y % 100 for a in answers for y in years_said(e, a)[1]}
        start = int(re.search(r"\d+", e.prompt)[0]) % 100
        assert missing == (set() if label == "year" else {y for y in range(100) if y // 10 == start // 10})


@pytest.mark.parametrize("kind", KINDS)
def test_the_counterfactual_starts_so_early_that_foils_become_right(kind):
    encode, *_ = KINDS[kind]
    for e in task("greater_than", 60, tokens=encode):
        early, start = (int(re.search(r"\d+", text)[0]) for text in (e.counterfactual, e.prompt))
        assert early // 100 == start // 100
        assert early % 100 == 1
        assert e.counterfactual.replace(str(early), str(start)) == e.prompt
        assert any(max(years_said(e, foil)[1]) > early for foil in e.foils)


def test_where_merges_are_uneven_only_endings_of_one_token_are_asked_for(byte_bpe):
    asked = task("greater_than", 100, tokens=byte_bpe)
    sizes = set()
    for e in asked:
        answers = [e.target, *e.also, *e.foils]
        sizes.add(len(answers))
        for answer in answers:
            assert byte_bpe(e.prompt + answer)[:-1] == byte_bpe(e.prompt)
        assert min(len(e.foils), 1 + len(e.also)) >= 1
    assert sizes != {100}, "this tokenizer should have some endings of several tokens"


def test_a_tokenizer_that_allows_no_cut_is_asked_for_whole_endings():
    encode = cutting(r"\d+|\D")  # "17" and "1742" share no token, and the space before is one of its own
    for e in task("greater_than", 20, tokens=encode):
        assert e.label == "year"
        assert {len(answer) for answer in (e.target, *e.also, *e.foils)} == {2}
