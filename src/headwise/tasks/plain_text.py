"""Plain text as a task: how well a model predicts a text, with the same examples, gates and intervals as any task."""

from __future__ import annotations

import random
import re
from bisect import bisect_right

from headwise.errors import HeadwiseError
from headwise.tasks.builtin.needle import sentences_of
from headwise.tasks.examples import Example, Task
from headwise.tasks.registry import Lengths

GIVEN, WORDS = 8, 96
"""Words of a passage that the model is given, and words of the whole passage."""
SCORED, PARTS = 32, 4
"""Words that are scored at each position, and positions of a text."""


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


def text_by_position(tokens: Lengths, source: str, length: int, n: int, seed: int) -> Task:
    """The words before a quarter, a half, three quarters and all of `length` tokens, in each of `n` texts.

    source: `sentences` (ours), or a text file, from random places. The family `position` has the tokens up to
    their end, and the metric is the log probability per token: cross-entropy with the sign turned.
    """
    examples: list[Example] = []
    draw = random.Random(f"text/{source}/{length}/{seed}")
    for number in range(n):
        sentences, words = sentences_of(draw, source), list[str]()
        while len(words) < length:  # a word has at least one token
            words += next(sentences).split()
        for part in range(1, PARTS + 1):
            wanted = length * part // PARTS
            end = bisect_right(range(1, wanted), wanted, key=lambda k: len(tokens(" ".join(words[:k]))))
            cut = max(1, end - SCORED)
            prompt, target = " ".join(words[:cut]), " " + " ".join(words[cut : max(end, cut + 1)])
            examples.append(Example(prompt, target, group=str(number), family={"position": str(wanted)}))
    return Task("text", tuple(examples), "mean_logprob", {"length": length, "seed": seed})
