"""Docstrings: which parameter is next, told by Python's own parser."""

import ast
import re

from headwise.tasks import task


def taken_apart(prompt):
    """Parameters of the signature and parameters already documented."""
    function = ast.parse(prompt + ' x"""\n').body[0]
    parameters = [argument.arg for argument in function.args.args]
    documented = re.findall(r":param (\w+):", prompt)
    assert parameters[0] == "self"
    return parameters[1:], documented


def test_the_target_is_the_first_parameter_that_is_not_documented():
    for e in task("docstring", 150):
        parameters, documented = taken_apart(e.prompt)
        assert parameters[: len(documented)] == documented
        assert e.target == f" {parameters[len(documented)]}"
        assert sorted(e.foils) == sorted(f" {p}" for p in parameters if f" {p}" != e.target)
        assert e.label == f"{len(documented)} documented"


def test_the_counterfactual_asks_for_a_foil():
    for e in task("docstring", 150):
        parameters, documented = taken_apart(e.counterfactual)
        assert parameters[: len(documented)] == documented
        assert f" {parameters[len(documented)]}" in e.foils
        assert e.counterfactual.split("\n")[1:] == e.prompt.split("\n")[1:]


def test_one_to_three_parameters_are_documented_and_two_or_more_are_left():
    seen = set()
    for e in task("docstring", 150):
        parameters, documented = taken_apart(e.prompt)
        seen.add(len(documented))
        assert len(parameters) - len(documented) >= 2
    assert seen == {1, 2, 3}
