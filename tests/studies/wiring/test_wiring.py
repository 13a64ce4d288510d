"""The study `wiring` on planted models."""

from __future__ import annotations

import pytest

import headwise as hw
from headwise.report import write_report
from headwise.runs import read_table
from headwise.runs.store.store import CellStore
from headwise.stats import smallest_p
from headwise.studies.wiring.settings import WiringSettings
from helpers import run_on
from planted import DENSE, SPARSE, planted_model, told_apart, written


@pytest.fixture(scope="module")
def run(tmp_path_factory, word_tokenizer):
    folder = tmp_path_factory.mktemp("wiring")
    models = [
        planted_model(word_tokenizer, heads, name) for heads, name in ((DENSE, "dense"), (SPARSE, "sparse"))
    ]
    task = told_apart(models, 16)
    file = written(task, folder / "apart.jsonl")
    settings = {"tasks": [file], "n": 16, "heads": 6, "points": 8}
    made = run_on("wiring", folder / "run", *models, **settings)
    return folder, models, task, file, made, settings


def test_edges_of_heads_that_write_nothing_are_exactly_0(run):
    edges = read_table(run[0] / "run", "edges")
    silent = edges[(edges["model"] == "dense") & ~edges["sender"].isin(DENSE)]
    assert (silent["score"] == 0).all()
    assert set(edges["slot"]) <= {"Q", "K", "V", "logits"}


def test_edges_of_the_study_are_those_of_the_call_on_the_held_out_half(run):
    folder, models, task, _, _, _ = run
    edges = read_table(folder / "run", "edges")
    row = edges[(edges["model"] == "dense") & (edges["receiver"] == "logits")].iloc[0]
    how = {"into": "logits", "out_of": row["sender"], "reference_task": task}  # the mean is over both halves
    again = hw.edges(models[0], task.halves()[1], **how, progress=False)
    assert again.values[0] == pytest.approx(row["score"], abs=1e-5)


def test_figures_and_report_show_the_graph(run):
    folder = run[0] / "run"
    assert list((folder / "figures").glob("wiring-*.png"))
    page = write_report([folder], folder / "again.html").read_text(encoding="utf-8")
    assert "Edges of dense" in page
    assert "largest edges" in page


def test_the_same_run_again_computes_nothing(run, undrawn):
    folder, models, _, _, _, settings = run
    before = read_table(folder / "run", "edges")
    run_on("wiring", folder / "run", *models, **settings)
    assert read_table(folder / "run", "edges").equals(before)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"into": ["L3H1", "L3KV7.K"]}, "no receiver L3KV7.K"),
        ({"into": ["L9H0"]}, "no receiver L9H0.Q"),
        ({"into": ["L0H1"]}, "a sender must come before the receiver"),
        ({"metric": "accuracy"}, "the edge method 'attribution' uses the gradient"),
    ],
)
def test_edges_that_cannot_be_scored_are_refused_before_anything_is_computed(run, tmp_path, asked, why):
    _, models, _, file, _, _ = run
    with pytest.raises(hw.HeadwiseError, match=why):
        run_on("wiring", tmp_path / "run", models[0], tasks=[file], n=8, **asked)
    with CellStore(tmp_path / "run" / "cells.sqlite") as store:
        assert not list(store.keys())


def test_into_scores_the_edges_of_one_head_from_all_heads_before_it(run, tmp_path, undrawn):
    _, models, _, file, _, _ = run
    made = run_on("wiring", tmp_path / "run", models[0], tasks=[file], n=8, into=["L3H1"], cards=0)
    assert sorted(made.written) == ["edge_examples", "edges"], "no head is scored"
    edges = read_table(tmp_path / "run", "edges")
    assert set(edges["receiver"]) == {"L3H1.Q", "L3KV0.K", "L3KV0.V"}
    assert edges["sender"].nunique() == 12


def test_cells_of_an_edge_method_whose_values_changed_say_its_version(run, tmp_path, undrawn):
    _, models, _, file, made, _ = run
    assert all("method version" not in cell.fingerprints for cell, _ in made.asked.values())
    settings = {"tasks": [file], "n": 8, "heads": 3, "gradient": "integrated", "cards": 0, "curve": False}
    again = run_on("wiring", tmp_path / "run", models[0], **settings)
    assert {cell.part: cell.fingerprints.get("method version") for cell, _ in again.asked.values()} == {
        "ablation": None,
        "exact": None,
        "integrated": "2",
    }


def test_the_quick_study_has_enough_examples_for_one_significant_edge():
    quick = WiringSettings(quick=True).quickened()
    edges = 3 * quick.heads * (quick.heads - 1) / 2 + quick.heads  # Q, K and V of every pair, and the logits
    assert smallest_p(quick.n // 2) * edges < 0.05
