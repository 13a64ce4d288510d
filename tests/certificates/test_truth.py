"""A certificate of a circuit that was made by hand is right, and so are those of the same circuit broken."""

from __future__ import annotations

import importlib

import pytest

from helpers import REPOSITORY


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_true_circuit_is_certified_and_no_broken_one_is(family, monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    truth = importlib.import_module("certificates")
    made = truth.planted(family, 1)
    found = {case[0]: truth.judged(made, case) for case in truth.cases(made, 160, random_sets=1)}
    assert set(found) == {truth.WHOLE, *truth.BROKEN, *truth.FALSE}
    assert found[truth.WHOLE]["verdict"] == "certified"
    added = found[truth.PASSENGERS]
    assert added["verdict"] == "certified with limits"
    assert set(added["added"]) == set(added["passengers"])
    assert found["true, 8 examples"]["verdict"] == "undecided"
    assert found["two errors that cancel"]["states"]["1"] != "fail"  # the mean alone does not tell
    rejected = [kind for kind, row in found.items() if row["verdict"] == "rejected"]
    assert set(rejected) == {*truth.BROKEN, *truth.FALSE} - {truth.PASSENGERS, "true, 8 examples"}
