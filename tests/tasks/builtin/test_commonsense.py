"""Commonsense: the items as they are written, the tables of facts, and what is drawn from both."""

import re
from collections import Counter

import pytest

from headwise.errors import HeadwiseError
from headwise.tasks import task
from headwise.tasks.builtin.commonsense import EXAMPLES, RELATIONS
from headwise.tasks.builtin.word_lists import lists

LINES = [line for lines in lists("commonsense_items.txt").values() for line in lines]
MANY = 4000
SUBJECTS = {name: {f.subject: f for f in relation.facts} for name, relation in RELATIONS.items()}

# Known to the writer of the test: what is not wrong for these subjects, whatever the tables say.
NEVER_WRONG = {
    ("shop", "a goldfish"): {"a pet store", "a fish market"},
    ("tool", "open a can of beans"): {"a can opener", "a knife"},
    ("pastime", "ice hockey"): {"a hockey stick", "a pair of skates"},
    ("container", "a gold necklace"): {"a jewelry box", "an envelope", "a suitcase"},
    ("young", "dolphin"): {"a calf", "a pup"},
    ("sound", "a raven"): {"a caw", "a croak"},
    ("daytime", "the sun sets"): {"in the evening", "at night"},
    ("ingredient", "french fries"): {"potatoes"},
    ("kind", "gold"): {"a metal", "a color"},
    ("material", "a knitted scarf"): {"wool", "cotton"},
    ("opposite", "hard"): {"soft", "easy"},
}


@pytest.fixture(scope="module")
def many():
    return task("commonsense", MANY)


def told(prompt: str) -> list[tuple[str, str]]:
    """The relations and subjects that a prompt can have been made from."""
    text = prompt.removeprefix("Question: ").removesuffix("\nAnswer:")
    found = []
    for name, relation in RELATIONS.items():
        for before, after in (wording.split("{}") for wording in relation.wordings):
            if text.startswith(before) and text.endswith(after):
                found.append((name, text[len(before) : len(text) - len(after)]))
    return [(name, subject) for name, subject in found if subject in SUBJECTS[name]]


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


@pytest.mark.parametrize("name", RELATIONS)
def test_a_table_tells_each_subject_once_and_leaves_three_wrong_answers(name):
    facts = RELATIONS[name].facts
    answers = {fact.answer for fact in facts}
    assert max(Counter(fact.subject for fact in facts).values()) == 1
    for fact in facts:
        assert set(fact.also) <= answers - {fact.answer}, fact
        assert len(set(fact.also)) == len(fact.also), fact
        assert len(answers - {fact.answer, *fact.also}) >= 3, fact


@pytest.mark.parametrize("name", RELATIONS)
def test_a_relation_asks_and_leaves_open_in_three_to_six_wordings(name):
    wordings = RELATIONS[name].wordings
    assert 3 <= len(set(wordings)) == len(wordings) <= 6
    assert 1 <= sum(wording.endswith("?") for wording in wordings) < len(wordings)
    for wording in wordings:
        assert wording.count("{}") == 1
        assert not wording.startswith("{}")  # the subject's first letter stays as it is written


@pytest.mark.parametrize("name", RELATIONS)
def test_articles_fit_the_words_they_stand_before(name):
    """In every wording with every subject, and in every answer: "an hour", "a university", "a pair of jeans"."""
    sounds = {"hour": True, "university": False}
    relation = RELATIONS[name]
    texts = [w.format(f.subject) for w in relation.wordings for f in relation.facts]
    for text in {*texts, *(f.answer for f in relation.facts)}:
        for article, word in re.findall(r"\b([Aa]n?) ([A-Za-z]+)", text):
            vowel = sounds.get(word.lower(), word[0] in "aeiouAEIOU")
            assert (article.lower() == "an") == vowel, text
        assert not re.search(r"\b(a|an|the) (a|an|the)\b", text), text
        assert "  " not in text, text


def test_there_are_two_thousand_facts_and_thirty_relations():
    assert sum(len(relation.facts) for relation in RELATIONS.values()) > 2000
    assert len(RELATIONS) > 30


def test_a_large_task_has_distinct_prompts_and_every_item_written_by_hand(many):
    assert len({e.prompt for e in many}) == MANY
    assert set(EXAMPLES) <= set(many)
    assert len(EXAMPLES) == len(LINES)


