"""Syntax: right and wrong told by rules written here, without the task's own tables."""

import re

import pytest

from headwise.tasks import families, task

PHENOMENA = families()["syntax"].options["phenomenon"][1:]
IRREGULAR = {"men", "women", "children"}


def plural(noun: str) -> bool:
    return noun in IRREGULAR or (noun.endswith("s") and noun not in {"princess", "actress"})


def nouns(prompt: str) -> list[str]:
    """What stands after "the", openings such as "in the evening," left out."""
    openings = "evening end day report first chapter"
    return [word for word in re.findall(r"[Tt]he (\w+)", prompt) if word not in openings.split()]


def drawn(phenomenon, n=120):
    return task("syntax", n, phenomenon=phenomenon)


def test_there_are_at_least_eight_phenomena_and_a_thousand_examples():
    assert len(PHENOMENA) >= 8
    assert len({e.prompt for e in task("syntax", 3000)}) > 1000


@pytest.mark.parametrize("phenomenon", PHENOMENA)
def test_the_counterfactual_is_an_example_whose_answer_is_the_foil(phenomenon):
    # Both sides of a pair are drawn: where the counterfactual's prompt turns up, its target is this foil.
    many = drawn(phenomenon, 1000)
    answers = {}
    for e in many:
        answers.setdefault(e.prompt, set()).add(e.target)
    met = [e for e in many if e.counterfactual in answers]
    assert len(met) > 5
    for e in met:
        assert e.target not in answers[e.counterfactual]
    assert any(e.foils[0] in answers[e.counterfactual] for e in met)


@pytest.mark.parametrize("phenomenon", PHENOMENA)
def test_one_word_and_its_foil_and_one_deciding_place(phenomenon):
    for e in drawn(phenomenon):
        (foil,) = e.foils
        assert len(e.target.split()) == len(foil.split()) == 1
        differing = [
            (a, b) for a, b in zip(e.prompt.split(), e.counterfactual.split(), strict=True) if a != b
        ]
        assert len(differing) == 1
        assert e.prompt.split()[0] == e.counterfactual.split()[0]


@pytest.mark.parametrize("phenomenon", PHENOMENA)
def test_both_answers_are_right_about_equally_often(phenomenon):
    examples = drawn(phenomenon, 400).examples
    pairs = [tuple(sorted((e.target, e.foils[0]))) for e in examples]
    first = sum(e.target == low for e, (low, _) in zip(examples, pairs, strict=True))
    assert 0.4 < first / len(examples) < 0.6


@pytest.mark.parametrize("phenomenon", ["agreement_preposition", "agreement_relative"])
def test_the_verb_agrees_with_the_first_noun(phenomenon):
    singular = {"is", "was", "has"}
    attracted = 0
    for e in drawn(phenomenon):
        head, attractor = nouns(e.prompt)[:2]
        assert (e.target.strip() in singular) != plural(head)
        attracted += plural(attractor) != plural(head)
    assert attracted > 30  # many have a noun of the other number in between


def test_in_a_relative_clause_the_inner_verb_agrees_with_the_inner_noun():
    for e in drawn("agreement_relative"):
        inner, verb = e.prompt.split()[-2:]
        assert verb.endswith("s") != plural(inner)


def test_two_people_joined_by_and_are_plural():
    for e in drawn("agreement_coordination"):
        assert (e.target.strip() in {"are", "were", "have"}) == (" and " in e.prompt)


def test_a_reflexive_has_the_number_of_its_subject():
    for e in drawn("reflexive_number"):
        assert (e.target == " themselves") == plural(nouns(e.prompt)[0])


def test_a_reflexive_has_the_gender_of_its_subject():
    female = set("girl woman queen sister mother aunt daughter wife princess grandmother".split())
    female |= set("Mary Anna Susan Sarah Emma Laura Alice".split())
    for e in drawn("reflexive_gender"):
        words = set(re.findall(r"\w+", e.prompt))
        assert (e.target == " herself") == bool(words & female)


def test_a_noun_has_the_number_of_its_determiner():
    for e in drawn("determiner_noun"):
        assert plural(e.target.strip()) == bool(re.search(r" (these|those)\b", e.prompt))


def test_the_time_decides_the_tense():
    for e in drawn("tense"):
        assert (e.target == " will") == bool(re.search(r"\b(next|tomorrow)\b", e.prompt))
        if e.target in (" was", " were"):
            assert (e.target == " were") == plural(e.prompt.split()[-1])


def test_negative_polarity_items_need_a_negative_word():
    negative = re.compile(r"\b(no|never|rarely|hardly)\b")
    for e in drawn("polarity"):
        assert (e.target.strip() in {"ever", "any", "anything"}) == bool(negative.search(e.prompt))


def test_an_auxiliary_takes_the_participle():
    for e in drawn("participle"):
        ends_so = e.target.endswith(("n", "ne", "unk"))
        participle = ends_so and e.target != " began"
        assert participle == (e.prompt.split()[-1] in {"has", "had"})


def test_wondering_takes_a_question_word_and_believing_does_not():
    for e in drawn("question_word"):
        assert (e.target == " that") == ("wonder" not in e.prompt)


def test_a_question_word_leaves_a_gap():
    for e in drawn("filler_gap"):
        assert (e.target in (" in", " for")) == (" what " in e.prompt)


def test_people_are_who_and_things_are_which():
    things = "key book table picture letter door car house road box lamp bridge garden river tree chair window ship"
    for e in drawn("relative_pronoun"):
        last = e.prompt.rstrip(",").split()[-1]
        assert (e.target == " which") == (last in f"{things} train shop wall school".split())


def test_an_object_has_the_object_case():
    for e in drawn("pronoun_case"):
        told = e.prompt.split()[-1] in {"said", "thought", "hoped"}
        assert (e.target in (" he", " they", " we")) == told


def test_a_modal_takes_the_bare_verb():
    for e in drawn("verb_form"):
        going = e.target.endswith("ing") and e.target != " sing"
        assert going == (e.prompt.split()[-1] in {"is", "was"})


def test_more_goes_with_than_and_as_with_as():
    for e in drawn("comparison"):
        assert e.target == {"more": " than", "as": " as"}[e.prompt.split()[-2]]


def test_many_goes_with_plurals():
    for e in drawn("countability"):
        assert plural(e.target.strip()) == (e.prompt.split()[-1] == "many")
