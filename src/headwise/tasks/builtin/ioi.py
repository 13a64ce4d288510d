"""Indirect object identification (Wang et al. 2022, arXiv 2211.00593).

"When Mary and John went to the store, John gave a drink to" -> " Mary". The counterfactual swaps which
name is repeated, so the same sentence now asks for the other name.

The task `ioi_long` has more between the names and the question:

"When Mary and John went to the store, the weather was warm. They talked about the news for a while. Then
John gave a drink to" -> " Mary". The answer has to be carried over several clauses that name nobody, so the
heads that move it work over a longer distance than in `ioi`; the counterfactual is made in the same way, by
swapping the name that is repeated. The bundled model is right in 97 of 100 examples.
"""

from __future__ import annotations

import random
import re

from headwise.tasks.builtin.word_lists import lists, words
from headwise.tasks.examples import Example
from headwise.tasks.registry import register

NAMES, PLACES, THINGS = (words(lists("ioi.txt")[name]) for name in ("names", "places", "things"))
OPENINGS = lists("ioi.txt")["openings"]


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
    prompt = template.format(s=giver, **scene)
    return Example(
        prompt=prompt,
        target=f" {receiver}",
        foils=(f" {giver}",),
        counterfactual=template.format(s=receiver, **scene),
        label=first,
        spans=name_spans(prompt, receiver, giver),
    )


def name_spans(prompt: str, receiver: str, giver: str) -> dict[str, tuple[int, int]]:
    """Where the names stand: IO (the receiver), S1 and S2 (the giver, first and again), and the last word (end)."""
    found = {
        name: [match.span() for match in re.finditer(rf"\b{name}\b", prompt)] for name in (receiver, giver)
    }
    end = prompt.rindex(" ") + 1, len(prompt)
    return {"IO": found[receiver][0], "S1": found[giver][0], "S2": found[giver][-1], "end": end}


# ---- ioi_long ----------------------------------------------------------------------------------------

LONG_OPENINGS, FIRST, MIDDLE, QUESTIONS = (
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
    opening = draw.choice(LONG_OPENINGS).format(a=a, b=b, place=draw.choice(PLACES), first=draw.choice(FIRST))
    middle = draw.sample(MIDDLE, draw.choice((2, 3)))
    question = draw.choice(QUESTIONS)
    thing = draw.choice(THINGS)

    def prompt(subject: str) -> str:
        return " ".join([opening, *middle, question.format(s=subject, thing=thing)])

    spans = name_spans(prompt(giver), receiver, giver)
    return Example(prompt(giver), f" {receiver}", (f" {giver}",), prompt(receiver), label=order, spans=spans)