@pytest.mark.parametrize("n", [24, 128, 200])
def test_a_small_task_has_items_written_by_hand_and_facts_of_tables(n):
    by_hand = sum(e in set(EXAMPLES) for e in task("commonsense", n))
    assert 0.1 < by_hand / n < 0.4


def test_asking_for_too_many_says_how_many_there_are():
    tables = sum(len(relation.facts) * len(relation.wordings) for relation in RELATIONS.values())
    with pytest.raises(HeadwiseError, match=r"ask for at most \d+") as error:
        task("commonsense", 20_000)
    assert int(str(error.value).split()[-1]) == pytest.approx(len(LINES) + tables, rel=0.002)


def test_no_foil_is_right_for_the_fact_that_is_asked(many):
    """From the prompt back to the table: which fact is it about, and what is right for it?"""
    by_hand, met = set(EXAMPLES), Counter()
    for e in many:
        if e in by_hand:
            continue
        [(name, subject)] = told(e.prompt)
        fact, foils = SUBJECTS[name][subject], {foil.strip() for foil in e.foils}
        met[name] += 1
        assert (e.target, e.label) == (f" {fact.answer}", RELATIONS[name].label)
        assert len(foils) == 3
        assert not foils & {fact.answer, *fact.also}, e
        assert foils <= {other.answer for other in RELATIONS[name].facts}, e
    assert set(met) == set(RELATIONS)


def test_what_is_known_to_be_right_is_never_given_as_a_foil():
    met = set()
    for e in (e for seed in range(3) for e in task("commonsense", MANY, seed=seed)):
        for key in told(e.prompt):
            if key in NEVER_WRONG:
                met.add(key)
                assert e.target.strip() in NEVER_WRONG[key]
                assert not {foil.strip() for foil in e.foils} & NEVER_WRONG[key], e
    assert met == set(NEVER_WRONG)


def test_questions_are_asked_and_sentences_are_left_open(many):
    forms = Counter()
    for e in many:
        asked = e.prompt.startswith("Question: ") and e.prompt.endswith("?\nAnswer:")
        open_end = e.prompt[-1].isalpha() or e.prompt[-1] in ":,"
        assert asked or open_end, e.prompt
        forms["question" if asked else "sentence"] += 1
    assert min(forms.values()) > MANY / 6


def test_six_kinds_of_knowledge_with_thirty_items_or_more_each():
    counts = Counter(e.label for e in EXAMPLES)
    assert set(counts) == {"physics", "social", "causal", "place", "tool", "body"}
    assert min(counts.values()) >= 30


def test_the_tables_add_five_kinds_and_no_kind_is_rare(many):
    counts = Counter(e.label for e in many)
    assert set(counts) == {e.label for e in EXAMPLES} | {"animal", "food", "thing", "time", "word"}
    assert min(counts.values()) > MANY / 40


def test_answers_are_not_told_by_their_length(many):
    """Summed log-probabilities favour short answers: the right one must not be the shortest too often."""
    for examples in (EXAMPLES, [e for e in many if e not in set(EXAMPLES)]):
        shortest = sum(len(e.target) < min(map(len, e.foils)) for e in examples)
        longest = sum(len(e.target) > max(map(len, e.foils)) for e in examples)
        assert shortest / len(examples) < 0.35
        assert longest / len(examples) < 0.45


def test_answers_are_not_told_by_how_often_they_are_right(many):
    """Who takes the answer with the most facts is right in a quarter; were foils drawn evenly, in 35 of 100."""
    often = {name: Counter(fact.answer for fact in r.facts) for name, r in RELATIONS.items()}
    shares = []
    for e in many:
        for name, _ in told(e.prompt):
            counts = [often[name][answer.strip()] for answer in (e.target, *e.foils)]
            shares.append((counts[0] == max(counts)) / counts.count(max(counts)))
    assert len(shares) > MANY / 2
    assert sum(shares) / len(shares) < 0.3


def test_an_article_before_the_gap_fits_every_answer(many):
    """ "an" before one answer and not before the others would give it away."""
    for e in many:
        last = e.prompt.split()[-1]
        for answer in (e.target, *e.foils):
            vowel = answer.strip()[0] in "aeiou"
            if last == "an":
                assert vowel, e
            if last == "a":
                assert not vowel, e
