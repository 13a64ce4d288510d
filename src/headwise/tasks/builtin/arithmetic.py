"""The tasks `math` and `word_problems`, and the calculations in steps that both ask for, right and with one slip.

A calculation is written as steps over named numbers, "a + b" and then "P * c"; P, Q, R and S are the results
of the first four steps. Only positive whole numbers occur.

`math`. Arithmetic with its working: the target is the solution, step by step, and not the last number alone.

    Problem: (4 + 9) * 3
    Solution:              ->  " 4 + 9 = 13\\n13 * 3 = 39\\nAnswer: 39"

Foils are the same working with one plausible slip (a carry forgotten, one off, the wrong operation), carried
through to the end as a person would. `short` leaves out what can be left out: one or two steps, at most 20
characters, and so at most 20 tokens even where every digit is one. The bundled model prefers the right working
in 63 % of the full ones and 49 % of the short ones; chance is one in four.

`word_problems`. Small arithmetic stories with a whole number as the answer, in five levels.

Level 1 takes one step with numbers up to ten and says which; level 2 leaves that to the reader; level 3 has
larger numbers; level 4 takes two steps with small numbers, level 5 two or more with larger ones.

The task is meant for eight solved examples before each question. Without any, the bundled model is below
chance (8 %): it repeats a number of the story, and such numbers are among the foils. With eight, greedy
decoding says the right number for 35 to 45 % of the first sixty, depending on the shots: about half of level 1
and nothing beyond. Shots that show the working lift that to 60 to 67 %, and to about half even at level 3 when
all are of that level:

    few_shot(task("word_problems", 60), 8, template="Q: {prompt}\\nA:{target}",
             pool=task("word_problems", 64, seed=1, answer="worked"))

`math_rewrite` and `word_problems_rewrite` ask the same in other words. `word_problems_negative` tells the stories with
"some", "several", "many" and "few" in the place of the numbers, so nothing says which number is right. `math` has no
matched negative: its answer contains the calculation, whose result the model can check without the problem.
Without shots the bundled model is right in 12 of 100 rewritten stories, below chance as in `word_problems`.
"""

from __future__ import annotations

import operator
import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headwise.tasks.builtin.ioi import NAMES
from headwise.tasks.builtin.word_lists import Lists, lists, words
from headwise.tasks.examples import Example
from headwise.tasks.registry import register, register_variants

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
RESULTS = "PQRS"
N_FOILS = 3


@dataclass(frozen=True)
class Step:
    """One line of a working."""

    left: int
    operation: str
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left} {self.operation} {self.right} = {self.result}"


def work(steps: Sequence[str], numbers: Mapping[str, int], at: int = -1, slip: int = 0) -> list[Step] | None:
    """The working, with the result of step `at` off by `slip` and everything after it following from that.

    None where a result is not positive, or a division does not come out even.

    >>> [str(step) for step in work(["a + b", "P * 3"], {"a": 4, "b": 9}) or []]
    ['4 + 9 = 13', '13 * 3 = 39']
    """
    values = dict(numbers)
    done: list[Step] = []
    for i, step in enumerate(steps):
        first, operation, second = step.split()
        left, right = (int(name) if name.isdigit() else values[name] for name in (first, second))
        if operation == "/" and left % right:
            return None
        result = OPERATIONS[operation](left, right) + (slip if i == at else 0)
        if result < 1:
            return None
        values[RESULTS[i]] = result
        done.append(Step(left, operation, right, result))
    return done


def slipped(steps: Sequence[str], numbers: Mapping[str, int]) -> list[list[Step]]:
    """Every working with one plausible slip that ends in a wrong result.

    A slip may cancel out further on, or lead to a step that cannot be done: those are left out.
    """
    right = work(steps, numbers)
    assert right is not None, "only a calculation that can be done has slips"
    tried = [work(steps, numbers, at, off) for at, step in enumerate(right) for off in _offsets(step)]
    return [wrong for wrong in tried if wrong is not None and wrong[-1].result != right[-1].result]


def _offsets(step: Step) -> list[int]:
    """By how much a person's result may be off at this step."""
    left, right = step.left, step.right
    offsets = {
        "+": [10, -10, -2 * right],  # a carry forgotten or made twice, or a difference
        "-": [10, -10, 2 * right],
        # A row up or down in the times table, or a sum.
        "*": [left, -left, right, -right, left + right - step.result],
        "/": [2, -2],
    }[step.operation]
    return [by for by in dict.fromkeys([1, -1, *offsets]) if by]


# ---- math --------------------------------------------------------------------------------------------

SHORT = 20  # characters


@dataclass(frozen=True)
class Story:
    """An expression over the numbers a, b, c, d, or a word problem whose numbers, names and things are still open."""

    text: str
    steps: tuple[str, ...]
    """Its calculation, each "left operation right"; P and Q are the results of the first and the second step."""
    limits: tuple[int, ...] = ()
    """Of an expression: the largest value of each number."""


