"""Recall: what can be checked of facts without the task's own table."""

import re
from collections import Counter, defaultdict

import pytest

from headwise.tasks import families, task

RELATIONS = families()["recall"].options["relation"][1:]

# Known to the writer of the test, a few of each relation.
KNOWN = {
    "capital": {"Japan": "Tokyo", "Peru": "Lima", "Norway": "Oslo", "Kenya": "Nairobi", "Canada": "Ottawa"},
    "continent": {"Japan": "Asia", "Peru": "South America", "Norway": "Europe", "Kenya": "Africa"},
    "language": {"Brazil": "Portuguese", "Austria": "German", "Egypt": "Arabic", "Mexico": "Spanish"},
    "currency": {"Japan": "yen", "Thailand": "baht", "Poland": "zloty", "Ireland": "euro"},
    "opposite": {"hot": "cold", "empty": "full", "guilty": "innocent", "wide": "narrow"},
    "young": {"goose": "gosling", "kangaroo": "joey", "whale": "calf", "lion": "cub"},
    "color": {"grass": "green", "a crow": "black", "a ruby": "red", "a flamingo": "pink"},
    "past": {"go": "went", "teach": "taught", "swim": "swam", "cook": "cooked"},
    "plural": {"tooth": "teeth", "wolf": "wolves", "hero": "heroes", "city": "cities"},
    "next": {"March": "April", "Sunday": "Monday", "eleven": "twelve", "summer": "autumn"},
    "symbol": {"gold": "Au", "potassium": "K", "tin": "Sn", "iron": "Fe"},
}


def test_there_is_something_known_of_every_relation():
    assert set(KNOWN) == set(RELATIONS)


@pytest.mark.parametrize("relation", RELATIONS)
def test_known_facts_are_told_right_and_never_given_as_foils(relation):
    met = Counter()
    for e in (e for seed in range(4) for e in task("recall", 90, seed=seed, relation=relation)):
        for subject, answer in KNOWN[relation].items():
            if re.search(rf"\b{subject}\b", e.prompt):
                met[subject] += 1
                assert e.target == f" {answer}"
                assert f" {answer}" not in e.foils
            if re.search(rf"\b{subject}\b", e.counterfactual):
                assert f" {answer}" in e.foils
    assert set(met) == set(KNOWN[relation])


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_answer_to_the_counterfactual_is_a_foil(relation):
    many = task("recall", 90, relation=relation).examples
    answers = {e.prompt: e.target for e in many}
    met = [e for e in many if e.counterfactual in answers]
    assert len(met) > 20
    for e in met:
        assert answers[e.counterfactual] in e.foils


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_question_has_one_answer_however_it_is_put(relation):
    by_words = defaultdict(set)
    for e in task("recall", 90, relation=relation):
        by_words[e.prompt].add(e.target)
    assert all(len(answers) == 1 for answers in by_words.values())


def test_subjects_never_stand_first():
    for e in task("recall", 400):
        assert e.prompt.split()[0] == e.counterfactual.split()[0]
