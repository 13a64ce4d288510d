"""Steps: what makes two calls the same, and what a call may depend on."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.heads import Head, Scores
from headwise.runs import Job, step
from headwise.tasks import Example, Task


@step(version=3, cost=lambda n, **_: 2 * n, label="{name} of {n}")
def measure(job: Job, name: str, n: int = 64, options: Any = None) -> int:
    job.advance(n)
    return n


@dataclass(frozen=True)
class Case:
    """Arguments that belong together."""

    seed: int
    heads: tuple[Head, ...] = ()
    display_name: str = field(default="", compare=False)


class Modelled:
    """Says itself what the key of a step says of it, as a model does."""

    def __init__(self, *key: str) -> None:
        self.step_key = key


def key(n: int = 64, **options: Any) -> str:
    return measure("ablation", n, options).key


def test_the_key_is_the_hash_of_name_version_and_arguments_as_canonical_json() -> None:
    arguments = '{"n":64,"name":"ablation","options":{"seed":0}}'
    text = f'{{"arguments":{arguments},"step":"{__name__}.measure","version":3}}'
    call = measure("ablation", options={"seed": 0})
    assert call.text == text
    assert call.key == hashlib.sha256(text.encode()).hexdigest()
    assert (call.label, call.cost) == ("ablation of 64", 128)


def test_defaults_the_order_of_options_and_numpy_numbers_do_not_matter() -> None:
    assert key(a=1, b=2) == key(b=2, a=1)
    assert key(n=64) == key() == key(n=np.int64(64))
    assert key(rate=np.float64(0.1)) == key(rate=0.1)
    assert key(options={"y": 1, "x": 2}) == key(options={"x": 2, "y": 1})
    assert key(case=Case(1, display_name="one")) == key(case=Case(1, display_name="two"))


def scores(values: np.ndarray, **columns: Any) -> Scores:
    return Scores.from_examples(values, model="m", task="t", method="ablation", **columns)


TASK = Task("words", (Example("a", " b"), Example("c", " d", spans={"all": (0, 1)})))
ONES = np.ones((2, 2, 2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, "1"),
        (0, None),
        ((1, 2), (2, 1)),
        (np.zeros(3), np.zeros(4)),
        (np.zeros(3), np.zeros(3, dtype=np.float32)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.array(["a", "b"], dtype=object), np.array(["a", "c"], dtype=object)),
        (pd.DataFrame({"x": [1]}), pd.DataFrame({"x": [2]})),
        (pd.DataFrame({"x": [1]}), pd.DataFrame({"y": [1]})),
        (Case(1), Case(2)),
        (Case(1), Case(1, (Head(0, 1),))),
        (Modelled("m", "weights"), Modelled("m", "others")),
        (TASK, TASK.take([0])),
        (TASK.take([0]), Task("words", (Example("a", " b"),), numbers=(1,))),
        (TASK, Task("other", TASK.examples)),
        (scores(ONES), scores(2 * ONES)),
        (scores(ONES), scores(ONES, groups=("a", "a"))),
        (float("nan"), float("inf")),
    ],
)
def test_anything_that_differs_makes_another_call(one: Any, other: Any) -> None:
    assert key(value=one) != key(value=other)
    assert key(value=one) == key(value=one)


def test_the_rows_that_a_result_took_are_no_part_of_the_key() -> None:
    assert key(scores=scores(ONES, details={"rows": 1})) == key(scores=scores(ONES, details={"rows": 2}))


def test_the_version_may_depend_on_the_arguments() -> None:
    versions = {"a": 1, "b": 2}

    @step(version=lambda name, **_: versions[name])
    def ranked(job: Job, name: str, n: int = 1) -> None: ...

    before = ranked("a").key
    versions["b"] = 3
    assert ranked("a").key == before
    versions["a"] = 2
    assert ranked("a").key != before


@pytest.mark.parametrize("value", [lambda: 1, object(), {1, 2}, sys])
def test_what_cannot_be_told_from_another_is_refused_with_the_name_of_the_step(value: Any) -> None:
    with pytest.raises(HeadwiseError, match=r"argument of the step '.*measure'.*cannot be stored or told"):
        key(value=value)


def test_a_call_does_not_change_with_what_the_caller_does_later_once_its_key_is_known() -> None:
    heads = [1, 2]
    call = measure("ablation", options=heads)
    before = call.key
    heads.append(3)
    assert call.key == before


def test_a_step_names_all_of_its_arguments() -> None:
    with pytest.raises(TypeError, match="must name all of its arguments"):

        @step()
        def wide(job: Job, **options: Any) -> None: ...


def test_a_step_computes_with_a_job_and_reports_its_progress() -> None:
    done: list[int] = []
    assert measure("ablation", 5).compute(Job(done.append)) == 5
    assert done == [5]
    assert measure("ablation", 5).compute(Job()) == 5


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'pandas', 'pyarrow', 'rich', 'filelock', 'torch'}"
    program = f"import sys, headwise.runs; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
