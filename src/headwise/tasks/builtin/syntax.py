"""Grammatical choices: sixteen phenomena, each a choice between two words that one earlier word decides.

    The key near the cabinets    -> " is", not " are"
    The keys near the cabinets   -> " are", not " is"

Both lines are examples, each the other's counterfactual: flipping the deciding word turns the foil into the
right answer. So the two words' own frequencies cancel over a task, and what is left is the grammar. Choices
follow the paradigms of BLiMP (Warstadt et al. 2020, arXiv 1912.00582); the sentences are our own.

The bundled model is right in 97 of 100. It makes no error in fifty of `agreement_coordination`,
`reflexive_number`, `polarity`, `participle`, `question_word` and `pronoun_case`, and most in `determiner_noun`
(84 %); none is at chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from headwise.tasks.builtin.word_lists import lists, pairs, words
from headwise.tasks.examples import Example
from headwise.tasks.registry import register

_LISTS = lists("syntax.txt")
PEOPLE, THINGS = pairs(_LISTS["people"]), pairs(_LISTS["things"])
MALE, FEMALE = pairs(_LISTS["male"]), pairs(_LISTS["female"])
MALE_FEMALE, MALE_FEMALE_NAMES = pairs(_LISTS["male_female"]), pairs(_LISTS["male_female_names"])
VERBS, AUXILIARIES = pairs(_LISTS["verbs"]), pairs(_LISTS["auxiliaries"])
IRREGULAR, FORMS = pairs(_LISTS["irregular"]), pairs(_LISTS["forms"])
REFLEXIVE_VERBS = words(_LISTS["reflexive_verbs"])
ADJECTIVES, LONG_ADJECTIVES = words(_LISTS["adjectives"]), words(_LISTS["long_adjectives"])
COUNTED, MASS = words(_LISTS["counted"]), words(_LISTS["mass"])
PLACES = words(_LISTS["places"])
PREPOSITIONS, OPENINGS = _LISTS["prepositions"], _LISTS["openings"]

_PHENOMENA: dict[str, Callable[[random.Random], Example]] = {}


def _phenomenon(draw_one: Callable[[random.Random], Example]) -> Callable[[random.Random], Example]:
    _PHENOMENA[draw_one.__name__] = draw_one
    return draw_one


def _choice(draw: random.Random, sentence: str, first: tuple[str, str], second: tuple[str, str]) -> Example:
    """A sentence with one gap for the deciding word; `first` and `second` are (deciding word, right word)."""
    (here, right), (there, wrong) = draw.sample((first, second), 2)
    return Example(sentence.format(here), f" {right}", (f" {wrong}",), sentence.format(there))


def _opened(draw: random.Random, sentence: str) -> str:
    """The sentence, in half of the cases after a few words that do not bear on it."""
    if draw.random() < 0.5:
        return sentence
    return f"{draw.choice(OPENINGS)}, {sentence[0].lower()}{sentence[1:]}"


def _person(draw: random.Random) -> str:
    return draw.choice(PEOPLE)[0]


@_phenomenon
def agreement_preposition(draw: random.Random) -> Example:
    """The key near the cabinets is / are."""
    nouns = THINGS if draw.random() < 0.5 else PEOPLE
    head, attractor = draw.sample(nouns, 2)
    verb = draw.choice(AUXILIARIES)
    sentence = f"The {{}} {draw.choice(PREPOSITIONS)} the {draw.choice(attractor)}"
    return _choice(draw, _opened(draw, sentence), (head[0], verb[0]), (head[1], verb[1]))


@_phenomenon
def agreement_relative(draw: random.Random) -> Example:
    """The boys that the teacher likes are / is."""
    head, other = draw.sample(PEOPLE, 2)
    number = draw.randrange(2)
    likes, verb = draw.choice(VERBS), draw.choice(AUXILIARIES)
    sentence = f"The {{}} that the {other[number]} {likes[number]}"
    return _choice(draw, _opened(draw, sentence), (head[0], verb[0]), (head[1], verb[1]))


@_phenomenon
def agreement_coordination(draw: random.Random) -> Example:
    """The boy and the girl are / The boy behind the girl is."""
    (one, _), (other, _) = draw.sample(PEOPLE, 2)
    singular, plural = draw.choice(AUXILIARIES)
    sentence = f"The {one} {{}} the {other}"
    between = draw.choice(("near", "behind", "beside"))
    return _choice(draw, _opened(draw, sentence), ("and", plural), (between, singular))


@_phenomenon
def reflexive_number(draw: random.Random) -> Example:
    """The boys near the teacher hurt themselves / himself."""
    nouns, alone = draw.choice(((MALE, "himself"), (FEMALE, "herself")))
    one, many = draw.choice(nouns)
    place = f" in the {draw.choice(PLACES)}" if draw.random() < 0.5 else ""
    sentence = f"The {{}}{place} {draw.choice(REFLEXIVE_VERBS)}"
    return _choice(draw, _opened(draw, sentence), (one, alone), (many, "themselves"))


@_phenomenon
def reflexive_gender(draw: random.Random) -> Example:
    """The queen described herself / himself."""
    verb = draw.choice(REFLEXIVE_VERBS)
    if draw.random() < 0.5:
        male, female = draw.choice(MALE_FEMALE)
        sentence = _opened(draw, f"The {{}} in the {draw.choice(PLACES)} {verb}")
    else:
        male, female = draw.choice(MALE_FEMALE_NAMES)
        sentence = f"{draw.choice(OPENINGS)}, {{}} {verb}"
    return _choice(draw, sentence, (male, "himself"), (female, "herself"))


@_phenomenon
def determiner_noun(draw: random.Random) -> Example:
    """The farmer bought these books / book."""
    one, many = draw.choice(THINGS)
    singular, plural = draw.choice((("this", "these"), ("that", "those")))
    adjective = f" {draw.choice(ADJECTIVES)}" if draw.random() < 0.5 else ""
    verb = draw.choice(("saw", "liked", "painted", "remembered", "described"))
    sentence = f"The {_person(draw)} {verb} {{}}{adjective}"
    return _choice(draw, _opened(draw, sentence), (singular, one), (plural, many))


# A deciding word is never the first of its prompt: the bundled model does worse there, perhaps because much
# attention goes to the first position whatever stands in it.
@_phenomenon
def tense(draw: random.Random) -> Example:
    """We heard that last week the farmer had / We heard that next week the farmer will."""
    number = draw.randrange(2)
    person = draw.choice(PEOPLE)[number]
    source = draw.choice(("We heard that", "It is clear that", "The report says that", "People say that"))
    past = draw.choice(("had", ("was", "were")[number]))  # as common as "will": full verbs are not
    if draw.random() < 0.7:
        when = draw.choice(("week", "month", "year", "summer", "winter", "Monday", "Friday", "Sunday"))
        return _choice(draw, f"{source} {{}} {when} the {person}", ("last", past), ("next", "will"))
    return _choice(draw, f"{source} {{}} the {person}", ("yesterday", past), ("tomorrow", "will"))


@_phenomenon
def polarity(draw: random.Random) -> Example:
    """The boy never said anything / The boy often said something."""
    kind = draw.randrange(3)
    if kind == 0:
        sentence = f"{draw.choice(OPENINGS)}, {{}} {_person(draw)} has"
        return _choice(draw, sentence, ("no", "ever"), (draw.choice(("every", "this")), "already"))
    verb = draw.choice(("said", "bought", "found", "wanted", "heard", "noticed"))
    never, often = draw.choice((("never", "always"), ("rarely", "often"), ("hardly", "just")))
    any_, some = ("anything", "something") if kind == 1 else ("any", "some")
    return _choice(draw, _opened(draw, f"The {_person(draw)} {{}} {verb}"), (never, any_), (often, some))


@_phenomenon
def participle(draw: random.Random) -> Example:
    """The writer has written / The writer then wrote."""
    past, perfect = draw.choice(IRREGULAR)
    auxiliary, adverb = draw.choice(("has", "had")), draw.choice(("then", "once", "soon"))
    return _choice(draw, _opened(draw, f"The {_person(draw)} {{}}"), (auxiliary, perfect), (adverb, past))


@_phenomenon
def question_word(draw: random.Random) -> Example:
    """The nurse wondered why / The nurse believed that."""
    word = draw.choice(("why", "whether", "what", "how"))
    wondered, believed = "wondered", draw.choice(("believed", "claimed", "thought", "hoped", "insisted"))
    if draw.random() < 0.4:
        wondered, believed = "was wondering", draw.choice(("was hoping", "was thinking", "was saying"))
    return _choice(draw, _opened(draw, f"The {_person(draw)} {{}}"), (wondered, word), (believed, "that"))


@_phenomenon
def filler_gap(draw: random.Random) -> Example:
    """We know what the driver found in / We know that the driver found something."""
    knower = draw.choice(("We know", "They know", "She knows", "He knows", "Everyone knows"))
    verb = draw.choice(("found", "made", "bought", "brought"))
    gap, filled = draw.choice(("in", "for")), draw.choice(("something", "a"))
    sentence = f"{knower} {{}} the {_person(draw)} {verb}"
    return _choice(draw, _opened(draw, sentence), ("what", gap), ("that", filled))


@_phenomenon
def relative_pronoun(draw: random.Random) -> Example:
    """The guest saw the doctor, who / The guest saw the chair, which."""
    subject, person = (singular for singular, _ in draw.sample(PEOPLE, 2))
    thing = draw.choice(THINGS)[0]
    verb = draw.choice(("saw", "remembered", "described", "liked", "photographed"))
    return _choice(draw, _opened(draw, f"The {subject} {verb} the {{}},"), (person, "who"), (thing, "which"))


@_phenomenon
def pronoun_case(draw: random.Random) -> Example:
    """The pilot said he / The pilot saw him."""
    subject, oblique = draw.choice((("he", "him"), ("they", "them"), ("we", "us")))
    says, sees = draw.choice(("said", "thought", "hoped")), draw.choice(("saw", "helped", "met", "followed"))
    return _choice(draw, _opened(draw, f"The {_person(draw)} {{}}"), (says, subject), (sees, oblique))


@_phenomenon
def verb_form(draw: random.Random) -> Example:
    """The girl can swim / The girl is swimming."""
    bare, going = draw.choice(FORMS)
    modal, auxiliary = draw.choice(("can", "must", "should", "will")), draw.choice(("is", "was"))
    return _choice(draw, _opened(draw, f"The {_person(draw)} {{}}"), (modal, bare), (auxiliary, going))


@_phenomenon
def comparison(draw: random.Random) -> Example:
    """The nurse is more careful than / The nurse is as careful as."""
    verb = draw.choice(("is", "was", "seems", "became"))
    sentence = f"The {_person(draw)} {verb} {{}} {draw.choice(LONG_ADJECTIVES)}"
    return _choice(draw, _opened(draw, sentence), ("more", "than"), ("as", "as"))


@_phenomenon
def countability(draw: random.Random) -> Example:
    """The farmer did not have many books / The farmer did not have much water."""
    verb = draw.choice(("have", "need", "want", "find", "get"))
    sentence = f"The {_person(draw)} did not {verb} {{}}"
    counted, mass = draw.choice(COUNTED), draw.choice(MASS)
    return _choice(draw, _opened(draw, sentence), ("many", counted), ("much", mass))


PHENOMENA = tuple(_PHENOMENA)


@register(
    "syntax",
    metric="logit_diff",
    about="sixteen grammatical choices between two words: agreement, reflexives, tense, polarity and more",
    phenomenon=("mixed", *PHENOMENA),
)
def syntax(draw: random.Random, phenomenon: str = "mixed") -> Example:
    """`phenomenon`: one of them, or all in equal parts."""
    name = draw.choice(PHENOMENA) if phenomenon == "mixed" else phenomenon
    drawn = _PHENOMENA[name](draw)
    return Example(drawn.prompt, drawn.target, drawn.foils, drawn.counterfactual, label=name)
