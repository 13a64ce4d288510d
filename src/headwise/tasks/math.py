"""Arithmetic with its working: the target is the solution, step by step, and not the last number alone.

    Problem: (4 + 9) * 3
    Solution:              ->  " 4 + 9 = 13\\n13 * 3 = 39\\nAnswer: 39"

Foils are the same working with one plausible slip (a carry forgotten, one off, the wrong operation), carried
through to the end as a person would. `short` leaves out what can be left out: one or two steps, at most 20
characters, and so at most 20 tokens even where every digit is one.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass

from headwise.tasks.examples import Example
from headwise.tasks.registry import register

N_FOILS = 3
SHORT = 20  # characters

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}


@dataclass(frozen=True)
class Shape:
    """An expression over the numbers a, b, c, d and the order in which it is worked out."""

    text: str
    steps: tuple[str, ...]
    """Each "left operation right"; P and Q are the results of the first and the second step."""
    limits: tuple[int, ...]
    """The largest value of each number."""


@dataclass(frozen=True)
class Step:
    left: int
    operation: str
    right: int
    result: int


SHAPES = (
    Shape("a + b", ("a + b",), (99, 99)),
    Shape("a - b", ("a - b",), (99, 99)),
    Shape("a * b", ("a * b",), (20, 9)),
    Shape("a / b", ("a / b",), (99, 9)),
    Shape("a + b + c", ("a + b", "P + c"), (50, 50, 20)),
    Shape("a + b - c", ("a + b", "P - c"), (50, 50, 20)),
    Shape("a - b + c", ("a - b", "P + c"), (60, 30, 30)),
    Shape("a - b - c", ("a - b", "P - c"), (99, 40, 20)),
    Shape("a * b + c", ("a * b", "P + c"), (12, 9, 30)),
    Shape("a * b - c", ("a * b", "P - c"), (12, 9, 30)),
    Shape("a + b * c", ("b * c", "a + P"), (40, 9, 9)),
    Shape("a - b * c", ("b * c", "a - P"), (90, 9, 9)),
    Shape("(a + b) * c", ("a + b", "P * c"), (9, 9, 9)),
    Shape("(a - b) * c", ("a - b", "P * c"), (30, 20, 9)),
    Shape("a / b + c", ("a / b", "P + c"), (81, 9, 30)),
    Shape("a + b + c + d", ("a + b", "P + c", "Q + d"), (40, 40, 20, 20)),
    Shape("a + b - c + d", ("a + b", "P - c", "Q + d"), (40, 40, 20, 20)),
    Shape("a * b + c - d", ("a * b", "P + c", "Q - d"), (12, 9, 30, 20)),
    Shape("(a + b) * c - d", ("a + b", "P * c", "Q - d"), (9, 9, 9, 20)),
    Shape("a * b + c * d", ("a * b", "c * d", "P + Q"), (9, 9, 9, 9)),
)


@register(
    "math",
    metric="logprob",
    about="arithmetic in one to three steps; the target is the worked solution",
    length=("worked", "short"),
)
def math(draw: random.Random, length: str = "worked") -> Example:
    """`length`: the full working on lines of its own, or (`short`) at most 20 characters of it."""
    while True:
        shape = draw.choice(SHAPES)
        numbers = {name: draw.randint(2, limit) for name, limit in zip("abcd", shape.limits, strict=False)}
        right = _work(shape, numbers)
        if right is None:
            continue
        slipped = [_work(shape, numbers, *slip) for slip in _slips(right)]
        # A slip may cancel out further on, or lead to a step that cannot be done.
        wrong = [work for work in slipped if work and work[-1].result != right[-1].result]
        target, *foils = (_solution(work, length) for work in (right, *wrong))
        if length == "short" and max(map(len, (target, *foils))) > SHORT:
            continue
        if len(foils) < N_FOILS:
            continue
        text = "".join(str(numbers.get(sign, sign)) for sign in shape.text)
        steps = "1 step" if len(right) == 1 else f"{len(right)} steps"
        return Example(f"Problem: {text}\nSolution:", target, tuple(draw.sample(foils, N_FOILS)), label=steps)


def _work(shape: Shape, numbers: dict[str, int], at: int = -1, slip: int = 0) -> list[Step] | None:
    """Every step in order, with the result of step `at` wrong by `slip`.

    None where a step leaves the positive whole numbers, or a right division does not come out even.
    """
    known = dict(numbers)
    done: list[Step] = []
    for i, step in enumerate(shape.steps):
        first, operation, second = step.split()
        left, right = known[first], known[second]
        if operation == "/" and left % right:
            return None
        result = OPERATIONS[operation](left, right) + (slip if i == at else 0)
        if result < 1:
            return None
        known["PQR"[i]] = result
        done.append(Step(left, operation, right, result))
    return done


def _slips(work: list[Step]) -> list[tuple[int, int]]:
    """Plausible slips: the step where it happens and by how much its result is off."""
    found: dict[tuple[int, int], None] = {}
    for at, step in enumerate(work):
        off = [1, -1]
        if step.operation in "+-":  # a carry forgotten or made twice, or the other operation
            off += [10, -10, 2 * step.right if step.operation == "-" else -2 * step.right]
        if step.operation == "*":  # one row up or down in the times table, or a sum
            off += [step.left, -step.left, step.right, -step.right, step.left + step.right - step.result]
        if step.operation == "/":
            off += [2, -2]
        found |= dict.fromkeys((at, by) for by in off if by)
    return list(found)


def _solution(work: list[Step], length: str) -> str:
    if length == "short":
        return " " + ", ".join(f"{s.left}{s.operation}{s.right}={s.result}" for s in work)
    lines = [f"{s.left} {s.operation} {s.right} = {s.result}" for s in work]
    return " " + "\n".join([*lines, f"Answer: {work[-1].result}"])
