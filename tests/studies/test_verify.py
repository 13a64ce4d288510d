"""A run is verified by computing some of its cells again."""

from __future__ import annotations

import shutil

import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.model.tiny import tiny_model
from headwise.runs import CellResult, CellStore, read_info
from headwise.studies.verify import summary, verify
from headwise.studies.workbench import Workbench


@pytest.fixture(scope="module")
def bench(word_tokenizer):
    made = Workbench(progress=False)
    tiny = tiny_model("llama", vocab_size=len(word_tokenizer), max_position_embeddings=512)
    made.add(hw.load(tiny, tokenizer=word_tokenizer, name="tiny"))
    return made


@pytest.fixture(scope="module")
def finished(bench, tmp_path_factory):
    data = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    data.write_text('{"prompt": "the cat", "target": " sat"}\n{"prompt": "a dog", "target": " ran"}\n')
    out = tmp_path_factory.mktemp("runs") / "run"
    hw.run(
        "score",
        out,
        workbench=bench,
        models=["tiny"],
        tasks=[str(data)],
        methods=["ablation", "attribution", "random"],
        n=2,
    )
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def changed(run, change):
    """One stored number is changed, as a faulty machine or a careless hand would."""
    with CellStore(run / "cells.sqlite") as store:
        for key in store.keys():  # noqa: SIM118 - a store is no mapping
            cell, result = store.cell(key), store.get(key)
            if cell.part == "ablation":
                scores = result.tables["scores"].copy()
                scores.loc[3, "score"] = change(scores.loc[3, "score"])
                store.put(cell, CellResult({**result.tables, "scores": scores}, result.notes))


def test_cells_of_a_good_run_come_out_identical_and_the_run_is_not_touched(run, bench):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    results = verify(run, cells=3, workbench=bench)
    assert [one.said for one in results] == ["identical"] * 3
    assert summary(results) == "3 of 3 cells came out the same"
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_changed_number_is_found_and_named(run, bench):
    changed(run, lambda score: score + 1)
    results = verify(run, cells=3, workbench=bench)
    (bad,) = [one for one in results if not one.same]
    assert bad.label.startswith("ablation on")
    assert "scores.score differs by" in bad.said


def test_rounding_is_no_difference_but_is_said(run, bench):
    changed(run, lambda score: score * (1 + 1e-6))
    results = verify(run, cells=3, workbench=bench)
    assert all(one.same for one in results)
    assert any("the same to" in one.said for one in results)


def test_another_model_or_an_unfinished_run_is_refused(run, word_tokenizer):
    other = Workbench(progress=False)
    tiny = tiny_model("llama", vocab_size=len(word_tokenizer), max_position_embeddings=512, seed=5)
    other.add(hw.load(tiny, tokenizer=word_tokenizer, name="tiny"))
    with pytest.raises(HeadwiseError, match="is not the one of the run"):
        verify(run, workbench=other)
    info = (run / "run.json").read_text().replace('"status": "done"', '"status": "interrupted"')
    (run / "run.json").write_text(info)
    with pytest.raises(HeadwiseError, match="finish it first"):
        verify(run, workbench=other)


@pytest.mark.parametrize("batch_tokens", [16, 64, 100_000])
def test_other_batch_sizes_stay_within_the_tolerance_of_verify(bench, finished, tmp_path, batch_tokens):
    model = bench.model("tiny")
    usual = model.batch_tokens
    model.batch_tokens = batch_tokens
    try:
        results = verify(finished, cells=3, workbench=bench)
    finally:
        model.batch_tokens = usual
    assert all(one.same for one in results), [one.said for one in results]


def test_the_same_run_in_two_folders_gives_the_same_bytes(bench, finished, tmp_path):
    settings = read_info(finished)["settings"]
    again = hw.run("score", tmp_path / "again", workbench=bench, progress=False, **settings)
    for table in (finished / "tables").iterdir():
        assert (again.path / "tables" / table.name).read_bytes() == table.read_bytes(), table.name
