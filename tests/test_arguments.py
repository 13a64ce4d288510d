"""Arguments of Python calls: a wrong type or a number out of range is refused in a sentence that names it."""

from __future__ import annotations

import inspect
import math
from operator import attrgetter

import numpy as np
import pytest

import headwise as hw
from headwise.arguments import Arguments, checked
from headwise.errors import HeadwiseError
from helpers import word_task

NOT_WHOLE = (0, -1, 1.5, math.nan, "x", True, [3])
NOT_SEEDS = (-1, 1.5, math.nan, "x", None, [3], 10**30)
NOT_BOOLS = (1, 0, "False", "x", [])
CASES = {
    "batch_tokens": NOT_WHOLE,
    "seed": NOT_SEEDS,
    "model": ("smollm2", None, 3),
    "reference_task": (3, "ioi"),
    "metric": (3, ["logprob"]),
    "progress": (3, "yes"),
    "max_new_tokens": (*NOT_WHOLE, None),
    "temperature": (-1, math.nan, math.inf, "x", None),
    "top_p": (0, 1.5, math.nan, "x", None),
    "chat": NOT_BOOLS,
    "maps": NOT_BOOLS,
    "trust_remote_code": NOT_BOOLS,
    "truncate": NOT_BOOLS,
    "compile": NOT_BOOLS,
    "bos": NOT_BOOLS,
    "revision": (3, [], b"x"),
    "name": (3, []),
    "draws": (*NOT_WHOLE, None),
    "points": (*NOT_WHOLE, None),
    "control_points": (*NOT_WHOLE, None),
    "threshold": ("x", None, math.nan),
    "examples": (*NOT_WHOLE, None),
    "precision": (0, -1, math.nan, "x"),
    "queries": (1.5, "x", None, [None]),
    "keys": (1.5, "x", None, [None]),
    "tokens": (3, "x"),
}
CALLS = (
    "load task score measure sweep generate attention card edges interactions patch compare sweep.mib".split()
)


@pytest.mark.parametrize("call", CALLS)
def test_values_that_cannot_be_meant_are_refused_before_anything_is_computed(call, tiny):
    parameters = inspect.signature(attrgetter(call)(hw)).parameters
    needed = {"model": tiny, "source": tiny.hf, "scores": []}
    required = [
        one for one in parameters.values() if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]
    given = {one.name: needed.get(one.name) for one in required}
    ran = []
    inner = checked.__wrapped__(wrapped(attrgetter(call)(hw), ran))
    names = [name for name in CASES if name in parameters]
    assert names
    for name in names:
        for value in CASES[name]:
            if value is None and parameters[name].default is None:
                continue
            with pytest.raises(HeadwiseError, match=r"expected|cannot be used|has \d+ bits"):
                inner(**{**given, name: value})
    assert not ran
    inner(**given)
    assert ran, "the call itself is reached with proper arguments"


