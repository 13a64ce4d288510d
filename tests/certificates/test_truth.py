"""A certificate of a circuit that was made by hand is right, and so are those of the same circuit broken."""

from __future__ import annotations

import importlib
import json

import pytest

from helpers import REPOSITORY


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_true_circuit_is_certified_and_no_broken_one_is(family, monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    truth = importlib.import_module("certificates")
    made = truth.planted(family, 1)
    found = {case[0]: truth.judged(made.model, case) for case in truth.cases(made, 160, random_sets=1)}
    assert set(found) == {truth.WHOLE, *truth.BROKEN, *truth.FALSE}
    assert found[truth.WHOLE]["verdict"] == "certified"
    added = found[truth.PASSENGERS]
    assert added["verdict"] == "certified with limits"
    assert set(added["added"]) == set(added["passengers"])
    assert found["true, 8 examples"]["verdict"] == "undecided"
    assert found["two errors that cancel"]["states"]["1"] != "fail"  # the mean alone does not tell
    rejected = [kind for kind, row in found.items() if row["verdict"] == "rejected"]
    assert set(rejected) == {*truth.BROKEN, *truth.FALSE} - {truth.PASSENGERS, "true, 8 examples"}


def test_the_page_is_what_the_script_writes_from_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    truth = importlib.import_module("certificates")
    result = json.loads((truth.RESULTS / "certificates.json").read_text(encoding="utf-8"))
    assert truth.PAGE.read_text(encoding="utf-8") == truth.page(result)
    counted = [row for row in result["cases"] if row["kind"] == truth.FALSE[0]]
    assert len(counted) >= 200
    assert sum(row["verdict"].startswith("certified") for row in counted) * 100 <= len(counted)
