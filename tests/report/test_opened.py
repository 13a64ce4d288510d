"""`hw.open_run`: a run folder in Python."""

from __future__ import annotations

import pandas as pd
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from helpers import run_on, word_task
from report.conftest import score_table


def test_a_run_is_read_with_tables_settings_status_and_notices(make_run):
    table = score_table("tiny", "ioi", "ablation", (3, 4))
    path = make_run("a", "score", {"scores": table}, notices=["one head was odd"])
    run = hw.open_run(str(path))
    assert list(run.tables) == ["scores"]
    pd.testing.assert_frame_equal(run.tables["scores"][["layer", "head", "score"]], table[["layer", "head", "score"]],
                                  check_dtype=False)  # fmt: skip
    assert (run.study, run.status, run.settings["models"]) == ("score", "done", ["tiny"])
    assert run.notices == ["one head was odd"]
    assert repr(run) == "run a: study score, done, tables: scores"
    assert "one head was odd" in run._repr_html_()
    with pytest.raises(KeyError):
        run.tables["nothing"]


def test_tables_are_read_when_they_are_asked_for(make_run, monkeypatch):
    run = hw.open_run(make_run("a", "score", {"scores": score_table("tiny", "ioi", "ablation", (2, 2))}))
    reads = []
    read = pd.DataFrame
    monkeypatch.setattr("headwise.runs.reader.read_table", lambda path, name: reads.append(name) or read())
    assert "scores" in run.tables
    assert reads == []
    _ = run.tables["scores"], run.tables["scores"]
    assert reads == ["scores"]


def test_charts_are_drawn_by_name(make_run):
    run = hw.open_run(make_run("a", "score", {"scores": score_table("tiny", "ioi", "ablation", (3, 4))}))
    assert run.charts
    name = next(iter(run.charts))
    assert run.plot(name).axes
    assert run.plot().axes
    assert run.findings
    with pytest.raises(HeadwiseError, match="unknown chart 'nothing'"):
        run.plot("nothing")


def test_the_report_is_there_or_can_be_written(make_run):
    run = hw.open_run(make_run("a", "score", {"scores": score_table("tiny", "ioi", "ablation", (2, 2))}))
    assert run.report is None
    assert run.write_report() == run.report == run.path / "report.html"


def test_what_is_no_run_is_refused_at_once(tmp_path):
    with pytest.raises(HeadwiseError, match=r"is not a run: it has no run\.json"):
        hw.open_run(tmp_path)


def test_a_real_run_opens_with_what_it_computed(tiny, tmp_path):
    task = word_task(3)
    lines = [{"prompt": e.prompt, "target": e.target, "foils": list(e.foils)} for e in task]
    file = tmp_path / "words.jsonl"
    pd.DataFrame(lines).to_json(file, orient="records", lines=True)
    run_on("score", tmp_path / "run", tiny, tasks=[str(file)], methods=["ablation"])
    run = hw.open_run(tmp_path / "run")
    direct = hw.score(tiny, hw.task(file, model=tiny)).table()
    assert run.tables["scores"]["score"].to_numpy() == pytest.approx(direct["score"].to_numpy(), abs=1e-5)
    assert run.report is not None
    assert set(run.charts) >= {png.stem for png in (run.path / "figures").glob("*.png")}
