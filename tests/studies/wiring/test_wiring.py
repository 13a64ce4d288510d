"""The study `wiring` on planted models."""

from __future__ import annotations

import json

import numpy as np
import pytest

import headwise as hw
from headwise.report import write_report
from headwise.runs import Store, read_table
from headwise.stats import smallest_p
from headwise.studies.wiring.study import WiringSettings
from helpers import assert_same_again, progress_of, run_on, table_bytes
from planted import DENSE, SPARSE, backup_model, planted_model, second_words, told_apart, written


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
    options = {
        "into": "logits",
        "out_of": row["sender"],
        "reference_task": task,
    }  # the mean is over both halves
    again = hw.edges(models[0], task.halves()[1], **options, progress=False)
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
    with Store(tmp_path / "run" / "cells.sqlite") as store:
        assert not list(store.keys())


def test_into_scores_the_edges_of_one_head_from_all_heads_before_it(run, tmp_path, undrawn):
    _, models, _, file, _, _ = run
    made = run_on("wiring", tmp_path / "run", models[0], tasks=[file], n=8, into=["L3H1"], cards=0)
    assert sorted(made.written) == ["edge_examples", "edges"], "no head is scored"
    edges = read_table(tmp_path / "run", "edges")
    assert set(edges["receiver"]) == {"L3H1.Q", "L3KV0.K", "L3KV0.V"}
    assert edges["sender"].nunique() == 12


def test_steps_of_an_edge_method_whose_values_changed_say_its_version(run, tmp_path, undrawn):
    _, models, _, file, _, _ = run
    settings = {"tasks": [file], "n": 8, "heads": 3, "gradient": "integrated", "cards": 0, "curve": False}
    again = run_on("wiring", tmp_path / "run", models[0], **settings)
    texts = {call.arguments["method"]: json.loads(call.text) for call in again.calls.values()}
    assert {method: text["version"] for method, text in texts.items()} == {
        "ablation": 1,
        "exact": 1,
        "integrated": 2,
    }


def test_where_the_edges_have_no_effect_a_finding_says_so_and_there_is_no_curve(run):
    folder, _, _, _, made, _ = run
    values = (
        read_table(folder / "run", "curve_examples").set_index(["model", "k"])["value"].groupby(level=[0, 1])
    )
    for name in ("dense", "sparse"):
        of_model = values.mean()[name]
        (sentence,) = [s for s in made.findings if f"{name}: the explained effect is undefined" in s]
        effect = of_model.iloc[-1] - of_model.iloc[0]
        assert f"{effect:+.3g}".replace("-", "−") in sentence
    assert not {"curves", "circuits", "ratios"} & set(made.written)
    assert list(read_table(folder / "run", "members")["role"]) == ["dense", "sparse"]
    assert [n for n in made.notices if "no head pages" in n] == [
        f"apart, {name}: no head pages, because no edge is significant" for name in ("dense", "sparse")
    ]


def test_the_stored_results_are_those_behind_the_tables(run):
    folder, _, task, _, _, _ = run
    opened = hw.open_run(folder / "run")
    (exact,) = opened.edges("exact", model="dense")
    examples = read_table(folder / "run", "edge_examples")
    assert np.array_equal(exact.examples.T.ravel(), examples[examples["model"] == "dense"]["value"])
    (curve,) = opened.curves(model="dense")
    rows = read_table(folder / "run", "curve_examples")
    assert np.array_equal(curve.values.ravel(), rows[rows["model"] == "dense"]["value"])
    held_out = list(task.halves()[1].numbers)
    assert list(rows["example"][: len(held_out)]) == list(curve.numbers) == held_out


@pytest.fixture(scope="module")
def explained(tmp_path_factory, word_tokenizer):
    """Two models in which one head writes the answer: a few edges explain the effect."""
    folder = tmp_path_factory.mktemp("explained")
    models = [backup_model(word_tokenizer, seed)[0] for seed in (3, 4)]
    settings = {"tasks": [written(second_words(32, 5), folder / "second.jsonl")], "n": 32, "heads": 3}
    settings |= {"points": 6, "cards": 0, "gradient": None, "reference": "zero"}
    return run_on("wiring", folder / "run", *models, **settings), models, settings


def test_curves_are_summed_up_by_model_and_two_models_are_compared(explained):
    made, models, _ = explained
    circuits, ratios = (read_table(made.path, name) for name in ("circuits", "ratios"))
    curves = hw.open_run(made.path).curves()
    assert [curve.model for curve in curves] == [model.name for model in models]
    for row, curve in zip(circuits.to_dict("records"), curves, strict=True):
        assert row == curve.summary(0.9)
        assert row["k"] == curve.k_at(0.9).k == 1
    (row,) = ratios.to_dict("records")
    assert (row["k"], row["other_k"], row["ratio"]) == (*circuits["k"], 1)
    assert any("Circuit size at 90 %" in s and models[0].name in s for s in made.findings)
    assert any(f"{models[0].name} needs 1 edges" in s for s in made.findings)


def test_every_step_gives_the_same_again(explained):
    made, models, _ = explained
    assert_same_again(made, *models)


def test_a_run_of_which_steps_are_lost_ends_with_the_same_bytes(explained):
    made, models, settings = explained
    before = table_bytes(made.path)
    with Store(made.path / "cells.sqlite") as store:
        store.forget(sorted(store.keys())[::2])
    run_on("wiring", made.path, *models, **settings)
    assert table_bytes(made.path) == before


def test_progress_ends_at_the_cost_of_each_step(run, tmp_path, monkeypatch, undrawn):
    _, models, _, file, _, _ = run
    bars = progress_of(monkeypatch)
    made = run_on("wiring", tmp_path / "run", models[0], tasks=[file], n=8, heads=3, points=5, cards=0)
    assert len(made.calls) == 4
    for call in made.calls.values():
        done, total = bars[call.label]
        # A curve has fewer points where no more lie between those that are measured.
        assert total == call.cost
        assert done <= total if "curve" in call.label else done == total, call.label


def test_the_quick_study_has_enough_examples_for_one_significant_edge():
    quick = WiringSettings(quick=True).quickened()
    edges = 3 * quick.heads * (quick.heads - 1) / 2 + quick.heads  # Q, K and V of every pair, and the logits
    assert smallest_p(quick.n // 2) * edges < 0.05
