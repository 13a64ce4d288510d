"""Indirect object identification (Wang et al. 2022, arXiv 2211.00593).

"When Mary and John went to the store, John gave a drink to" -> " Mary". The counterfactual swaps which
name is repeated, so the same sentence now asks for the other name.
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
