"""In-context repetition of made-up words, after the identity-rule patterns ABA and ABB.

"ma ko ma, ti re ti, lo su" -> " lo" (ABA) or " su" (ABB). Only the shown examples tell which rule holds, so
the counterfactual is the same final pair after examples of the other rule.
"""

from __future__ import annotations

import random

from headwise.tasks.builtin.word_lists import lists, words
from headwise.tasks.examples import Example
from headwise.tasks.registry import register

WORDS = words(lists("induction.txt")["words"])


@register(
    "induction",
    metric="logit_diff",
    about="a repetition rule shown on triples of words: which word completes the last triple?",
    pattern=("mixed", "ABA", "ABB"),
)
def induction(draw: random.Random, pattern: str = "mixed") -> Example:
    """`pattern`: repeat the first word (`ABA`), the second (`ABB`), or half of each."""
    rule = draw.choice(("ABA", "ABB")) if pattern == "mixed" else pattern
    shown = 4
    chosen = draw.sample(WORDS, 2 * shown + 2)
    pairs = list(zip(chosen[::2], chosen[1::2], strict=True))
    a, b = pairs[-1]

    def prompt(rule: str) -> str:
        triples = [f"{x} {y} {x if rule == 'ABA' else y}" for x, y in pairs[:-1]]
        return "\n".join([*triples, f"{a} {b}"])

    other = "ABB" if rule == "ABA" else "ABA"
    target, foil = (a, b) if rule == "ABA" else (b, a)
    return Example(
        prompt(rule), f" {target}", (f" {foil}",), prompt(other), label=rule, family={"pattern": rule}
    )
