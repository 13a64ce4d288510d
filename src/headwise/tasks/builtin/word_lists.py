"""Word lists and texts of the built-in tasks: plain text files in `data/`, read once.

    # A line that begins with # is a comment.
    [names]
    Mary John Tom
    [openings]
    When {a} and {b} went to the {place}, {s} gave a {thing} to

A line in square brackets begins a list; every other line is an entry of it, or some of its words. The comment at
the top of a file says how its lines are read. The order counts: examples are drawn from the lists by position, so a
line added in the middle changes the examples of every seed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

Lists = Mapping[str, Sequence[str]]
"""The lines of every list of a file, by name."""
BLANKS = ("____", "....", "****", "----", "####", "====")
"""What stands in the place of the word that decides, in prompts of the same form without the behaviour."""


def read(file: str) -> str:
    """The text of a file in `data/`."""
    return resources.files("headwise.tasks.builtin").joinpath("data", file).read_text(encoding="utf-8")


@cache
def lists(file: str) -> dict[str, tuple[str, ...]]:
    """The lines of every list in a file, by the list's name."""
    lines_of: dict[str, list[str]] = {}
    for line in map(str.strip, read(file).splitlines()):
        if line.startswith("["):
            name = line.strip("[]")
            assert name not in lines_of, f"{file} has two lists {line}"
            lines_of[name] = []
        elif line and not line.startswith("#"):
            lines_of[name].append(line)
    return {name: tuple(lines) for name, lines in lines_of.items()}


def words(lines: Sequence[str]) -> list[str]:
    """The single words of a list."""
    return " ".join(lines).split()


def two_blanks(draw: random.Random) -> list[str]:
    """A blank for a prompt, and another one for its counterfactual."""
    return draw.sample(BLANKS, 2)


def questions_and_facts(lines: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """The lines with {} for a subject, and the lines without."""
    return tuple(line for line in lines if "{}" in line), [line for line in lines if "{}" not in line]
