"""Everyday knowledge: what breaks, what one says, why it happened, where things are, what they are for.

"If you drop a glass on a stone floor, it will probably" -> " break". Some examples are sentences to finish and
some are questions; answers are a few words long, with three wrong ones that are as easy to say.

One candidate in four is an item written by hand, while there are any left. The others put a fact of one of 36
relations ("a bakery: fresh bread") into one of the wordings of its relation, and take the wrong answers from the
right ones of its other facts, as often as they are right. So there are some 9,000 distinct examples, of some 2,100
facts: in a large task one fact is asked in several wordings, all of them in the same half.

The bundled model prefers the right answer in 79 of 100 (of 400 drawn): in 82 of the items written by hand, in 78 of
the others.

`commonsense_negative` has the wordings with a blank in the place of the subject ("If you want to buy ____, you go to").
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from headwise.tasks.builtin.word_lists import lists, questions_and_facts, two_blanks
from headwise.tasks.examples import Example
from headwise.tasks.registry import register_variants

N_FOILS = 3
ITEM_SHARE = 0.25
"""How often a candidate is an item written by hand."""


@dataclass(frozen=True)
class Fact:
    """One thing that everybody knows."""

    subject: str
    answer: str
    also: tuple[str, ...]
    """Answers of other facts that would do for this one too."""


@dataclass(frozen=True)
class Relation:
    """Facts of one kind. Every answer can be said after every wording, whatever the subject."""

    label: str
    wordings: tuple[str, ...]
    """With {} for the subject; what ends with a question mark is a question, the others are sentences to finish."""
    facts: tuple[Fact, ...]


def _relation(title: str, lines: tuple[str, ...]) -> tuple[str, Relation]:
    name, label = title.split(": ")
    wordings, rows = questions_and_facts(lines)
    facts = []
    for row in rows:
        answers, subjects = row.split(": ", 1)
        answer, *also = answers.split(" ~ ")
        facts += [Fact(subject.strip(), answer, tuple(also)) for subject in subjects.split(";")]
    return name, Relation(label, wordings, tuple(facts))


RELATIONS = dict(_relation(title, lines) for title, lines in lists("commonsense_relations.txt").items())


def _prompt(text: str) -> str:
    return f"Question: {text}\nAnswer:" if text.endswith("?") else text


def _family(label: str, text: str) -> dict[str, str]:
    return {"topic": label, "form": "question" if text.endswith("?") else "sentence"}


def _item(line: str, label: str) -> Example:
    text, right, *wrong = (part.strip() for part in line.split("|"))
    foils = tuple(f" {answer}" for answer in wrong)
    return Example(_prompt(text), f" {right}", foils, label=label, family=_family(label, text))


def _asked(relation: Relation, fact: Fact, wording: str, draw: random.Random, negative: bool) -> Example:
    # Wrong answers are drawn by way of their facts: an answer that is seldom right is as seldom wrong, so that
    # what is likely to be said whatever is asked does not give the right one away.
    wrong: list[str] = []
    while len(wrong) < N_FOILS:
        answer = draw.choice(relation.facts).answer
        if answer not in (fact.answer, *fact.also, *wrong):
            wrong.append(answer)
    subject = two_blanks(draw)[0] if negative else fact.subject
    return Example(
        prompt=_prompt(wording.format(subject)),
        target=f" {fact.answer}",
        foils=tuple(f" {answer}" for answer in wrong),
        label=relation.label,
        group=f"{relation.wordings[0].format(fact.subject)} {fact.answer}",
        family=_family(relation.label, wording),
    )


EXAMPLES = [_item(line, label) for label, lines in lists("commonsense_items.txt").items() for line in lines]
ASKED = [(r, fact, wording) for r in RELATIONS.values() for fact in r.facts for wording in r.wordings]


@register_variants(
    "logprob",
    {
        "commonsense": (
            "everyday knowledge of things, people, causes, places, tools, animals, …, answered in a few words",
            {},
        ),
        "commonsense_negative": (
            "the questions of commonsense with a blank in the place of their subject",
            {"negative": True},
        ),
    },
)
def commonsense(draw: random.Random, negative: bool = False) -> Example:
    if not negative and draw.random() < ITEM_SHARE:
        return draw.choice(EXAMPLES)
    return _asked(*draw.choice(ASKED), draw, negative)
