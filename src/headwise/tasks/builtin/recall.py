"""Facts a model has learned: eleven relations, from capitals to past tenses.

"The capital of France is" -> " Paris". Foils are answers to the same question about other subjects; the
counterfactual asks it about one of those, whose name is as long in tokens.

The bundled model is right in 90 of 100, where chance is one in five: in all of fifty opposites and plurals, in
three of five colors, in between for the rest.
"""

from __future__ import annotations

import random

from headwise.tasks.builtin.word_lists import lists, questions_and_facts
from headwise.tasks.examples import Example
from headwise.tasks.registry import register

N_FOILS = 4


def _relation(lines: tuple[str, ...]) -> tuple[tuple[str, ...], list[tuple[str, list[str]]]]:
    """The questions of a relation, and its facts: a subject and its right answers, the expected one first."""
    questions, facts = questions_and_facts(lines)
    split = (fact.split(": ") for fact in facts)
    return questions, [(subject, answers.split("/")) for subject, answers in split]


RELATIONS = {name: _relation(lines) for name, lines in lists("recall.txt").items()}


@register(
    "recall",
    metric="logit_diff",
    about="facts: capitals, continents, languages, currencies, opposites, young animals, colours, past tenses, …",
    relation=("mixed", *RELATIONS),
)
def recall(draw: random.Random, relation: str = "mixed") -> Example:
    """`relation`: one of them, or all in equal parts."""
    name = draw.choice(tuple(RELATIONS)) if relation == "mixed" else relation
    questions, facts = RELATIONS[name]
    (subject, right), (other, instead) = draw.sample(facts, 2)
    question = draw.choice(questions)
    answers = dict.fromkeys(answers[0] for _, answers in facts)
    wrong = [answer for answer in answers if answer not in right and answer != instead[0]]
    foils = [instead[0], *draw.sample(wrong, min(N_FOILS - 1, len(wrong)))]
    return Example(
        prompt=question.format(subject),
        target=f" {right[0]}",
        foils=tuple(f" {answer}" for answer in foils),
        counterfactual=question.format(other),
        label=name,
        also=tuple(f" {answer}" for answer in right[1:]),
        group=f"{name}: {subject}",
        family={"relation": name},
    )
