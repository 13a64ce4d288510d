"""`hw.register`: decorators that make a task, metric, reference, method or study known by name."""

from __future__ import annotations

import contextlib
import importlib
import sys

import numpy as np
import pytest

import headwise as hw
from headwise.charts.section import SECTIONS
from headwise.errors import HeadwiseError
from headwise.metrics.logits import METRICS
from headwise.model.measure.references import REFERENCES
from headwise.scores.registry import METHODS
from headwise.studies.base import STUDIES
from headwise.studies.settings.shared import StudySettings
from headwise.tasks.registry import FAMILIES
from helpers import WORDS, word_task


@pytest.fixture(autouse=True)
def restored():
    with contextlib.ExitStack() as stack:
        for registry in (FAMILIES, METRICS, METHODS, REFERENCES, SECTIONS, STUDIES):
            stack.enter_context(registry.restored())
        yield


def test_each_decorator_makes_its_kind_known_by_name(tiny):
    @hw.register.task("echo", metric="logprob", about="say the word again")
    def echo(draw):
        words = draw.sample(WORDS, 3)
        return hw.Example(" ".join(words), f" {words[-1]}")

    @hw.register.metric("first_logit", needs="target", about="logit of the first target token")
    def first_logit(scored):
        return scored.logits[:, 0].gather(1, scored.tokens[:, :1])[:, 0]

    @hw.register.method("ones", about="every head scores 1")
    def every_one(setup):
        return np.ones((len(setup.task), *setup.model.shape))

    @hw.register.reference("nothing")
    def nothing(source):
        return None

    task = hw.task("echo", 4)
    assert hw.score(tiny, task, "ones")["L0H0"] == 1
    measured = hw.measure(tiny, task, ablate="L1H1", metric="first_logit", reference="nothing")
    zero = hw.measure(tiny, task, ablate="L1H1", metric="first_logit", reference="zero")
    np.testing.assert_array_equal(measured.values, zero.values)
    assert measured.metric == "first_logit"


def test_a_function_becomes_a_study_under_its_name():
    @hw.register.study(question="Which heads are mine?", settings=StudySettings)
    def mine(run, s):
        run.say("all of them")

    registered = STUDIES.get("mine")
    assert (registered.body, registered.question, registered.section) == (mine, "Which heads are mine?", None)


def test_a_list_of_examples_and_a_text_metric_have_decorators_too():
    @hw.register.task_list("fixed", metric="logprob", about="three sentences")
    def fixed():
        return word_task(3).examples

    assert len(hw.task("fixed", 3)) == 3
    assert callable(hw.register.text_metric)


def test_a_metric_that_does_not_give_one_number_per_row_is_refused_with_its_shape(tiny):
    @hw.register.metric("whole_rows", needs="target", about="forgets to choose a token")
    def whole_rows(scored):
        return scored.logits[:, 0]

    task = word_task(3)
    with pytest.raises(
        HeadwiseError, match=r"'whole_rows' returned a tensor of shape .* expected one number per row"
    ):
        hw.measure(tiny, task, metric="whole_rows")
    with pytest.raises(HeadwiseError, match="'targets'; did you mean 'target'"):
        hw.register.metric("misspelt", needs="targets", about="no such rows")


def test_a_method_without_a_value_per_example_is_refused_with_its_shape(tiny):
    @hw.register.method("means", about="forgets the examples")
    def means(setup):
        return np.ones(setup.model.shape)

    with pytest.raises(
        HeadwiseError, match=r"'means' returned an array of shape \[4, 4\]; expected \[3, 4, 4\]"
    ):
        hw.score(tiny, word_task(3), "means")


def test_a_misspelt_argument_of_score_is_recognised_beside_the_methods_own_options(tiny):
    with pytest.raises(HeadwiseError, match="did you mean 'reference'"):
        hw.score(tiny, word_task(3), "ablation", refrence="mean")


def test_a_name_is_looked_for_in_the_module_of_that_name_before_all_others_are_imported(
    tmp_path, monkeypatch
):
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "__init__.py").write_text(
        "from headwise.registry import Registry\nBOXES = Registry('box', 'shelf.*')\n"
    )
    for name in ("one", "two"):
        lines = f"from shelf import BOXES\nBOXES.add('{name}', 0)\nBOXES.add('half of {name}', 0)\n"
        (tmp_path / "shelf" / f"{name}.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    boxes = importlib.import_module("shelf").BOXES
    assert boxes.get("one") == 0
    assert "shelf.one" in sys.modules
    assert "shelf.two" not in sys.modules
    assert boxes.get("half of two") == 0
    with pytest.raises(HeadwiseError, match="unknown box 'three'"):
        boxes.get("three")
