"""Docstring completion (Heimersheim and Janiak 2023, "A circuit for Python docstrings in a 4-layer
attention-only transformer").

A function's docstring documents its parameters in the order of its signature; which one comes next?

    def port(self, load, size, file, last):
        \"\"\"oil column piece

        :param load: crime population
        :param size: unit dark
        :param                               -> " file"

Names and descriptions are random words, so only the signature can tell. The counterfactual swaps the asked
parameter with a later one in the signature, and leaves everything else: the later one is now right. The bundled
model is near the ceiling, right in 98 of 100 examples.
"""

from __future__ import annotations

import random

from headwise.tasks.builtin.word_lists import lists, words
from headwise.tasks.examples import Example
from headwise.tasks.registry import register

NAMES, DESCRIPTIONS = (words(lists("docstring.txt")[name]) for name in ("names", "descriptions"))


@register(
    "docstring",
    metric="logit_diff",
    about="a Python docstring lists the parameters of its function: which one is next?",
)
def docstring(draw: random.Random) -> Example:
    n_named = draw.choice((4, 5))
    n_documented = draw.choice((1, 2, n_named - 2))
    function, *named = draw.sample(NAMES, n_named + 1)
    summary, *about = (" ".join(draw.sample(DESCRIPTIONS, size)) for size in (3, *[2] * n_documented))
    asked = n_documented
    later = draw.randrange(asked + 1, n_named)

    def prompt(parameters: list[str]) -> str:
        lines = [f"    :param {p}: {words}" for p, words in zip(named, about, strict=False)]
        signature = ", ".join(["self", *parameters])
        return "\n".join([f"def {function}({signature}):", f'    """{summary}', "", *lines, "    :param"])

    swapped = list(named)
    swapped[asked], swapped[later] = swapped[later], swapped[asked]
    others = [name for i, name in enumerate(named) if i != asked]
    return Example(
        prompt=prompt(named),
        target=f" {named[asked]}",
        foils=tuple(f" {name}" for name in others),
        counterfactual=prompt(swapped),
        label=f"{n_documented} documented",
    )
