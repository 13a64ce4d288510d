"""Small arithmetic stories with a whole number as the answer, in four levels.

Level 1 takes one step with numbers up to ten, level 2 one step with larger ones, level 3 two steps with small
numbers, level 4 two or three steps with any. The mixture is set so that the bundled 135M-parameter model
answers about half of the questions when it is shown eight solved ones, which leaves room in both directions.
"""

from __future__ import annotations

import inspect
import random

from headwise.tasks.examples import Example
from headwise.tasks.ioi import NAMES
from headwise.tasks.registry import register
from headwise.tasks.word_problem_texts import ONE_STEP, THREE_STEPS, TWO_STEPS

THINGS = (
    "apples books marbles stickers cookies pencils coins balloons shells cards flowers stamps oranges candies "
    "toys buttons"
).split()
AMOUNTS = {"small": (2, 10), "large": (11, 60)}
FACTORS = {"small": (2, 5), "large": (3, 9)}
LARGEST = {"small": 30, "large": 400}
N_FOILS = 3

# Level, how often, steps, size of the numbers.
LEVELS = (
    ("1", 6, ONE_STEP, "small"),
    ("2", 2, ONE_STEP, "large"),
    ("3", 1, TWO_STEPS, "small"),
    ("4", 1, (*TWO_STEPS, *THREE_STEPS), "large"),
)


@register(
    "word_problems",
    metric="logprob",
    about="arithmetic stories in four levels, the answer a whole number",
    level=("mixed", "1", "2", "3", "4"),
)
def word_problems(draw: random.Random, level: str = "mixed") -> Example:
    """`level`: 1 to 4, from one step with small numbers to several steps with large ones, or a mixture."""
    weighted = [entry for entry in LEVELS for _ in range(entry[1]) if level in ("mixed", entry[0])]
    name, _, stories, size = draw.choice(weighted)
    while True:
        story = draw.choice(stories)
        numbers = {
            letter: draw.randint(*(AMOUNTS if letter in "abcd" else FACTORS)[size])
            for letter in inspect.signature(story.answer).parameters
        }
        answer = story.answer(**numbers)
        if answer is not None and 1 <= answer <= LARGEST[size]:
            break
    A, B, C = draw.sample(NAMES, 3)
    return Example(
        prompt=story.text.format(A=A, B=B, C=C, things=draw.choice(THINGS), **numbers),
        target=f" {answer}",
        foils=tuple(f" {wrong}" for wrong in _slips(draw, list(numbers.values()), answer)),
        label=f"level {name}",
    )


def _slips(draw: random.Random, numbers: list[int], answer: int) -> list[int]:
    """Wrong answers a person might give: a step left out, the wrong operation, a number copied, a miscount."""
    first, second = numbers[0], numbers[1] if len(numbers) > 1 else 2
    tempting = [*numbers, sum(numbers), first + second, abs(first - second), first * second]
    miscounts = [answer + 1, answer - 1, answer + 2, answer + 10]
    near = [wrong for wrong in dict.fromkeys(tempting) if wrong != answer and 0 < wrong <= 4 * answer + 10]
    chosen = draw.sample(near, min(2, len(near)))
    rest = [wrong for wrong in miscounts if wrong > 0 and wrong not in chosen]
    return [*chosen, *draw.sample(rest, N_FOILS - len(chosen))]
