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

`docstring_rewrite` asks the same in other words: names of its own, in a Markdown list, a table or prose. The
docstring of `docstring_negative` documents names that the signature does not have, so it does not say which of the
parameters is next; the order in which both are written still gives a hint. The bundled model is right in 79 of 100
rewrites (list .84, table .89, prose .66), and in 37 of 100 negatives, where chance is 23 (mean logit difference .54).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from headwise.tasks.builtin.word_lists import lists, words
from headwise.tasks.examples import Example
from headwise.tasks.registry import register

PLAIN, REWRITE = lists("docstring.txt"), lists("docstring_rewrite.txt")
Lines = Sequence[tuple[str, str]]
"""Documented names, each with its description."""


@register(
    "docstring",
    metric="logit_diff",
    about="a Python docstring lists the parameters of its function: which one is next?",
)
def docstring(draw: random.Random) -> Example:
    return _example(draw, PLAIN)


@register(
    "docstring_rewrite",
    metric="logit_diff",
    about="docstring in other words: the parameters of a command in a Markdown list, a table or prose",
)
def docstring_rewrite(draw: random.Random) -> Example:
    return _example(draw, REWRITE, draw.choice(tuple(LAYOUTS)))


@register(
    "docstring_negative",
    metric="logit_diff",
    about="a docstring of other names than those of the signature: nothing says which one is next",
)
def docstring_negative(draw: random.Random) -> Example:
    return _example(draw, PLAIN, negative=True)


def _example(
    draw: random.Random, texts: Mapping[str, Sequence[str]], layout: str = "", negative: bool = False
) -> Example:
    names, descriptions = words(texts["names"]), words(texts["descriptions"])
    n_named = draw.choice((4, 5))
    n_documented = draw.choice((1, 2, n_named - 2))
    function, *named = draw.sample(names, n_named + 1)
    summary, *about = (" ".join(draw.sample(descriptions, size)) for size in (3, *[2] * n_documented))
    asked = n_documented
    later = draw.randrange(asked + 1, n_named)
    strangers = [name for name in names if name not in (function, *named)]
    documented = draw.sample(strangers, n_documented) if negative else named[:n_documented]
    lines = list(zip(documented, about, strict=True))
    written = LAYOUTS[layout] if layout else _python
    swapped = list(named)
    swapped[asked], swapped[later] = swapped[later], swapped[asked]
    others = [name for i, name in enumerate(named) if i != asked]
    return Example(
        prompt=written(function, named, summary, lines),
        target=f" {named[asked]}",
        foils=tuple(f" {name}" for name in others),
        counterfactual=written(function, swapped, summary, lines),
        label=f"{n_documented} documented",
        family={"parameters": str(n_named), "documented": str(n_documented)}
        | ({"template": layout} if layout else {}),
    )


def _python(function: str, parameters: Sequence[str], summary: str, lines: Lines) -> str:
    signature = ", ".join(["self", *parameters])
    documented = [f"    :param {name}: {about}" for name, about in lines]
    return "\n".join([f"def {function}({signature}):", f'    """{summary}', "", *documented, "    :param"])


def _markdown(function: str, parameters: Sequence[str], summary: str, lines: Lines) -> str:
    listed = [f"- {name}: {about}" for name, about in lines]
    return "\n".join([f"## {function}({', '.join(parameters)})", "", f"About {summary}.", "", *listed, "-"])


def _table(function: str, parameters: Sequence[str], summary: str, lines: Lines) -> str:
    rows = [f"| {name} | {about} |" for name, about in lines]
    return "\n".join([f"{function}({', '.join(parameters)})", "", f"| argument | {summary} |", *rows, "|"])


def _prose(function: str, parameters: Sequence[str], summary: str, lines: Lines) -> str:
    told = [f"Then give the {name}, for {about}." for name, about in lines]
    *first, last = parameters
    needs = f"The command {function} ({summary}) needs {', '.join(first)} and {last}, in this order."
    return " ".join([needs, *told, "Then give the"])


LAYOUTS = {"list": _markdown, "table": _table, "prose": _prose}
