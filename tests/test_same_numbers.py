"""The comparison of two checkouts' numbers can fail: a moved NaN, a missing column or row, another number or text."""

from __future__ import annotations

import importlib
import json
import re

import numpy as np
import pytest

from helpers import REPOSITORY

pytestmark = pytest.mark.usefixtures("benchmarks_on_path")


def job(name="score/a", **about):
    return {"id": name, "precision": "float64", "status": "done", "said": "", "seconds": 0.0, **about}


def arrays(**changed):
    given = {
        "table/#columns": np.array(["layer", "score", "p"]),
        "table/layer": np.array([0, 1, 2]),
        "table/score": np.array([0.5, np.nan, -2.0]),
        "table/p": np.array([0.25, 0.5, 1.0]),
        "texts": np.array(["a cat", "∅"]),
    }
    return {name: array for name, array in {**given, **changed}.items() if array is not None}


@pytest.fixture
def compared(tmp_path):
    """Verdicts on an old and a new folder with one job each."""

    def write(folder, of_job, of_arrays):
        folder.mkdir(exist_ok=True)
        (folder / "jobs-1.json").write_text(json.dumps([of_job] if of_job else []))
        named = {f"{of_job['id']}|{name}": array for name, array in of_arrays.items()} if of_job else {}
        np.savez(folder / "score a.npz", **named)

    def compare(new, old=None, new_job=None, old_job=None, accepted=()):
        write(tmp_path / "old", old_job or job(), arrays() if old is None else old)
        write(tmp_path / "new", job() if new_job is None else new_job, new)
        return importlib.import_module("same_numbers.compare").compare(
            tmp_path / "old", tmp_path / "new", list(accepted)
        )

    return compare


def test_equal_results_are_identical_whatever_type_whole_numbers_have(compared):
    (verdict,) = compared(arrays(**{"table/layer": np.array([0.0, 1.0, 2.0])}))
    assert (verdict.status, verdict.gap, verdict.fails) == ("identical", 0.0, False)


@pytest.mark.parametrize(
    ("precision", "gap", "status"),
    [
        ("float64", 5e-10, "within tolerance"),
        ("float64", 5e-9, "DIFFERS"),
        ("float32", 5e-5, "within tolerance"),
        ("float32", 5e-4, "DIFFERS"),
        ("fit", 5e-4, "within tolerance"),
        ("fit", 5e-3, "DIFFERS"),
    ],
)
def test_numbers_may_differ_by_a_share_of_the_columns_largest_value(compared, precision, gap, status):
    changed = arrays(**{"table/score": np.array([0.5 + 2 * gap, np.nan, -2.0])})
    (verdict,) = compared(changed, new_job=job(precision=precision), old_job=job(precision=precision))
    assert verdict.status == status
    assert verdict.gap == pytest.approx(gap, rel=1e-3)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"table/score": np.array([np.nan, 0.5, -2.0])}, "NaN in 1 places instead of 1, or elsewhere"),
        ({"table/score": np.array([0.5, 0.0, -2.0])}, "NaN in 0 places instead of 1"),
        ({"table/score": np.array([0.5, np.nan, np.inf])}, "infinite"),
        ({"table/score": None}, "table/score: is missing"),
        ({"table/more": np.zeros(3)}, "table/more: is new"),
        ({"table/score": np.array([0.5, np.nan])}, "shape (2,) instead of (3,)"),
        ({"table/#columns": np.array(["score", "layer", "p"])}, "2 of 3 differ"),
        ({"table/layer": np.array(["0", "1", "2"])}, "instead of int64"),
        ({"texts": np.array(["a dog", "∅"])}, "'a dog'"),
        ({"table/p": np.array([0.25, 0.53, 1.0])}, "table/p: differs"),
    ],
)
def test_columns_rows_types_texts_and_the_places_of_nan_must_be_the_same(compared, changed, said):
    (verdict,) = compared(arrays(**changed))
    assert verdict.fails
    assert said in verdict.said


def test_p_values_may_move_a_step_only_where_scores_are_rounded_otherwise(compared):
    moved = {"table/p": np.array([0.25, 0.53, 1.0])}
    rounded = {"table/score": np.array([0.5 + 1e-12, np.nan, -2.0])}
    assert compared(arrays(**moved))[0].fails
    assert compared(arrays(**moved, **rounded))[0].status == "within tolerance"
    far = {"table/p": np.array([0.25, 0.7, 1.0])}
    assert compared(arrays(**far, **rounded))[0].fails


