"""Plain text as a task: how likely the next words are at several distances from the beginning."""

from __future__ import annotations

import random
from bisect import bisect_right

from headwise.model.model import Model
from headwise.tasks import Example, Task
from headwise.tasks.builtin.needle import sentences_of

SCORED = 32
"""Words that are scored at each position."""
PARTS = 4


def text_task(model: Model, source: str, length: int, n: int, seed: int) -> Task:
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
            end = bisect_right(range(1, wanted), wanted, key=lambda k: len(model.tokens(" ".join(words[:k]))))
            cut = max(1, end - SCORED)
            prompt, target = " ".join(words[:cut]), " " + " ".join(words[cut : max(end, cut + 1)])
            examples.append(Example(prompt, target, group=str(number), family={"position": str(wanted)}))
    return Task("text", tuple(examples), "mean_logprob", {"length": length, "seed": seed})
