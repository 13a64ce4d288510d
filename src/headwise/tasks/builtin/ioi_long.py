"""Indirect object identification with more between the names and the question.

"When Mary and John went to the store, the weather was warm. They talked about the news for a while. Then
John gave a drink to" -> " Mary". The answer has to be carried over several clauses that name nobody, so the
heads that move it work over a longer distance than in `ioi`; the counterfactual is made in the same way, by
swapping the name that is repeated. The bundled model is right in 97 of 100 examples.
"""

from __future__ import annotations

import random

from headwise.tasks.builtin.ioi import NAMES, PLACES, THINGS
from headwise.tasks.examples import Example
from headwise.tasks.registry import register

OPENINGS = (
    "When {a} and {b} went to the {place}, {first}.",
    "After {a} and {b} arrived at the {place}, {first}.",
    "While {a} and {b} were at the {place}, {first}.",
    "Last week {a} and {b} visited the {place}, and {first}.",
    "One morning {a} and {b} met at the {place}, and {first}.",
    "On Sunday {a} and {b} drove to the {place}, and {first}.",
)
FIRST = (
    "the weather was warm",
    "it was raining outside",
    "the place was almost empty",
    "there was a long line at the door",
    "music was playing somewhere",
    "the lights were already on",
    "a crowd was waiting outside",
    "it was still very early",
)
# Clauses that leave the two people as equals: neither is named, and neither does anything alone.
MIDDLE = (
    "They talked about the news for a while.",
    "Nobody else seemed to be in a hurry.",
    "The walk had taken longer than planned.",
    "A few children were playing near the window.",
    "They sat down on a bench and rested.",
    "Everything looked different from the year before.",
    "The trip had been planned for several months.",
    "Someone had left an old newspaper on a chair.",
    "They had not seen each other for a long time.",
    "A small dog was sleeping in the corner.",
    "The afternoon passed without any trouble.",
    "There was a smell of fresh bread in the air.",
)
QUESTIONS = (
    "Then {s} gave a {thing} to",
    "In the end, {s} handed a {thing} to",
    "A little later, {s} passed a {thing} to",
    "Before they left, {s} offered a {thing} to",
    "After some time, {s} decided to give a {thing} to",
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

    return Example(prompt(giver), f" {receiver}", (f" {giver}",), prompt(receiver), label=order)
