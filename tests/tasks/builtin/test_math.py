"""Arithmetic with its working: every line is worked out again, by Python's parser and by fractions."""

import ast
import operator
import re
from collections import Counter
from fractions import Fraction

import pytest

from headwise.tasks import task
from headwise.tasks.builtin.arithmetic import slipped, work

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value(expression):
    def walk(node):
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        assert isinstance(node, ast.Constant)
        return Fraction(node.value)

    return walk(ast.parse(expression.strip(), mode="eval").body)


def equations(solution):
    return [line.split("=") for line in re.split(r"[\n,]", solution) if "=" in line]


def final(solution):
    return int(re.findall(r"\d+", solution)[-1])


@pytest.mark.parametrize("length", ["worked", "short"])
def test_every_step_of_the_target_is_true_and_the_last_answers_the_problem(length):
    for e in task("math", 300, length=length):
        problem = re.fullmatch(r"Problem: (.+)\nSolution:", e.prompt)[1]
        assert value(problem) == final(e.target)
        for left, right in equations(e.target):
            assert value(left) == int(right)
        assert e.label.split()[0] == str(len(equations(e.target)))


@pytest.mark.parametrize("length", ["worked", "short"])
def test_a_foil_has_one_slip_and_ends_in_a_wrong_answer(length):
    for e in task("math", 300, length=length):
        assert len(e.foils) == 3
        for foil in e.foils:
            false = [left for left, right in equations(foil) if value(left) != int(right)]
            assert len(false) == 1
            assert final(foil) != final(e.target)
            assert final(foil) == int(equations(foil)[-1][1])


def test_short_solutions_have_at_most_twenty_characters_and_so_twenty_single_digit_tokens():
    for e in task("math", 500, length="short"):
        for solution in (e.target, *e.foils):
            assert len(solution) <= 20
            # A space, a digit or a sign, each a token of its own, is the most a tokenizer can make of it.
            assert len(re.findall(r"\d|[^\d]", solution)) <= 20


@pytest.mark.bundled
def test_short_solutions_have_at_most_twenty_tokens_of_the_bundled_model(smollm2_tokens):
    for e in task("math", 200, length="short", tokens=smollm2_tokens):
        for solution in (e.target, *e.foils):
            assert len(smollm2_tokens(e.prompt + solution)) - len(smollm2_tokens(e.prompt)) <= 20


def test_one_two_and_three_steps_with_every_operation_occur():
    many = task("math", 600)
    assert set(Counter(e.label for e in many)) == {"1 step", "2 steps", "3 steps"}
    for operation in "+-*/":
        assert sum(f" {operation} " in e.prompt for e in many) > 30


def test_a_calculation_that_leaves_the_positive_whole_numbers_is_none():
    assert work(["a - b"], {"a": 3, "b": 3}) is None
    assert work(["a / b"], {"a": 7, "b": 2}) is None
    assert [s.result for s in work(["a / b", "P - 1"], {"a": 8, "b": 2})] == [4, 3]


def test_slips_that_cancel_out_are_not_slips():
    # Off by ten in a dividend can still come out even, and then the result differs; it never stays the same.
    right = work(["a + b", "P / c"], {"a": 12, "b": 8, "c": 2})[-1].result
    assert right == 10
    wrong = slipped(["a + b", "P / c"], {"a": 12, "b": 8, "c": 2})
    assert wrong
    assert right not in {steps[-1].result for steps in wrong}
