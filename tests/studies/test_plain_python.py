"""A study is plain Python over steps: a later step takes what an earlier one found, and tables are written once."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pandas as pd
import pytest

import headwise as hw
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.model.verify.tiny import tiny_model
from headwise.report import write_report
from headwise.runs import Job, RunFolder, Store, read_info, read_table, step
from headwise.runs.store import encode_result
from headwise.studies.base import STUDIES, Study, carry_out, study
from headwise.studies.run import Run
from headwise.studies.settings.shared import StudySettings
from headwise.studies.workbench import Workbench
from helpers import make_word_tokenizer, run_on, table_bytes, word_task
from planted import told_apart, written

WORDS = ("red", "blue", "green")
log, stop_at, tables_at = [], [], []
"""What is computed; the word at which the process is interrupted; a folder without tables yet."""


class CountSettings(StudySettings):
    """Settings of a study that counts letters."""

    words: tuple[str, ...] = WORDS

    def quickened(self):
        return self.replaced(words=self.words[:1])


def note(word):
    log.append(word)
    if word in stop_at:
        raise KeyboardInterrupt
    for folder in tables_at:
        assert not list(folder.glob("tables/*")), "a table was written before the study had ended"


@step(label="letters of {word}")
def count(job: Job, word: str) -> int:
    note(word)
    return len(word)


@step()
def add(job: Job, numbers: list[int]) -> int:
    note("all")
    return sum(numbers)


def counting(run: Run, s: CountSettings) -> None:
    """Letters of each word, then all of them together."""
    letters = run.all({word: count(word) for word in s.words}, "letters")
    run.table("letters", pd.DataFrame({"word": list(letters), "letters": list(letters.values())}))
    run.table("total", pd.DataFrame({"total": [run.one(add(list(letters.values())))]}))
    run.say("counted")


STUDY = Study(name="counting", question="How many letters?", settings=CountSettings, body=counting)


@pytest.fixture(autouse=True)
def forgotten():
    yield
    for kept in (log, stop_at, tables_at):
        kept.clear()


def carried_out(path, study=STUDY, **settings):
    log.clear()
    with RunFolder(path, study=study.name, settings=settings) as folder:
        carry_out(study, CountSettings(**settings), Workbench(progress=False), folder)
    return folder


def test_a_step_takes_what_the_one_before_found_and_tables_are_written_once_at_the_end(tmp_path):
    tables_at.append(tmp_path)
    folder = carried_out(tmp_path)
    assert log == [*WORDS, "all"]
    assert read_table(tmp_path, "letters")["letters"].tolist() == [3, 4, 5]
    assert read_table(tmp_path, "total")["total"].tolist() == [12]
    assert folder.notices == ["counted"]


def test_quick_makes_the_settings_of_a_study_smaller(tmp_path):
    carried_out(tmp_path, quick=True, words=("red", "blue"))
    assert read_table(tmp_path, "letters")["word"].tolist() == ["red"]


@pytest.mark.parametrize("word", ["blue", "all"])
def test_a_run_cut_short_anywhere_goes_on_from_its_steps(word, tmp_path):
    stop_at.append(word)
    with pytest.raises(KeyboardInterrupt):
        carried_out(tmp_path)
    stop_at.clear()
    carried_out(tmp_path)
    assert log == [*WORDS, "all"][[*WORDS, "all"].index(word) :]
    assert read_table(tmp_path, "total")["total"].tolist() == [12]


def test_a_finished_run_computes_nothing_again(tmp_path):
    carried_out(tmp_path)
    before = table_bytes(tmp_path)
    carried_out(tmp_path)
    assert log == []
    assert before == table_bytes(tmp_path)


def test_another_result_of_an_earlier_step_makes_the_later_one_compute_again(tmp_path):
    carried_out(tmp_path)
    with Store(tmp_path / "cells.sqlite") as store:
        store.put(count("blue").text, encode_result(40))
    carried_out(tmp_path)
    assert log == ["all"]
    assert read_table(tmp_path, "total")["total"].tolist() == [48]


def test_a_result_that_is_damaged_when_the_study_reads_it_is_computed_again(tmp_path):
    carried_out(tmp_path)
    with closing(sqlite3.connect(tmp_path / "cells.sqlite")) as connection, connection:
        connection.execute("UPDATE cells SET notes = 'x' WHERE key = ?", (count("blue").key,))
    carried_out(tmp_path)
    assert log == ["blue"]
    assert read_table(tmp_path, "total")["total"].tolist() == [12]


def test_a_registered_study_brings_its_charts_and_findings_to_run_json_and_the_report(tmp_path):
    found = Section(charts=lambda tables: [], findings=lambda tables: [Finding(sentence="Twelve letters.")])
    with STUDIES.restored(), SECTIONS.restored():
        study(question="How many letters?", settings=CountSettings, section=found)(counting)
        assert STUDIES.get("counting").question == "How many letters?"
        folder = carried_out(tmp_path / "run", STUDIES.get("counting"))
        assert folder.findings == read_info(tmp_path / "run")["findings"] == ["Twelve letters."]
        page = write_report([tmp_path / "run"], tmp_path / "report.html")
    assert "Twelve letters." in page.read_text(encoding="utf-8")


def test_charts_and_findings_are_built_once_in_a_run(tmp_path, monkeypatch):
    built = []
    section = Section(
        charts=lambda tables: built.append("charts") or [],
        findings=lambda tables: built.append("findings") or [],
    )
    with STUDIES.restored(), SECTIONS.restored():
        study(question="How many letters?", settings=CountSettings, section=section)(counting)
        monkeypatch.setattr(Workbench, "fingerprints", lambda self, settings: {})
        hw.run("counting", tmp_path / "run", progress=False)
    assert sorted(built) == ["charts", "findings"]
    assert (tmp_path / "run/report.html").is_file()


def test_other_settings_are_noticed_before_anything_is_computed(tiny, tmp_path, monkeypatch, caplog, undrawn):
    file = written(word_task(4), tmp_path / "words.jsonl")
    run_on("score", tmp_path / "run", tiny, tasks=[file], methods=["random"], n=4, cards=0)

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("headwise.studies.base.carry_out", stopped)
    with caplog.at_level("INFO", logger="headwise"), pytest.raises(KeyboardInterrupt):
        run_on("score", tmp_path / "run", tiny, tasks=[file], methods=["random"], n=3, cards=0)
    assert "note: the settings differ from the run in this folder: settings.n was 4 and is 3" in caplog.text


def test_a_quick_run_records_the_numbers_that_were_used_and_says_which_were_lowered(tiny, tmp_path, undrawn):
    file = written(word_task(20), tmp_path / "words.jsonl")
    given = {"tasks": [file], "methods": ["ablation"], "cards": 0, "quick": True}
    folder = run_on("score", tmp_path / "run", tiny, **given, n=20)
    assert len(read_table(tmp_path / "run", "inputs")) == 16
    assert read_info(tmp_path / "run")["settings"]["n"] == 16
    assert "n is 16, and not 20: quick has at most 16" in folder.notices
    usual = run_on("score", tmp_path / "usual", tiny, **given)
    assert read_info(tmp_path / "usual")["settings"]["n"] == 16
    assert not any("quick" in notice for notice in usual.notices)


@pytest.mark.usefixtures("undrawn")
def test_an_option_of_one_method_computes_no_other_method_again(tmp_path):
    tokenizer = make_word_tokenizer()
    tiny = tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=512)
    model = hw.load(tiny, tokenizer=tokenizer, name="tiny")
    file = written(told_apart([model], 6), tmp_path / "apart.jsonl")
    keys = []
    for steps in (5, 6):
        settings = {"tasks": [file], "methods": ["attribution", "integrated"], "cards": 0}
        run_on("score", tmp_path / str(steps), model, **settings, method_options={"steps": steps})
        with Store(tmp_path / str(steps) / "cells.sqlite") as store:
            keys.append(store.keys())
    assert len(keys[0] & keys[1]) == 1  # attribution, which has no steps
    assert len(keys[0] | keys[1]) == 3
