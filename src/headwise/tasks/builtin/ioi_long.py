"""Indirect object identification with more between the names and the question.

"When Mary and John went to the store, the weather was warm. They talked about the news for a while. Then
John gave a drink to" -> " Mary". The answer has to be carried over several clauses that name nobody, so the
heads that move it work over a longer distance than in `ioi`; the counterfactual is made in the same way, by
swapping the name that is repeated. The bundled model is right in 97 of 100 examples.
"""

from __future__ import annotations

import random

from headwise.tasks.builtin.ioi import NAMES, PLACES, THINGS, name_spans
from headwise.tasks.builtin.word_lists import lists
from headwise.tasks.examples import Example
from headwise.tasks.registry import register

OPENINGS, FIRST, MIDDLE, QUESTIONS = (
    lists("ioi_long.txt")[name] for name in ("openings", "first", "middle", "questions")
)


@register(
    "ioi_long",
    metric="logit_diff",
    about="ioi with two or three more sentences between the names and the question",
    pattern=("mixed", "ABB", "BAB"),
)
def ioi_long(draw: random.Random, pattern: str = "mixed") -> Example:
    """`pattern`: the receiver A and the giver B in order of mention (`ABB`: A first), or both kinds."""
    receiver, giver = draw.sample(NAMES, 2)
    order = draw.choice(("ABB", "BAB")) if pattern == "mixed" else pattern
    a, b = (receiver, giver) if order == "ABB" else (giver, receiver)
    opening = draw.choice(OPENINGS).format(a=a, b=b, place=draw.choice(PLACES), first=draw.choice(FIRST))
    middle = draw.sample(MIDDLE, draw.choice((2, 3)))
    question = draw.choice(QUESTIONS)
    thing = draw.choice(THINGS)

    def prompt(subject: str) -> str:
        return " ".join([opening, *middle, question.format(s=subject, thing=thing)])

    spans = name_spans(prompt(giver), receiver, giver)
    return Example(prompt(giver), f" {receiver}", (f" {giver}",), prompt(receiver), label=order, spans=spans)