def test_a_job_that_only_one_checkout_has_is_missing_or_new(compared):
    gone, added = compared(arrays(), new_job=job("score/b"))
    assert (gone.job, gone.status, gone.fails) == ("score/a", "missing", True)
    assert (added.job, added.status, added.fails) == ("score/b", "new", False)


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("the metric 'kl' has no gradient", "the metric 'kl' has no gradient", "identical"),
        ("the metric 'kl' has no gradient", "'kl' has no gradient; choose logprob", "within tolerance"),
        ("the metric 'kl' has no gradient", "resample needs examples of equal length", "DIFFERS"),
    ],
)
def test_what_one_checkout_refuses_the_other_must_refuse_for_the_same_reason(compared, old, new, status):
    refused = [job(status="refused", said=said) for said in (old, new)]
    assert compared({}, old={}, old_job=refused[0], new_job=refused[1])[0].status == status
    assert compared(arrays(), old={}, old_job=refused[0])[0].status == "DIFFERS"
    assert compared({}, new_job=refused[1])[0].status == "DIFFERS"


def test_a_crash_is_a_failure_even_where_the_old_checkout_crashed_too(compared):
    crashed = job(status="crashed", said="KeyError: 1")
    assert compared({}, old={}, old_job=crashed, new_job=crashed)[0].fails


def test_a_declared_difference_is_accepted_for_its_jobs_and_arrays_alone(compared):
    changed = arrays(**{"table/score": np.array([9.0, np.nan, -2.0])})
    whole = {"jobs": "score/*", "reason": "another formula"}
    assert [v.said for v in compared(changed, accepted=[whole])] == ["another formula"]
    assert compared(changed, accepted=[{**whole, "arrays": "table/score"}])[0].status == "accepted"
    assert compared(changed, accepted=[{**whole, "arrays": "table/p"}])[0].fails
    assert compared(changed, accepted=[{**whole, "jobs": "sweep/*"}])[0].fails
    assert compared(arrays(), accepted=[whole])[0].status == "identical"


def test_lists_may_grow_and_nothing_else(compared):
    old, more = {"row/a": np.array(["x=1"])}, {"row/b": np.array(["x=2"])}
    for name, fails in (("list/methods", False), ("score/a", True)):
        (verdict,) = compared({**old, **more}, old=old, old_job=job(name), new_job=job(name))
        assert verdict.fails is fails
    assert compared(more, old=old, old_job=job("list/methods"), new_job=job("list/methods"))[0].fails


def test_greedy_text_may_part_at_a_tie_and_nowhere_else(compared):
    def written(first, margin):
        return {
            "tokens": np.array([first, 5, 6, 7]),
            "lengths": np.array([[2, 2]]),
            "finished": np.array([[False, False]]),
            "texts": np.array([f"{first} 5", "6 7"]),
            "margins": np.array([margin, 1.0, 1.0, 1.0]),
        }

    assert compared(written(4, 1e-8), old=written(3, 1e-8))[0].status == "identical"
    assert compared(written(4, 0.5), old=written(3, 0.5))[0].fails
    assert compared({**written(4, 1e-8), "texts": np.array(["4 5", "6 8"])}, old=written(3, 1e-8))[0].fails


def test_every_study_has_small_settings_in_the_catalogue():
    from headwise.studies.base import studies

    assert set(importlib.import_module("same_numbers.catalogue").STUDIES) == set(studies())


def test_the_catalogue_has_every_method_reference_and_metric_and_no_name_twice():
    catalogue = importlib.import_module("same_numbers.catalogue")
    listed = {
        "methods": [{"method": name} for name in ("one", "two")],
        "metrics": [{"metric": name, "from": "logits"} for name in ("kl", "logprob")]
        + [{"metric": "bleu", "from": "text"}],
        "tasks": [{"task": "ioi", "options": "pattern: ABB, BAB"}],
        "studies": [{"study": "score"}],
    }
    names = [job.id for job in catalogue.all_jobs(listed, ["zero", "odd"])]
    assert len(names) == len(set(names))
    models = importlib.import_module("same_numbers.files").MODELS
    assert len(models) == 17
    for family, dtype in models:
        for method in ("one", "two"):
            for reference in ("zero", "odd"):
                where = f"score/{family}-{dtype}/{method}/{reference}"
                assert f"{where}/logprob" in names
                assert (f"{where}/kl" in names) == (dtype == "float64" or family == "mixtral")
    assert {"text/bleu", "tasks/ioi/pattern=BAB", "study/score/llama-float64"} <= set(names)


def test_every_planted_fault_fits_the_source_once():
    faults = importlib.import_module("same_numbers.faults").FAULTS
    assert len(faults) == 10
    texts = [file.read_text(encoding="utf-8") for file in sorted((REPOSITORY / "src").rglob("*.py"))]
    for fault in faults:
        pattern = re.compile(fault.pattern, re.MULTILINE)
        places = [pattern.sub(fault.replacement, text) != text for text in texts if pattern.search(text)]
        assert places == [True], f"{fault.name}: write its pattern anew, the code has moved on"
