"""Small arithmetic stories with a whole number as the answer, in five levels.

Level 1 takes one step with numbers up to ten and says which; level 2 leaves that to the reader; level 3 has
larger numbers; level 4 takes two steps with small numbers, level 5 two or more with larger ones.

The task is meant for eight solved examples before each question. Without any, the bundled model is below
chance (8 %): it repeats a number of the story, and such numbers are among the foils. With eight, greedy
decoding says the right number for 35 to 45 % of the first sixty, depending on the shots: about half of level 1
and nothing beyond. Shots that show the working lift that to 60 to 67 %, and to about half even at level 3 when
all are of that level:

    few_shot(task("word_problems", 60), 8, template="Q: {prompt}\\nA:{target}",
             pool=task("word_problems", 64, seed=1, answer="worked"))
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

from headwise.tasks.builtin.arithmetic import Step, slipped, work
from headwise.tasks.builtin.ioi import NAMES
from headwise.tasks.builtin.word_lists import lists, words
from headwise.tasks.examples import Example
from headwise.tasks.registry import register


@dataclass(frozen=True)
class Story:
    """A word problem whose numbers, names and things are still open."""

    text: str
    steps: tuple[str, ...]
    """Its calculation, as in `arithmetic`."""


def _stories(lines: tuple[str, ...]) -> tuple[Story, ...]:
    split = [line.split(" | ") for line in lines]
    return tuple(Story(text, tuple(steps.split("; "))) for text, steps in split)


ONE_STEP, TWO_STEPS, THREE_STEPS = (
    _stories(lists("word_problems.txt")[name]) for name in ("one step", "two steps", "three steps")
)
THINGS = words(lists("word_problems.txt")["things"])
AMOUNTS = {"small": (2, 10), "large": (11, 60)}
FACTORS = {"small": (2, 5), "large": (3, 9)}
LARGEST = {"small": 30, "large": 200}
N_FOILS = 3

# Level: its stories, the size of its numbers, and how often it is drawn for the mixture. Chosen by measuring the
# bundled model, so that its score on the mixture leaves room in both directions, with plain shots and worked ones.
LEVELS = {
    "1": (ONE_STEP, "small", 16),
    "2": (ONE_STEP, "small", 1),
    "3": (ONE_STEP, "large", 1),
    "4": (TWO_STEPS, "small", 1),
    "5": ((*TWO_STEPS, *THREE_STEPS), "large", 1),
}
MIXTURE = [level for level, (_, _, often) in LEVELS.items() for _ in range(often)]


@register(
    "word_problems",
    metric="logprob",
    about="arithmetic stories in five levels, the answer a whole number; below chance without few-shot examples",
    level=("mixed", *LEVELS),
    answer=("number", "worked"),
)
def word_problems(draw: random.Random, level: str = "mixed", answer: str = "number") -> Example:
    """`level`: 1 to 5, from one small step that is spelled out to several with large numbers, or a mixture.

    `answer`: the number alone, or the working that ends with it.
    """
    chosen = draw.choice(MIXTURE) if level == "mixed" else level
    stories, size, _ = LEVELS[chosen]
    while True:
        story = draw.choice(stories)
        numbers = _numbers(draw, story, size)
        done = work(story.steps, numbers)
        if done is None or done[-1].result > LARGEST[size]:
            continue
        wrong = slipped(story.steps, numbers)
        if answer == "worked":
            target, foils = _worked(done), [_worked(steps) for steps in wrong]
        else:
            target, foils = f" {done[-1].result}", [f" {number}" for number in _wrong_numbers(done, wrong)]
        if len(foils) >= N_FOILS:
            break
    A, B, C = draw.sample(NAMES, 3)
    prompt = story.text.format(A=A, B=B, C=C, things=draw.choice(THINGS), **numbers)
    if chosen == "1":
        prompt += f" Calculate {done[0].left} {done[0].operation} {done[0].right}."
    return Example(prompt, target, tuple(draw.sample(foils, N_FOILS)), label=f"level {chosen}")


def _numbers(draw: random.Random, story: Story, size: str) -> dict[str, int]:
    """A value for each number that the story leaves open, in the order in which they are told."""
    fields = [name for _, name, _, _ in string.Formatter().parse(story.text) if name]
    names = [name for name in dict.fromkeys(fields) if len(name) == 1 and name.islower()]
    return {name: draw.randint(*(AMOUNTS if name in "abcd" else FACTORS)[size]) for name in names}


def _worked(steps: list[Step]) -> str:
    return " " + ", ".join(map(str, steps))


def _wrong_numbers(done: list[Step], wrong: list[list[Step]]) -> list[int]:
    """What one might say instead: a slip, an earlier result as if it were the last, a number from the story."""
    numbers = [steps[-1].result for steps in wrong]
    numbers += [number for step in done for number in (step.left, step.right, step.result)]
    return [number for number in dict.fromkeys(numbers) if number != done[-1].result]
