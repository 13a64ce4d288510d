"""A study works in stages: a stage reads the one before from the store, and the tables are written once, at the end."""

from __future__ import annotations

import pickle
import sqlite3

import pandas as pd
import pytest

from headwise.charts.section import SECTIONS, Finding, Section
from headwise.errors import HeadwiseError
from headwise.report import write_report
from headwise.runs import CellResult, CellStore, RunFolder, read_table
from headwise.studies.base import STUDIES, Study, carry_out, register
from headwise.studies.context import Context
from headwise.studies.settings.shared import StudySettings
from headwise.studies.workbench import Workbench
from helpers import run_on, word_task
from planted import written

WORDS = ("red", "blue", "green")


class CountSettings(StudySettings):
    """Settings of a study that counts letters."""

    words: tuple[str, ...] = WORDS

    def quickened(self):
        return self.replaced(words=self.words[:1])


def counting(log, stop_at=None, tables_at=None):
    """Letters of each word, then all of them together; `log` gets what is computed."""

    def stages(context):
        yield [context.cell("count", "none", word, "letters", {}, {}) for word in context.settings.words]
        total = int(context.table("letters")["letters"].sum())
        yield [context.cell("sum", "none", "all", "sum", {"total": total}, {})]

    def note(cell):
        log.append(cell.task)
        if cell.task == stop_at:
            raise KeyboardInterrupt
        if tables_at is not None:
            assert not list(tables_at.glob("tables/*")), "a table was written before the last stage ended"

    def count(context, cell):
        note(cell)
        return CellResult({"letters": pd.DataFrame([{"word": cell.task, "letters": len(cell.task)}])})

    def add(context, cell):
        note(cell)
        return CellResult({"total": pd.DataFrame([{"total": cell.settings["total"]}])})

    return Study(
        name="counting",
        question="How many letters?",
        settings=CountSettings,
        stages=stages,
        compute={"count": count, "sum": add},
        notices=lambda context, tables: [f"{tables['total']['total'].iloc[0]} letters"],
    )


def carried_out(study, path, **settings):
    with RunFolder(path, study=study.name, settings=settings) as folder:
        carry_out(study, CountSettings(**settings), Workbench(progress=False), folder)
    return folder


def test_a_stage_reads_what_the_one_before_found_and_tables_are_written_once_at_the_end(tmp_path):
    log = []
    folder = carried_out(counting(log, tables_at=tmp_path), tmp_path)
    assert log == [*WORDS, "all"]
    assert read_table(tmp_path, "letters")["letters"].tolist() == [3, 4, 5]
    assert read_table(tmp_path, "total")["total"].tolist() == [12]
    assert folder.notices == ["12 letters"]


def test_quick_makes_the_settings_of_the_stages_smaller_and_not_those_of_the_run(tmp_path):
    folder = carried_out(counting([]), tmp_path, quick=True, words=("red", "blue"))
    assert read_table(tmp_path, "letters")["word"].tolist() == ["red"]
    assert folder.info["settings"]["words"] == ["red", "blue"]


@pytest.mark.parametrize("stop_at", ["blue", "all"])
def test_a_run_cut_short_in_any_stage_goes_on_from_its_cells(stop_at, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        carried_out(counting([], stop_at), tmp_path)
    log = []
    carried_out(counting(log), tmp_path)
    assert log == [*WORDS, "all"][[*WORDS, "all"].index(stop_at) :]
    assert read_table(tmp_path, "total")["total"].tolist() == [12]


def test_a_finished_run_computes_nothing_again(tmp_path):
    carried_out(counting([]), tmp_path)
    before = {file.name: file.read_bytes() for file in (tmp_path / "tables").iterdir()}
    log = []
    carried_out(counting(log), tmp_path)
    assert log == []
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "tables").iterdir()}


def test_a_cell_that_is_damaged_when_the_next_stage_reads_it_is_computed_again(tmp_path):
    carried_out(counting([]), tmp_path)
    with CellStore(tmp_path / "cells.sqlite") as store:
        keys = store.keys()
        (key,) = [key for key in keys if store.cell(key).task == "blue"]
    connection = sqlite3.connect(tmp_path / "cells.sqlite")
    with connection:
        connection.execute("UPDATE blobs SET data = zeroblob(length(data)) WHERE key = ?", (key,))
    connection.close()
    log = []
    carried_out(counting(log), tmp_path)
    assert log == ["blue"]
    assert read_table(tmp_path, "total")["total"].tolist() == [12]


def lengths(context, word):
    return context.table("letters", task=word)["letters"].tolist()


def test_a_copy_in_a_worker_has_what_the_stage_has_made_and_no_store(tmp_path):
    with RunFolder(tmp_path, study="counting") as folder:
        carry_out(counting([]), CountSettings(), Workbench(progress=False), folder)
        context = Context("counting", CountSettings(), Workbench(progress=False), folder)
        context.cells = [cell for cell, _ in folder.asked.values()]
        assert context.once(lengths, "blue") == [4]
        copy = pickle.loads(pickle.dumps(context))  # noqa: S301
    assert copy.once(lengths, "blue") == [4]
    with pytest.raises(HeadwiseError, match="needs the table 'letters', but workers have no store"):
        copy.once(lengths, "red")


def test_a_registered_study_brings_its_charts_and_findings_to_the_report(tmp_path):
    study = counting([])
    said = Section(charts=lambda tables: [], findings=lambda tables: [Finding(sentence="Twelve letters.")])
    with STUDIES.restored(), SECTIONS.restored():
        register(Study(**vars(study) | {"section": said}))
        assert STUDIES.get("counting").question == "How many letters?"
        carried_out(study, tmp_path / "run")
        page = write_report([tmp_path / "run"], tmp_path / "report.html")
    assert "Twelve letters." in page.read_text(encoding="utf-8")


def test_other_settings_are_noticed_before_anything_is_computed(tiny, tmp_path, monkeypatch, caplog, undrawn):
    file = written(word_task(4), tmp_path / "words.jsonl")
    run_on("score", tmp_path / "run", tiny, tasks=[file], methods=["random"], n=4, cards=0)

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("headwise.studies.base.carry_out", stopped)
    with caplog.at_level("INFO", logger="headwise"), pytest.raises(KeyboardInterrupt):
        run_on("score", tmp_path / "run", tiny, tasks=[file], methods=["random"], n=3, cards=0)
    assert "note: the settings differ from the run in this folder: settings.n was 4 and is 3" in caplog.text
