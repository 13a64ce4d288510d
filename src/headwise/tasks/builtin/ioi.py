"""Indirect object identification (Wang et al. 2022, arXiv 2211.00593).

"When Mary and John went to the store, John gave a drink to" -> " Mary". The counterfactual swaps which
name is repeated, so the same sentence now asks for the other name.
"""

from __future__ import annotations

import random

from headwise.tasks.examples import Example
from headwise.tasks.registry import register

NAMES = (
    "Mary John Tom James Anna Paul Sarah Mark Emma David Laura Peter Alice Jack Kate Simon Lucy Adam Grace "
    "Henry Julia Ryan Rachel Kevin Linda Scott Susan Brian Karen Steven Amy Daniel Jane Michael Lisa Robert"
).split()
PLACES = "store park school office garden beach library museum station restaurant hospital market".split()
THINGS = "drink book ring letter ball key ticket flower map snack phone camera".split()
OPENINGS = (
    "When {a} and {b} went to the {place}, {s} gave a {thing} to",
    "After {a} and {b} left the {place}, {s} handed a {thing} to",
    "While {a} and {b} were at the {place}, {s} passed a {thing} to",
    "Then {a} and {b} walked to the {place}, and {s} offered a {thing} to",
    "Yesterday {a} and {b} met at the {place}, and {s} sent a {thing} to",
    "Once {a} and {b} got to the {place}, {s} decided to give a {thing} to",
)


@register(
    "ioi",
    metric="logit_diff",
    about="two names, one is repeated: which one receives the thing?",
    pattern=("mixed", "ABB", "BAB"),
)
def ioi(draw: random.Random, pattern: str = "mixed") -> Example:
    """`pattern`: the receiver A and the giver B in order of mention (`ABB`: A first), or both kinds."""
    receiver, giver = draw.sample(NAMES, 2)
    first = draw.choice(("ABB", "BAB")) if pattern == "mixed" else pattern
    a, b = (receiver, giver) if first == "ABB" else (giver, receiver)
    template = draw.choice(OPENINGS)
    scene = {"a": a, "b": b, "place": draw.choice(PLACES), "thing": draw.choice(THINGS)}
    return Example(
        prompt=template.format(s=giver, **scene),
        target=f" {receiver}",
        foils=(f" {giver}",),
        counterfactual=template.format(s=receiver, **scene),
        label=first,
    )
