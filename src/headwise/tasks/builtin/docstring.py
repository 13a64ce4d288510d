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
from collections.abc import Sequence

from headwise.tasks.builtin.word_lists import Lists, lists, words
from headwise.tasks.examples import Example
from headwise.tasks.registry import register_variants

PLAIN, REWRITE = lists("docstring.txt"), lists("docstring_rewrite.txt")
Lines = Sequence[tuple[str, str]]
"""Documented names, each with its description."""


def _python(function: str, parameters: Sequence[str], summary: str, lines: Lines) -> str:
    signature = ", ".join(["self", *parameters])
    documented = [f"    :param {name}: {text}" for name, text in lines]
    return "\n".join([f"def {function}({signature}):", f'    """{summary}', "", *documented, "    :param"])


def _markdown(function: str, parameters: Sequence[str], summary: str, lines: Lines) -> str:
    listed = [f"- {name}: {text}" for name, text in lines]
    return "\n".join([f"## {function}({', '.join(parameters)})", "", f"About {summary}.", "", *listed, "-"])


def _table(function: str, parameters: Sequence[str], summary: str, lines: Lines) -> str:
    rows = [f"| {name} | {text} |" for name, text in lines]
    return "\n".join([f"{function}({', '.join(parameters)})", "", f"| argument | {summary} |", *rows, "|"])


def _prose(function: str, parameters: Sequence[str], summary: str, lines: Lines) -> str:
    listed = [f"Then give the {name}, for {text}." for name, text in lines]
    *first, last = parameters
    needs = f"The command {function} ({summary}) needs {', '.join(first)} and {last}, in this order."
    return " ".join([needs, *listed, "Then give the"])


LAYOUTS = {"list": _markdown, "table": _table, "prose": _prose}


@register_variants(
    "logit_diff",
    {
        "docstring": ("a Python docstring lists the parameters of its function: which one is next?", {}),
        "docstring_rewrite": (
            "docstring in other words: the parameters of a command in a Markdown list, a table or prose",
            {"texts": REWRITE, "layouts": tuple(LAYOUTS)},
        ),
        "docstring_negative": (
            "a docstring of other names than those of the signature: nothing says which one is next",
            {"negative": True},
        ),
    },
)
def docstring(
    draw: random.Random, texts: Lists = PLAIN, layouts: Sequence[str] = (), negative: bool = False
) -> Example:
    layout = draw.choice(layouts) if layouts else ""
    names, descriptions = words(texts["names"]), words(texts["descriptions"])
    n_named = draw.choice((4, 5))
    n_documented = draw.choice((1, 2, n_named - 2))
    function, *named = draw.sample(names, n_named + 1)
    summary, *meanings = (" ".join(draw.sample(descriptions, size)) for size in (3, *[2] * n_documented))
    target_index = n_documented
    later = draw.randrange(target_index + 1, n_named)
    strangers = [name for name in names if name not in (function, *named)]
    documented = draw.sample(strangers, n_documented) if negative else named[:n_documented]
    lines = list(zip(documented, meanings, strict=True))
    written = LAYOUTS[layout] if layout else _python
    swapped = list(named)
    swapped[target_index], swapped[later] = swapped[later], swapped[target_index]
    others = [name for i, name in enumerate(named) if i != target_index]
    return Example(
        prompt=written(function, named, summary, lines),
        target=f" {named[target_index]}",
        foils=tuple(f" {name}" for name in others),
        counterfactual=written(function, swapped, summary, lines),
        label=f"{n_documented} documented",
        family={"parameters": str(n_named), "documented": str(n_documented)}
        | ({"template": layout} if layout else {}),
    )
