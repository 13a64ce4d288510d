"""In-context repetition of made-up words, after the identity-rule patterns ABA and ABB.

"ma ko ma, ti re ti, lo su" -> " lo" (ABA) or " su" (ABB). Only the shown examples tell which rule holds, so
the counterfactual is the same final pair after examples of the other rule.

`induction_rewrite` asks the same in other words ("From horse and cup we get horse") with words of its own.
`induction_negative` has the triples without a rule: the third word is a new one, so nothing says which word of the
last pair is repeated. The bundled model is right in 80 of 100 rewrites
(mean logit difference 2.60), and in 51 of 100 negatives (−.13), where chance is 50.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from headwise.tasks.builtin.word_lists import Lists, lists, words
from headwise.tasks.examples import Example
from headwise.tasks.registry import register_variants

PLAIN, REWRITE = lists("induction.txt"), lists("induction_rewrite.txt")
WORDS = words(PLAIN["words"])
TEMPLATES = ("{x} {y} {z}",)
SHOWN = 4


@register_variants(
    "logit_diff",
    {
        "induction": (
            "a repetition rule shown on triples of words: which word completes the last triple?",
            {},
        ),
        "induction_rewrite": (
            "induction in other words: pairs and what we get from them",
            {"texts": REWRITE},
        ),
        "induction_negative": (
            "the triples of induction without a rule: no word is repeated",
            {"negative": True},
        ),
    },
    pattern=("mixed", "ABA", "ABB"),
)
def induction(
    draw: random.Random, pattern: str = "mixed", texts: Lists = PLAIN, negative: bool = False
) -> Example:
    """`pattern`: repeat the first word (`ABA`), the second (`ABB`), or half of each."""
    rule = draw.choice(("ABA", "ABB")) if pattern == "mixed" else pattern
    chosen = draw.sample(words(texts["words"]), (4 if negative else 2) * SHOWN + 2)
    pairs = list(zip(chosen[: 2 * SHOWN + 2 : 2], chosen[1 : 2 * SHOWN + 2 : 2], strict=True))
    others = chosen[2 * SHOWN + 2 :]
    templates = texts.get("templates", TEMPLATES)
    template = draw.choice(templates) if len(templates) > 1 else templates[0]
    a, b = pairs[-1]

    def prompt(third: Sequence[str]) -> str:
        """With these words as the third of each triple."""
        lines = [template.format(x=x, y=y, z=z) for (x, y), z in zip(pairs, [*third, ""], strict=True)]
        return "\n".join(lines).rstrip()

    results = {"ABA": [x for x, _ in pairs[:-1]], "ABB": [y for _, y in pairs[:-1]]}
    third, instead = results[rule], results["ABB" if rule == "ABA" else "ABA"]
    if negative:
        third, instead = others[:SHOWN], others[SHOWN:]
    target, foil = (a, b) if rule == "ABA" else (b, a)
    family = {"pattern": rule}
    if len(templates) > 1:
        family["template"] = f"rewrite {templates.index(template) + 1}"
    return Example(prompt(third), f" {target}", (f" {foil}",), prompt(instead), label=rule, family=family)
