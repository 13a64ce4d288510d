"""A relation of everyday knowledge: facts in a table, and several ways to ask for each of them.

A row of the table is `answer: subject; subject; …`. What stands behind the answer after a `~` is right for the
subjects of that row as well, or could be argued to be, so it is never given to them as a wrong answer:

    a hardware store ~ a garden center: a hammer and nails; a shovel
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """One thing that everybody knows."""

    subject: str
    answer: str
    also: tuple[str, ...]
    """Answers of other facts that would do for this one too."""


@dataclass(frozen=True)
class Relation:
    """Facts of one kind. Every answer can be said after every wording, whatever the subject."""

    label: str
    wordings: tuple[str, ...]
    """With {} for the subject; what ends with a question mark is a question, the others are sentences to finish."""
    facts: tuple[Fact, ...]


def relation(label: str, wordings: tuple[str, ...], rows: str) -> Relation:
    """A relation from its table."""
    facts = []
    for row in rows.strip().splitlines():
        answers, subjects = row.split(": ", 1)
        answer, *also = answers.strip().split(" ~ ")
        facts += [Fact(subject.strip(), answer, tuple(also)) for subject in subjects.split(";")]
    return Relation(label, wordings, tuple(facts))
