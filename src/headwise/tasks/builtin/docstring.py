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

from headwise.tasks.examples import Example
from headwise.tasks.registry import register

NAMES = (
    "load size file last page name list node port path user time date text line word mode code type unit "
    "color shape width height depth speed price order count index level scale range label title image frame "
    "block cell row column table field group state value limit offset target source input output result event "
    "action signal channel client server service region country city street number letter"
).split()
DESCRIPTIONS = (
    "oil water crime river music table garden window summer winter island forest market bridge family history "
    "science weather kitchen dinner morning evening doctor teacher student village mountain paper metal glass "
    "wood stone horse bird flower tree cloud rain snow wind"
).split()


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
