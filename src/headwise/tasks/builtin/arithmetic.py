"""Calculations in steps, right and with one plausible slip.

A calculation is written as steps over named numbers, "a + b" and then "P * c"; P, Q, R and S are the results
of the first four steps. Only positive whole numbers occur.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
RESULTS = "PQRS"


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
    known = dict(numbers)
    done: list[Step] = []
    for i, step in enumerate(steps):
        first, operation, second = step.split()
        left, right = (int(name) if name.isdigit() else known[name] for name in (first, second))
        if operation == "/" and left % right:
            return None
        result = OPERATIONS[operation](left, right) + (slip if i == at else 0)
        if result < 1:
            return None
        known[RESULTS[i]] = result
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
        "*": [
            left,
            -left,
            right,
            -right,
            left + right - step.result,
        ],  # a row up or down in the times table, or a sum
        "/": [2, -2],
    }[step.operation]
    return [by for by in dict.fromkeys([1, -1, *offsets]) if by]
