"""Facts a model has learned: eleven relations, from capitals to past tenses.

"The capital of France is" -> " Paris". Foils are answers to the same question about other subjects; the
counterfactual asks it about one of those, whose name is as long in tokens.

The bundled model is right in 90 of 100, where chance is one in five: in all of fifty opposites and plurals, in
three of five colors, in between for the rest.

`recall_rewrite` asks for the same facts in other words, in part as questions with an answer. `recall_negative` has the
questions with a blank in the place of the subject ("The capital of ____ is"), so nothing says which answer is right.
The bundled model is right in 78 of 100 rewrites (mean logit difference 4.62), and in 22 of 100 negatives (.33), where
chance is 20.
"""

from __future__ import annotations

import random

from headwise.tasks.builtin.word_lists import Lists, lists, questions_and_facts, two_blanks
from headwise.tasks.examples import Example
from headwise.tasks.registry import register_variants

N_FOILS = 4


def _relation(lines: tuple[str, ...]) -> tuple[tuple[str, ...], list[tuple[str, list[str]]]]:
    """The questions of a relation, and its facts: a subject and its right answers, the expected one first."""
    questions, facts = questions_and_facts(lines)
    split = (fact.split(": ") for fact in facts)
    return questions, [(subject, answers.split("/")) for subject, answers in split]


RELATIONS = {name: _relation(lines) for name, lines in lists("recall.txt").items()}


@register_variants(
    "logit_diff",
    {
        "recall": (
            "facts: capitals, continents, languages, currencies, opposites, young animals, colours, past tenses, …",
            {},
        ),
        "recall_rewrite": (
            "the facts of recall, asked in other words",
            {"rewritten": lists("recall_rewrite.txt")},
        ),
        "recall_negative": (
            "the questions of recall with a blank in the place of their subject",
            {"negative": True},
        ),
    },
    relation=("mixed", *RELATIONS),
)
def recall(
    draw: random.Random, relation: str = "mixed", rewritten: Lists | None = None, negative: bool = False
) -> Example:
    """`relation`: one of them, or all in equal parts."""
    name = draw.choice(tuple(RELATIONS)) if relation == "mixed" else relation
    questions, facts = RELATIONS[name]
    (subject, right), (other, instead) = draw.sample(facts, 2)
    question = draw.choice(rewritten[name] if rewritten else questions)
    answers = dict.fromkeys(answers[0] for _, answers in facts)
    wrong = [answer for answer in answers if answer not in right and answer != instead[0]]
    foils = [instead[0], *draw.sample(wrong, min(N_FOILS - 1, len(wrong)))]
    blank_or_subject, asked_instead = two_blanks(draw) if negative else (subject, other)
    return Example(
        prompt=question.format(blank_or_subject),
        target=f" {right[0]}",
        foils=tuple(f" {answer}" for answer in foils),
        counterfactual=question.format(asked_instead),
        label=name,
        also=tuple(f" {answer}" for answer in right[1:]),
        group=f"{name}: {subject}",
        family={"relation": name},
    )
