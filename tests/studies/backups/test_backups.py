"""The study `backups` and `headwise interactions` on planted models: tables, findings, refusals, resuming."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import headwise as hw
from headwise.charts.interactions import cluster_order, square_of
from headwise.charts.section import SECTIONS
from headwise.cli.app import app
from headwise.heads import Head, heads_of
from headwise.runs import read_table
from headwise.studies.backups.section import findings
from helpers import assert_same_again, make_word_tokenizer, progress_of, run_on, word_task
from planted import backup_model, second_words, written

pytestmark = pytest.mark.usefixtures("undrawn")
SETTINGS = {"n": 48, "metric": "logit_diff", "first": 6, "curve": 3, "draws": 6, "reference": "zero"}


@pytest.fixture(scope="module")
def planted():
    return backup_model(make_word_tokenizer(), 3)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return written(second_words(48, 5), tmp_path_factory.mktemp("data") / "second.jsonl")


@pytest.fixture(scope="module")
def run(planted, file, tmp_path_factory):
    """The planted model beside another plant, as a dense and a sparse model would stand."""
    other = backup_model(make_word_tokenizer(), 4)[0]
    folder = tmp_path_factory.mktemp("run") / "run"
    return run_on("backups", folder, planted[0], other, tasks=[file], **SETTINGS)


def of(run, name, model):
    table = read_table(run.path, name)
    return table[table["model"] == model.name].reset_index(drop=True)


def test_the_study_finds_the_planted_primary_and_its_backup_on_different_examples(run, planted):
    model, primary, backup = planted
    steps = of(run, "primary", model)
    assert heads_of(steps)[0] == primary
    table = of(run, "backups", model)
    assert heads_of(table)[0] == backup
    assert table.iloc[0]["backup"]
    assert set(table["n"]) == {24}
    examples = read_table(run.path, "examples")
    numbers = [set(examples[examples["method"] == name]["example"]) for name in ("ablation", "backup")]
    assert not numbers[0] & numbers[1]
    assert len(numbers[0] | numbers[1]) == 48


def test_the_proof_by_freezing_is_in_the_table_and_in_a_sentence(run, planted):
    table = of(run, "freezing", planted[0]).set_index("frozen")
    assert table.loc["backups", "share"] > 0.8
    assert table.loc["backups", "share_lo"] > 0.5
    assert abs(table.loc["random", "share"]) < 0.2
    sentences = [finding.sentence for finding in findings(_tables(run))]
    (proof,) = [s for s in sentences if "held at their plain output" in s and planted[0].name in s]
    assert "of their repair (+" in proof
    # The two costs of removing the set are of different examples.
    assert "on the finding half: " in proof
    (first,) = [s for s in sentences if "later heads are backups" in s and planted[0].name in s]
    assert f"{planted[2]} +" in first
    assert " on the testing half. " in first


def _tables(run):
    return {path.stem: pd.read_parquet(path) for path in (run.path / "tables").glob("*.parquet")}


def test_the_planted_pair_is_a_group_that_random_heads_of_its_layers_do_not_match(run, planted):
    model, primary, backup = planted
    groups = of(run, "groups", model)
    (row,) = [r for r in groups.to_dict("records") if {str(primary), str(backup)} <= set(r["heads"].split())]
    assert row["excess_lo"] > 0
    assert row["random_largest"] < row["excess"]


def test_greedy_removal_costs_at_least_as_much_as_single_effects_and_random_heads(run, planted):
    curves = of(run, "curves", planted[0]).set_index(["series", "k"])["value"]
    assert curves["greedy", 0] == pytest.approx(curves["single", 0], abs=1e-5)
    assert curves["greedy", 2] < curves["single", 2] - 1  # the backup is no large single effect
    assert curves["random", 2] > curves["greedy", 2] + 1


def test_every_chart_is_drawn_and_the_report_says_what_was_found(run, planted):
    drawn = sorted(path.stem for path in (run.path / "figures").glob("*.png"))
    assert [name.split("-")[0] for name in drawn] == ["effects", "freezing", *["interactions"] * 2, "removal"]
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "Which heads stand in for one another?" in page
    assert "later heads are backups" in page
    charts = SECTIONS.get("backups").charts(_tables(run))
    effects = next(chart for chart in charts if chart.name.startswith("effects"))
    assert len(effects.panels) == 2  # one per model, side by side


@pytest.mark.parametrize("more", [{}, {"candidates": 2}, {"metric": "accuracy"}])
def test_progress_ends_at_its_total(planted, file, tmp_path, monkeypatch, more):
    """The greedy search for the primary set may end before."""
    bars = progress_of(monkeypatch)
    folder = run_on("backups", tmp_path / "run", planted[0], tasks=[file], **(SETTINGS | more))
    kinds = {call.label.split(" on ")[0] for call in folder.calls.values()}
    assert kinds >= {"primary set", "greedy order", "interaction matrix", "joint removal"}
    if "metric" not in more:
        assert kinds >= {"backups of the primary set", "freezing", "groups"}
    for call in folder.calls.values():
        done, total = bars[call.label]
        assert total == call.cost
        assert done <= total if call.label.startswith("primary set") else done == total, call.label


def test_every_step_gives_the_same_again(run, planted):
    other = backup_model(make_word_tokenizer(), 4)[0]
    assert_same_again(run, planted[0], other)


def test_a_killed_run_resumes_without_measuring_again(planted, file, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("headwise.studies.backups.steps.freezing_table", lambda *given, **more: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_on("backups", tmp_path / "run", planted[0], tasks=[file], **SETTINGS)
    for name in ("primary_set", "greedy_order", "effects_given", "pair_effects"):
        monkeypatch.setattr(
            f"headwise.studies.backups.steps.{name}", lambda *given, **more: pytest.fail("measured again")
        )
    folder = run_on("backups", tmp_path / "run", planted[0], tasks=[file], **SETTINGS)
    assert len(read_table(folder.path, "freezing")) == 4


def test_given_heads_are_the_primary_set_and_candidates_are_chosen_on_the_other_half(planted, file, tmp_path):
    model, primary, backup = planted
    settings = SETTINGS | {"primary": [str(primary)], "candidates": 2}
    folder = run_on("backups", tmp_path / "run", model, tasks=[file], **settings)
    assert heads_of(read_table(folder.path, "primary")) == [primary]
    table = read_table(folder.path, "backups")
    assert len(table) == 2
    assert heads_of(table)[0] == backup


def test_a_model_that_does_nothing_here_has_no_primary_set_and_the_run_says_so(tiny, tmp_path):
    file = written(word_task(16), tmp_path / "words.jsonl")
    folder = run_on("backups", tmp_path / "run", tiny, tasks=[file], **(SETTINGS | {"n": 16}))
    primary = (
        read_table(folder.path, "primary") if (folder.path / "tables/primary.parquet").exists() else None
    )
    found = primary is not None and primary["accepted"].any()
    assert found or any("no primary set" in sentence for sentence in folder.findings)
    assert (folder.path / "report.html").exists()


def test_heads_of_one_cluster_stand_side_by_side():
    names = ["L0H0", "L1H0", "L2H0", "L3H0"]
    value = {("L0H0", "L2H0"): 3.0, ("L1H0", "L3H0"): 2.0}
    rows = [
        {"a": a, "b": b, "interaction": value.get((a, b), 0.0)}
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    ]
    order = cluster_order(square_of(pd.DataFrame(rows), "interaction"))
    assert abs(order.index("L0H0") - order.index("L2H0")) == 1
    assert abs(order.index("L1H0") - order.index("L3H0")) == 1


def test_the_command_prints_the_largest_pairs_and_writes_table_and_figure(
    planted, file, tmp_path, monkeypatch
):
    model, primary, backup = planted
    monkeypatch.chdir(tmp_path)
    model.hf.save_pretrained("model")
    model.text.tokenizer.save_pretrained("model")
    pair = [
        "--heads",
        str(primary),
        "--heads",
        str(backup),
        "--heads",
        "L0H2" if Head(0, 2) != primary else "L0H3",
    ]
    command = ["interactions", "model", file, *pair, "-n", "12", "--device", "cpu", "--out", "found"]
    done = CliRunner().invoke(app, [*command, "--metric", "logit_diff", "--reference", "zero"])
    assert done.exit_code == 0, done.output
    lines = done.output.split("\n")
    (title,) = [number for number, line in enumerate(lines) if "all 3 pairs" in line]
    assert str(primary) in lines[title + 1]
    assert str(backup) in lines[title + 1]
    assert len(pd.read_parquet("found/tables/interactions.parquet")) == 3
    assert (tmp_path / "found/report.html").is_file()
    message = CliRunner().invoke(
        app,
        [
            *command[:3],
            "--given",
            str(primary),
            "-n",
            "8",
            "--reference",
            "zero",
            "--device",
            "cpu",
            "--json",
        ],
    )
    assert message.exit_code == 0, message.output
    answer = json.loads(message.stdout)
    best = max(answer["backups"], key=lambda row: row["difference"])
    assert Head(best["layer"], best["head"]) == backup
    assert np.isclose(best["conditional"], best["single"] + best["difference"])


def test_the_study_and_the_call_agree_on_the_matrix(run, planted, file):
    model = planted[0]
    table = of(run, "interactions", model)
    heads = sorted(set(table["a"]) | set(table["b"]))
    half = hw.task(file, 48, model=model).halves()[0]
    found = hw.interactions(model, half, heads, metric="logit_diff", reference="zero").table()
    columns = ["a", "b", "interaction", "lo", "hi", "q"]
    both = [one.sort_values(["a", "b"])[columns].reset_index(drop=True) for one in (table, found)]
    pd.testing.assert_frame_equal(*both, check_exact=False, atol=1e-4)