def stories(lines: Sequence[str]) -> tuple[Story, ...]:
    split = [[*line.split(" | "), ""] for line in lines]
    return tuple(Story(one[0], tuple(one[1].split("; ")), tuple(map(int, one[2].split()))) for one in split)


SHAPES = stories(lists("math.txt")["shapes"])


@register_variants(
    "logprob",
    {
        "math": ("arithmetic in one to three steps; the target is the worked solution", {}),
        "math_rewrite": ("math asked in other words", {"wordings": lists("math.txt")["rewrite"]}),
    },
    length=("worked", "short"),
)
def math(
    draw: random.Random, length: str = "worked", wordings: Sequence[str] = ("Problem: {}\nSolution:",)
) -> Example:
    """`length`: the full working on lines of its own, or (`short`) at most 20 characters of it."""
    shapes = [shape for shape in SHAPES if len(shape.steps) <= 2 or length == "worked"]
    shape = draw.choice(shapes)
    while True:
        numbers = {name: draw.randint(2, limit) for name, limit in zip("abcd", shape.limits, strict=False)}
        right = work(shape.steps, numbers)
        if right is None:
            continue
        target = _solution(right, length)
        foils = [_solution(wrong, length) for wrong in slipped(shape.steps, numbers)]
        if length == "short" and max(map(len, (target, *foils))) > SHORT:
            continue
        if len(foils) < N_FOILS:
            continue
        text = "".join(str(numbers.get(sign, sign)) for sign in shape.text)
        steps = "1 step" if len(right) == 1 else f"{len(right)} steps"
        chosen = draw.sample(foils, N_FOILS)
        wording, family = wordings[0], {"steps": str(len(right))}
        if len(wordings) > 1:
            wording = draw.choice(wordings)
            family["template"] = f"rewrite {wordings.index(wording) + 1}"
        return Example(wording.format(text), target, tuple(chosen), label=steps, family=family)


def _solution(steps: list[Step], length: str) -> str:
    if length == "short":
        return " " + ", ".join(str(step).replace(" ", "") for step in steps)
    return " " + "\n".join([*map(str, steps), f"Answer: {steps[-1].result}"])


# ---- word_problems -----------------------------------------------------------------------------------


AMOUNTS = {"small": (2, 10), "large": (11, 60)}
FACTORS = {"small": (2, 5), "large": (3, 9)}
LARGEST = {"small": 30, "large": 200}

# Level: its stories, the size of its numbers, and how often it is drawn for the mixture. Chosen by measuring the
# bundled model, so that its score on the mixture leaves room in both directions, with plain shots and worked ones.
LEVELS = {
    "1": (("one step",), "small", 16),
    "2": (("one step",), "small", 1),
    "3": (("one step",), "large", 1),
    "4": (("two steps",), "small", 1),
    "5": (("two steps", "three steps"), "large", 1),
}
MIXTURE = [level for level, (_, _, often) in LEVELS.items() for _ in range(often)]
PLAIN, REWRITE = lists("word_problems.txt"), lists("word_problems_rewrite.txt")
REWRITE_NAMES = words(lists("ioi_rewrite.txt")["names"])


@register_variants(
    "logprob",
    {
        "word_problems": (
            "arithmetic stories in five levels, the answer a whole number; below chance without few-shot examples",
            {},
        ),
        "word_problems_rewrite": (
            "word_problems in other words: stories, names and things of its own",
            {"texts": REWRITE, "names": REWRITE_NAMES},
        ),
    },
    level=("mixed", *LEVELS),
    answer=("number", "worked"),
)
def word_problems(
    draw: random.Random,
    level: str = "mixed",
    answer: str = "number",
    texts: Lists = PLAIN,
    names: Sequence[str] = NAMES,
    negative: bool = False,
) -> Example:
    """`level`: 1 to 5, from one small step that is spelled out to several with large numbers, or a mixture.

    `answer`: the number alone, or the working that ends with it.
    """
    chosen = draw.choice(MIXTURE) if level == "mixed" else level
    kinds, size, _ = LEVELS[chosen]
    listed = stories([line for kind in kinds for line in texts[kind]])
    while True:
        story = draw.choice(listed)
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
    A, B, C = draw.sample(names, 3)
    things = draw.choice(words(texts["things"]))
    shown: Mapping[str, int | str] = numbers
    if negative:
        shown = {name: draw.choice(words(texts["untold"])) for name in numbers}
    prompt = story.text.format(A=A, B=B, C=C, things=things, **shown)
    if chosen == "1" and not negative:
        prompt += f" Calculate {done[0].left} {done[0].operation} {done[0].right}."
    wrong_answers = tuple(draw.sample(foils, N_FOILS))
    return Example(prompt, target, wrong_answers, label=f"level {chosen}", family={"level": chosen})


register(
    "word_problems_negative",
    metric="logprob",
    about="the stories of word_problems without their numbers",
    level=("mixed", *LEVELS),
)(partial(word_problems, negative=True))


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
