"""Plain text as a task: how well a model predicts a text, with the same examples, gates and intervals as any task."""

from __future__ import annotations

import re

from headwise.errors import HeadwiseError
from headwise.tasks.examples import Example, Task

GIVEN, WORDS = 8, 96
"""Words of a passage that the model is given, and words of the whole passage."""


def text_halves(text: str) -> tuple[str, str]:
    """The first and the second half of a text, cut between words."""
    middle = text.find(" ", len(text) // 2)
    return text[:middle], text[middle:]


def passages(text: str, n: int, name: str = "text", words: int = WORDS) -> Task:
    """`n` passages of a text, spread over it; the metric is the log probability per token after the first words.

    Its negative is the cross-entropy.

    >>> passages("one two " * 96, 2).examples[0].prompt
    'one two one two one two one two'
    """
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    starts = [0, *ends][: len(ends)]
    count = len(ends) // words
    if count < n:
        raise HeadwiseError(
            f"{name} has {len(ends)} words; {n} passages of {words} words need {n * words}. Give a longer text, or "
            "fewer examples"
        )
    examples = []
    for first in (words * (number * count // n) for number in range(n)):
        given, last = ends[first + GIVEN - 1], ends[first + words - 1]
        examples.append(Example(text[starts[first] : given].lstrip(), text[given:last]))
    return Task(name, tuple(examples), "mean_logprob")
