"""Indirect object identification (Wang et al. 2022, arXiv 2211.00593).

"When Mary and John went to the store, John gave a drink to" -> " Mary". The counterfactual swaps which
name is repeated, so the same sentence now asks for the other name.

The task `ioi_long` has more between the names and the question:

"When Mary and John went to the store, the weather was warm. They talked about the news for a while. Then
John gave a drink to" -> " Mary". The answer has to be carried over several clauses that name nobody, so the
heads that move it work over a longer distance than in `ioi`; the counterfactual is made in the same way, by
swapping the name that is repeated. The bundled model is right in 97 of 100 examples.

`ioi_rewrite` and `ioi_long_rewrite` ask the same in other words: sentences, names, places and things of their own.
`ioi_negative` and `ioi_long_negative` have the sentences without the behaviour: a third person gives, so no name is
repeated and nothing says which of the two is right; the counterfactual names a fourth. The bundled
model is right in 97 and 85 of 100 rewrites (mean logit difference 3.51 and 2.63), and picks the target in 55 and 53 of
100 negatives (.22 and .19), where chance is 50.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial

from headwise.tasks.builtin.word_lists import Lists, lists, words
from headwise.tasks.examples import Example
from headwise.tasks.registry import register_variants

Scene = tuple[Callable[..., str], dict[str, str]]
"""The prompt, where the people {a}, {b} and {s} are still open, and its families."""

SHORT, SHORT_REWRITE = lists("ioi.txt"), lists("ioi_rewrite.txt")
LONG = {**SHORT, **lists("ioi_long.txt")}
LONG_REWRITE = {**SHORT_REWRITE, **lists("ioi_long_rewrite.txt")}
NAMES = words(SHORT["names"])


def _short(draw: random.Random, texts: Lists, kind: str) -> Scene:
    template = draw.choice(texts["openings"])
    place, thing = draw.choice(words(texts["places"])), draw.choice(words(texts["things"]))
    family = {"template": f"{kind}{texts['openings'].index(template) + 1}", "length": "short"}
    return partial(template.format, place=place, thing=thing), family


def _long(draw: random.Random, texts: Lists, kind: str) -> Scene:
    opening = draw.choice(texts["openings"])
    place, first = draw.choice(words(texts["places"])), draw.choice(texts["first"])
    middle = draw.sample(texts["middle"], draw.choice((2, 3)))
    question, thing = draw.choice(texts["questions"]), draw.choice(words(texts["things"]))
    family = {"template": f"{kind}{texts['openings'].index(opening) + 1}", "length": "long"}
    text = " ".join([opening, *middle, question])
    return partial(text.format, place=place, first=first, thing=thing), family


_OWN_WORDS = "in other words: sentences, names, places and things of its own"
LONG_SCENE = {"scene": _long, "texts": LONG, "kind": "long "}


@register_variants(
    "logit_diff",
    {
        "ioi": ("two names, one is repeated: which one receives the thing?", {}),
        "ioi_rewrite": (f"ioi {_OWN_WORDS}", {"texts": SHORT_REWRITE, "kind": "rewrite "}),
        "ioi_negative": (
            "the sentences of ioi without a repeated name: a third person gives the thing",
            {"negative": True},
        ),
        "ioi_long": ("ioi with two or three more sentences between the names and the question", LONG_SCENE),
        "ioi_long_rewrite": (
            f"ioi_long {_OWN_WORDS}",
            {"scene": _long, "texts": LONG_REWRITE, "kind": "long rewrite "},
        ),
        "ioi_long_negative": (
            "the sentences of ioi_long without a repeated name: a third person gives",
            {**LONG_SCENE, "negative": True},
        ),
    },
    pattern=("mixed", "ABB", "BAB"),
)
def ioi(
    draw: random.Random,
    pattern: str = "mixed",
    scene: Callable[[random.Random, Lists, str], Scene] = _short,
    texts: Lists = SHORT,
    kind: str = "",
    negative: bool = False,
) -> Example:
    """`pattern`: the receiver A and the giver B in order of mention (`ABB`: A first), or both kinds.

    kind: says that the templates are not those of `ioi`.
    """
    receiver, giver, *others = draw.sample(words(texts["names"]), 4 if negative else 2)
    order = draw.choice(("ABB", "BAB")) if pattern == "mixed" else pattern
    a, b = (receiver, giver) if order == "ABB" else (giver, receiver)
    prompt, family = scene(draw, texts, kind)
    subject, instead = others or (giver, receiver)
    text = prompt(a=a, b=b, s=subject)
    label = f"{order[:2]}C" if negative else order
    return Example(
        prompt=text,
        target=f" {receiver}",
        foils=(f" {giver}",),
        counterfactual=prompt(a=a, b=b, s=instead),
        label=label,
        spans={} if negative else name_spans(text, receiver, giver),
        family={"order": label, **family},
    )


def name_spans(prompt: str, receiver: str, giver: str) -> dict[str, tuple[int, int]]:
    """Where the names stand: IO (the receiver), S1 and S2 (the giver, first and again), and the last word (end)."""
    found = {
        name: [match.span() for match in re.finditer(rf"\b{name}\b", prompt)] for name in (receiver, giver)
    }
    end = prompt.rindex(" ") + 1, len(prompt)
    return {"IO": found[receiver][0], "S1": found[giver][0], "S2": found[giver][-1], "end": end}