def wrapped(call, ran):
    """A call with the signature of another, that notes that it was reached."""

    def note(*args, **options):
        ran.append((args, options))

    note.__signature__ = inspect.signature(call)
    return note


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m, t: hw.score("smollm2", t), r"'smollm2' was given; expected a loaded model"),
        (lambda m, t: hw.generate(m, "the cat", seed=-1), "seed is -1; expected at least 0"),
        (lambda m, t: hw.generate(m, [None]), "prompt 1 is a NoneType"),
        (lambda m, t: hw.generate(m, [[True]]), "prompt 1 is a list"),
        (lambda m, t: hw.generate(m, "the cat", stop=3), "3 was given"),
        (lambda m, t: hw.generate(m, "the cat", stop=[3]), r"stop is \[3\]"),
        (lambda m, t: hw.generate(m, "the cat", gates=[[True]]), r"shape \(1, 1\) do not fit"),
        (lambda m, t: hw.attention(m, [None]), r"prompt 1 is None; give texts"),
        (lambda m, t: hw.patch(m, "the cat", "the dog", "L0H0", positions=1.5), "positions is 1.5"),
        (lambda m, t: hw.patch(m, 3, "the dog", "L0H0"), "3 was given"),
        (lambda m, t: hw.edges(m, t, into=[3]), "3"),
        (lambda m, t: hw.compare(3), "3 was given"),
        (lambda m, t: hw.compare(["a", "b"]), "a is not a run"),
        (lambda m, t: hw.sweep(m, t, ["L0H0"], controls=3), "3 was given"),
        (lambda m, t: hw.measure(m, t, ablate="L0H0", seed=-1), "seed is -1"),
        (lambda m, t: hw.measure(m, t, ablate="L0H0", reference_task=3), "expected a task"),
        (lambda m, t: hw.run("score", "a\0b", models=["x"], tasks=["ioi"]), "'a.x00b' cannot be used"),
        (lambda m, t: hw.run("a\0b", "out"), "unknown study"),
        (lambda m, t: hw.run(["score"], "out"), "setting 'name'"),
        (lambda m, t: hw.open_run("a\0b"), "cannot be used"),
        (lambda m, t: hw.open_run(3), "cannot be used"),
        (lambda m, t: hw.card(m, "L0H0", t, run=3), "cannot be used"),
        (lambda m, t: hw.load("a\0b"), "cannot be used"),
        (lambda m, t: hw.load(3), "cannot be used"),
        (lambda m, t: hw.load(m.hf, tokenizer=3), "the tokenizer cannot read"),
        (lambda m, t: hw.load("smollm2", dtype=["float32"]), "unknown dtype"),
        (lambda m, t: hw.load("smollm2", device=1.5), "unknown device"),
        (lambda m, t: hw.task("ioi", 4, seed="x"), "setting 'seed' is 'x'; expected a whole number"),
        (lambda m, t: hw.task("ioi", 4, model="smollm2"), "expected a loaded model"),
        (lambda m, t: hw.Example(3, " a"), "prompt of an example is 3; expected text"),
        (lambda m, t: hw.Example("p", " a", counterfactual=3), "counterfactual of an example is 3"),
        (lambda m, t: hw.Example("p", " a", spans=3), "spans of an example are 3"),
        (lambda m, t: hw.Task("t", (3,)), "expected examples"),
    ],
)
def test_mistakes_of_callers_are_named(wrong, message, tiny):
    with pytest.raises(HeadwiseError, match=message):
        wrong(tiny, word_task(4))


def test_a_foil_may_be_a_plain_text():
    assert hw.Example("p", " a", "b") == hw.Example("p", " a", ("b",))


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40])
def test_the_smallest_temperatures_write_the_text_of_greedy_decoding(tiny, temperature):
    warm, greedy = (
        hw.generate(tiny, "the cat saw", temperature=t, max_new_tokens=5, progress=False)
        for t in (temperature, 0)
    )
    assert warm.tokens == greedy.tokens


def test_numbers_of_numpy_are_numbers_and_one_position_is_one(tiny):
    result = hw.attention(tiny, "the cat saw", "L0H0", queries=np.int64(1), keys=np.array([0, 2]))
    other = hw.attention(tiny, "the cat saw", "L0H0", queries=(1,), keys=(0, 2))
    assert np.array_equal(result.rows, other.rows)
    assert np.array_equal(result.columns, other.columns)


def test_every_public_function_has_its_arguments_checked_and_keeps_its_help():
    for name in CALLS:
        call = attrgetter(name)(hw)
        assert call is attrgetter(name)(hw)
        assert call.__wrapped__.__doc__ == call.__doc__
        assert set(inspect.signature(call).parameters) & set(Arguments.model_fields)


def test_an_option_is_named_as_the_place_takes_it():
    import torch

    from headwise.errors import command_line
    from headwise.sparsify.data import Pool

    empty = torch.zeros((0, 4), dtype=torch.long)
    with pytest.raises(HeadwiseError, match="give text=, or sample="):
        Pool(empty, empty, 2, 0.5, 0)
    with command_line(), pytest.raises(HeadwiseError, match="give --text, or --sample"):
        Pool(empty, empty, 2, 0.5, 0)
