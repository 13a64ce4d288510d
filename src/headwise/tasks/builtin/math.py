"""Arithmetic with its working: the target is the solution, step by step, and not the last number alone.

    Problem: (4 + 9) * 3
    Solution:              ->  " 4 + 9 = 13\\n13 * 3 = 39\\nAnswer: 39"

Foils are the same working with one plausible slip (a carry forgotten, one off, the wrong operation), carried
through to the end as a person would. `short` leaves out what can be left out: one or two steps, at most 20
characters, and so at most 20 tokens even where every digit is one. The bundled model prefers the right working
in 63 % of the full ones and 49 % of the short ones; chance is one in four.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from headwise.tasks.builtin.arithmetic import Step, slipped, work
from headwise.tasks.builtin.word_lists import lists
from headwise.tasks.examples import Example
from headwise.tasks.registry import register

N_FOILS = 3
SHORT = 20  # characters


@dataclass(frozen=True)
class Shape:
    """An expression over the numbers a, b, c, d and the order in which it is worked out."""

    text: str
    steps: tuple[str, ...]
    """Each "left operation right"; P and Q are the results of the first and the second step."""
    limits: tuple[int, ...]
    """The largest value of each number."""


def _shape(line: str) -> Shape:
    text, steps, limits = line.split(" | ")
    return Shape(text, tuple(steps.split("; ")), tuple(map(int, limits.split())))


SHAPES = [_shape(line) for line in lists("math.txt")["shapes"]]


@register(
    "math",
    metric="logprob",
    about="arithmetic in one to three steps; the target is the worked solution",
    length=("worked", "short"),
)
def math(draw: random.Random, length: str = "worked") -> Example:
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
        return Example(f"Problem: {text}\nSolution:", target, tuple(draw.sample(foils, N_FOILS)), label=steps)


def _solution(steps: list[Step], length: str) -> str:
    if length == "short":
        return " " + ", ".join(str(step).replace(" ", "") for step in steps)
    return " " + "\n".join([*map(str, steps), f"Answer: {steps[-1].result}"])
