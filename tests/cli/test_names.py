"""What a user calls a model is what tables, titles and reports call it."""

from __future__ import annotations

import json
import shutil
import sys

import pandas as pd
import pytest

import headwise as hw
from headwise.charts.words import shortened
from headwise.cli.app import main
from headwise.errors import HeadwiseError
from headwise.explorer.run_data import model_of_run
from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.diff.study import DiffSettings

SMALL = {"tasks": "induction", "n": 8, "methods": "attribution", "cards": 0, "progress": False}


def test_a_named_model_has_its_name_in_tables_and_titles_and_its_path_in_run_json(
    folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = ["score", f"My-Model={folder}", "induction", "--method", "attribution", "-n", "8"]
    monkeypatch.setattr(sys, "argv", ["headwise", *words, "--set", "cards=0", "--quiet"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    run = tmp_path / "runs" / "score-My-Model-induction"
    assert set(pd.read_parquet(run / "tables" / "scores.parquet")["model"]) == {"My-Model"}
    assert str(folder) in json.loads((run / "run.json").read_text())["settings"]["models"][0]
    assert "induction, My-Model, n = 8" in (run / "report.html").read_text()
    # The explorer opens the run's model by the name that the run's tables have.
    assert hw.load(model_of_run(run, "My-Model")).name == "My-Model"


def test_a_path_that_has_the_sign_itself_is_a_path(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "lr=3e-4")
    assert hw.load("lr=3e-4").name == "lr=3e-4"
    assert hw.load("Tuned=lr=3e-4").name == "Tuned"
    assert hw.load("lr=3e-4", name="Tuned").name == "Tuned"
    with pytest.raises(HeadwiseError, match=r"no file or folder \./lr=3e-5"):
        hw.load("./lr=3e-5")


def test_a_study_file_names_models_by_a_mapping(folder, tmp_path, undrawn):
    other = shutil.copytree(folder, tmp_path / "tiny")
    hw.run("score", tmp_path / "alike", models=[str(folder), str(other)], **SMALL)
    table = pd.read_parquet(tmp_path / "alike" / "tables" / "scores.parquet")
    assert list(table["model"].unique()) == [str(folder), str(other)]  # of one name: each by its source
    with pytest.raises(HeadwiseError, match=r"two models would be called 'a'.*another name"):
        hw.run("score", tmp_path / "clash", models=[f"a={folder}", f"a={other}"], **SMALL)
    file = tmp_path / "study.yaml"
    file.write_text(f"models:\n  first: {folder}\n  second: {other}\n")
    hw.run("score", tmp_path / "run", file, **SMALL)
    table = pd.read_parquet(tmp_path / "run" / "tables" / "scores.parquet")
    assert list(table["model"].unique()) == ["first", "second"]


@pytest.mark.parametrize("kind", [CircuitsSettings, DiffSettings])
def test_every_study_takes_named_models(kind):
    assert kind(models={"a": "x/y", "b": "smollm2"}).models == ("a=x/y", "b=smollm2")


def test_a_long_name_loses_whole_words_at_its_end_and_stays_distinct():
    long, other = "owner/qwen2.5-coder-1.5b-instruct-q4_k_m", "owner/qwen2.5-coder-1.5b-instruct-q8_0"
    for most in range(12, 40):
        short = shortened(long, most)
        kept = short.removesuffix("…")
        assert long.split("/")[1].startswith(kept)
        assert "…" not in kept
        assert long.split("/")[1][len(kept) :][:1] in ("", "-", "_", ".")  # ends where a word ends
        assert shortened(long, most, [long, other]) != shortened(other, most, [long, other])
    assert (
        shortened("a/x" * 20, 9, ["a/x" * 20, "b/" + "a/x" * 20]) == "a/x" * 20
    )  # the whole name tells them apart
