"""A study that could not write everything says so: one sentence, exit 2, a true status, and finished cells are kept."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

import headwise as hw
from headwise.cli.app import main
from headwise.errors import HeadwiseError
from headwise.runs import RunFolder, Store, read_info
from headwise.studies.workbench import Workbench
from helpers import word_model
from runs.toy_study import calls, carry_out, hooks


@pytest.fixture(scope="module")
def bench():
    made = Workbench(progress=False)
    made.add(word_model("llama", name="tiny"))
    return made


@pytest.fixture
def settings(tmp_path):
    data = tmp_path / "pairs.jsonl"
    data.write_text('{"prompt": "the cat", "target": " sat"}\n{"prompt": "a dog", "target": " ran"}\n')
    return {"models": ["tiny"], "tasks": [str(data)], "methods": ["random"], "n": 2, "cards": 0}


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def steps_of(run) -> int:
    with Store(run / "cells.sqlite") as store:
        return len(store)


@pytest.mark.parametrize("what", ["report.html", ".pdf", ".parquet"])
def test_a_disk_that_is_full_at_the_end_is_a_failure_and_the_steps_are_kept(
    bench, settings, tmp_path, monkeypatch, what
):
    from headwise import files as disk

    monkeypatch.setattr("headwise.charts.style.FORMATS", ("pdf",))
    flush = disk.flush
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(disk, "flush", lambda path: full() if what in path.name else flush(path))
        with pytest.raises(HeadwiseError, match="is full; everything finished so far is kept"):
            hw.run("score", out, workbench=bench, progress=False, **settings)
    info = read_info(out)
    assert info["status"] == "failed"
    assert "is full" in info["problem"]
    assert steps_of(out) == 1
    assert not list(out.rglob("*.partial"))
    again = hw.run("score", out, workbench=bench, progress=False, **settings)
    assert again.report == out / "report.html"
    assert read_info(out)["status"] == "done"


def test_the_command_line_names_no_report_that_was_not_written(tmp_path, monkeypatch, capsys):
    message = SimpleNamespace(announce=lambda: None, report=None, notices=[], findings=[])
    monkeypatch.setattr("headwise.studies.base.run", lambda *_, **__: message)
    monkeypatch.setattr(sys, "argv", ["headwise", "run", "score", "--out", "r"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out == "r: tables and figures, but no report\n"


def moved(place):
    place.rename(place.with_name("elsewhere"))


def deleted(place):
    shutil.rmtree(place)


def replaced(place):
    """Moved away, and another run is begun in its place."""
    moved(place)
    RunFolder(place, study="another").close()


@pytest.mark.parametrize("when", [2, "at the end"])
@pytest.mark.parametrize("happens", [moved, deleted, replaced])
def test_a_run_folder_that_goes_away_under_a_study_is_a_sentence_and_is_not_made_again(
    tmp_path, happens, when, monkeypatch
):
    place = tmp_path / "run"

    def disturbed(number):
        if number == when:
            happens(place)

    def study():
        with RunFolder(place, study="toy", settings={}) as folder:
            carry_out(folder, calls(5))
            happens(place)

    monkeypatch.setattr(hooks, "before", disturbed)

    with pytest.raises(HeadwiseError, match="was moved, deleted or replaced while it was in use"):
        study()
    if happens is replaced:
        assert read_info(place)["study"] == "another"
        assert steps_of(place) == 0
    else:
        assert not place.exists()
    if happens is not deleted:
        kept = 3 if when == 2 else 5
        assert steps_of(tmp_path / "elsewhere") == kept
        computed = []
        monkeypatch.setattr(hooks, "before", computed.append)
        with RunFolder(tmp_path / "elsewhere", study="toy", settings={}) as folder:
            carry_out(folder, calls(5))
        assert len(computed) == 5 - kept


@pytest.mark.parametrize(("room", "finished"), [("90k", 0), ("1500k", 1)])
def test_a_small_disk_that_is_really_full_is_one_sentence_and_exit_2(
    bench, settings, tmp_path, monkeypatch, capsys, caplog, room, finished
):
    """90 kB do not hold the step, nor a new run.json after it; 1.5 MB do not hold the report."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk cannot be mounted here")
    run = hw.run
    monkeypatch.setattr(
        "headwise.studies.base.run",
        lambda *given, **named: run(*given, **named, **settings, workbench=bench),
    )
    monkeypatch.setattr(sys, "argv", ["headwise", "run", "score", "--out", str(disk / "run")])
    try:
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        message = caplog.text + printed.err
        assert ended.value.code == 2, message
        assert "Traceback" not in message
        assert len([line for line in message.splitlines() if line.startswith("headwise:")]) == 1
        assert "is full; everything finished so far is kept" in printed.err
        assert printed.out == ""
        assert read_info(disk / "run")["status"] == "failed"
        assert steps_of(disk / "run") == finished
    finally:
        subprocess.run(["umount", str(disk)], check=True)
