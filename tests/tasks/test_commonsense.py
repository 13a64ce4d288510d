"""Commonsense: the items as they are written."""

from collections import Counter

import pytest

from headwise.errors import HeadwiseError
from headwise.tasks import task
from headwise.tasks.commonsense_items import ITEMS

LINES = [line for lines in ITEMS.values() for line in lines.strip().splitlines()]


def test_every_line_has_a_prompt_an_answer_and_three_foils_all_different():
    for line in LINES:
        parts = [part.strip() for part in line.split("|")]
        assert len(parts) == 5, line
        assert all(parts), line
        assert len({part.lower() for part in parts}) == 5, line


def test_no_prompt_is_written_twice_and_there_are_at_least_two_hundred():
    prompts = Counter(line.split("|")[0].strip().lower() for line in LINES)
    assert max(prompts.values()) == 1
    assert len(prompts) >= 200


def test_every_item_can_be_drawn_and_asking_for_more_says_how_many_there_are():
    everything = task("commonsense", len(LINES))
    assert len({e.prompt for e in everything}) == len(LINES)
    with pytest.raises(HeadwiseError, match=f"ask for at most {len(LINES)}"):
        task("commonsense", len(LINES) + 1)


def test_questions_are_asked_and_sentences_are_left_open():
    forms = Counter()
    for e in task("commonsense", len(LINES)):
        asked = e.prompt.startswith("Question: ") and e.prompt.endswith("?\nAnswer:")
        open_end = e.prompt[-1].isalpha() or e.prompt[-1] in ":,"
        assert asked or open_end, e.prompt
        forms["question" if asked else "sentence"] += 1
    assert min(forms.values()) > 30


def test_six_kinds_of_knowledge_with_thirty_items_or_more_each():
    counts = Counter(e.label for e in task("commonsense", len(LINES)))
    assert set(counts) == {"physics", "social", "causal", "place", "tool", "body"}
    assert min(counts.values()) >= 30


def test_answers_are_not_told_by_their_length():
    """Summed log-probabilities favour short answers: the right one must not be the shortest too often."""
    shortest = sum(len(e.target) < min(map(len, e.foils)) for e in task("commonsense", len(LINES)))
    longest = sum(len(e.target) > max(map(len, e.foils)) for e in task("commonsense", len(LINES)))
    assert shortest / len(LINES) < 0.35
    assert longest / len(LINES) < 0.45


def test_an_article_before_the_gap_fits_every_answer():
    """ "an" before one answer and not before the others would give it away."""
    for e in task("commonsense", len(LINES)):
        last = e.prompt.split()[-1]
        for answer in (e.target, *e.foils):
            vowel = answer.strip()[0] in "aeiou"
            if last == "an":
                assert vowel, e
            if last == "a":
                assert not vowel, e
