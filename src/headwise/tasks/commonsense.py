"""Everyday knowledge: what breaks, what one says, why it happened, where things are, what they are for.

"If you drop a glass on a stone floor, it will probably" -> " break". Some items are sentences to finish and
some are questions; answers are a few words long, with three wrong ones that are as easy to say. Each item is
one example, so a task can have as many as there are items and no more. The bundled model prefers the right
answer in about four of five.
"""

from __future__ import annotations

import random

from headwise.tasks.commonsense_items import ITEMS
from headwise.tasks.examples import Example
from headwise.tasks.registry import register


def _example(line: str, label: str) -> Example:
    text, right, *wrong = (part.strip() for part in line.split("|"))
    prompt = f"Question: {text}\nAnswer:" if text.endswith("?") else text
    return Example(prompt, f" {right}", tuple(f" {answer}" for answer in wrong), label=label)


EXAMPLES = [_example(line, label) for label, lines in ITEMS.items() for line in lines.strip().splitlines()]


@register(
    "commonsense",
    metric="logprob",
    about="everyday knowledge of things, people, causes, places, tools and the body, answered in a few words",
)
def commonsense(draw: random.Random) -> Example:
    return draw.choice(EXAMPLES)
