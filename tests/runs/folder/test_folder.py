"""The run folder: what it writes down, whom it lets in, and what it never loses."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import HeadwiseError
from headwise.files import DiskError
from headwise.runs import RunFolder, Store, read_info, read_table
from runs.toy_study import calls, carry_out, run

HOLD = """
import sys, time
from headwise.runs import RunFolder
folder = RunFolder(sys.argv[1], study="toy")
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_run_json_says_what_was_run_with_what_and_how_it_ended(place: Path) -> None:
    with RunFolder(
        place,
        study="roles",
        settings={"n": 64, "model": "m"},
        fingerprints={"model m": "abc"},
        seeds={"tasks": 0},
        command="headwise run roles --model 'a b'",
    ) as folder:
        assert read_info(place)["status"] == "running"
        carry_out(folder, calls(3))
    info = read_info(place)
    assert (info["study"], info["settings"], info["seeds"]) == (
        "roles",
        {"n": 64, "model": "m"},
        {"tasks": 0},
    )
    assert info["fingerprints"] == {"model m": "abc"}
    assert info["command"] == "headwise run roles --model 'a b'"
    assert info["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    import numpy as np

    assert info["versions"]["numpy"] == np.__version__
    assert info["versions"]["headwise"]
    assert info["status"] == "done"
    assert info["steps"] == 3
    assert info["tables"] == ["curves", "examples", "scores"]
    assert info["timings"]["seconds"] > 0
    assert info["timings"]["created"] <= info["timings"]["finished"]
    assert info["notices"] == []


def test_versions_are_found_without_importing_what_they_are_of() -> None:
    program = "import sys; from headwise.runs.info import versions; versions(); print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_run_json_is_replaced_whole_or_not_at_all(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder(place, study="a") as folder:
        old = (place / "run.json").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
            with pytest.raises(HeadwiseError, match="is full"):
                folder.save()
        assert (place / "run.json").read_bytes() == old
        assert not list(place.glob(".run.json*"))


def test_the_time_spent_adds_up_over_sessions(place: Path) -> None:
    run(place, 2)
    first = read_info(place)["timings"]
    run(place, 3)
    second = read_info(place)["timings"]
    assert second["seconds"] > first["seconds"]
    assert second["created"] == first["created"]


# --- opening again --------------------------------------------------------------------------------


def test_other_settings_keep_the_old_cells_and_say_what_changed(place: Path) -> None:
    run(place, 4)
    with RunFolder(
        place, study="toy", settings={"count": 6, "shots": 2}, fingerprints={"task ioi": "new"}
    ) as folder:
        (notice,) = folder.notices
        assert "settings.count was 4 and is 6" in notice
        assert "settings.shots was added (2)" in notice
        assert "fingerprints.task ioi was added ('new')" in notice
        carry_out(folder, calls(6))
        assert len(folder.store) == 6
    assert read_info(place)["notices"] == [notice]


def test_notices_are_logged_once_each(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="headwise"), RunFolder(place, study="score") as folder:
        folder.notice("first")
        folder.announce()
        folder.notice("second")
        folder.announce()
    assert [record.getMessage() for record in caplog.records] == ["note: first", "note: second"]
    assert folder.notices == ["first", "second"]


def test_a_folder_with_a_run_of_another_study_is_refused_and_stays_as_it_is(place: Path) -> None:
    with RunFolder(place, study="score", settings={"n": 4}) as folder:
        carry_out(folder, calls(2))
    before = (place / "run.json").read_bytes()
    with pytest.raises(
        HeadwiseError, match=r"has a run of the study 'score', and this is 'roles'.*fresh=True"
    ):
        RunFolder(place, study="roles", settings={"n": 4})
    assert (place / "run.json").read_bytes() == before
    assert read_info(place)["status"] == "done"
    with RunFolder(place, study="roles", settings={"n": 4}, fresh=True) as folder:
        carry_out(folder, calls(3))
    assert read_info(place)["study"] == "roles"


def test_a_folder_in_which_nothing_was_finished_takes_another_study(place: Path) -> None:
    with RunFolder(place, study="score"):
        pass
    with RunFolder(place, study="roles"):
        pass
    assert read_info(place)["study"] == "roles"


def test_the_same_settings_say_nothing(place: Path) -> None:
    run(place, 4)
    assert run(place, 4).notices == []


def test_another_version_of_a_library_is_told(place: Path) -> None:
    run(place, 1)
    info = read_info(place)
    info["versions"]["numpy"] = "1.0"
    (place / "run.json").write_text(json.dumps(info))
    (notice,) = run(place, 1).notices
    assert "versions.numpy was '1.0' and is" in notice


def test_a_run_can_be_looked_at_without_changing_it(place: Path) -> None:
    run(place, 2)
    before = (place / "run.json").read_bytes()
    with RunFolder(place) as folder:
        assert folder.info["study"] == "toy"
        assert folder.status == "done"
        assert len(folder.store) == 2
    assert (place / "run.json").read_bytes() == before


def test_fresh_moves_the_earlier_run_away_and_starts_anew(place: Path) -> None:
    run(place, 4)
    (place / "report.html").write_text("old")
    computed: list[int] = []
    folder = run(place, 4, computed.append, fresh=True)
    assert len(computed) == 4
    earlier = place / "earlier"
    assert str(earlier) in folder.notices[0]
    assert (earlier / "report.html").read_text() == "old"
    assert not (place / "report.html").exists()
    assert len(read_table(earlier, "scores")) == 12
    with Store(earlier / "cells.sqlite") as store:
        assert len(store) == 4
    run(place, 4, fresh=True)
    assert (place / "earlier-2").is_dir()
    assert (earlier / "report.html").exists()


def test_fresh_leaves_the_earlier_run_alone_until_something_is_to_be_computed(place: Path) -> None:
    run(place, 4)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with (
        pytest.raises(HeadwiseError, match="no such method"),
        RunFolder(place, study="toy", settings={"count": -1}, fresh=True),
    ):
        raise HeadwiseError("no such method")  # as a study does that checks its settings first
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_fresh_does_not_read_what_it_sets_aside(place: Path) -> None:
    run(place, 2)
    (place / "run.json").write_text(json.dumps({"format": 99}))
    (place / "cells.sqlite").write_bytes(b"no database")
    folder = run(place, 2, fresh=True)
    assert len(folder.notices) == 1
    assert read_info(place)["status"] == "done"
    assert (place / "earlier/cells.sqlite").read_bytes() == b"no database"


def test_fresh_in_an_empty_place_has_nothing_to_say(place: Path) -> None:
    assert run(place, 1, fresh=True).notices == []


def test_a_table_that_no_longer_belongs_to_the_run_is_set_aside(place: Path) -> None:
    run(place, 3)
    with RunFolder(place, study="toy", settings={"count": 3}) as folder:
        carry_out(folder, calls(3, first=1))  # those without a curve
    assert not (place / "tables" / "curves.parquet").exists()
    assert len(read_table(place / "earlier", "curves")) == 2
    assert any("tables/curves.parquet" in notice for notice in folder.notices)
    assert read_info(place)["tables"] == ["examples", "scores"]


def test_a_damaged_run_json_costs_no_cells(place: Path) -> None:
    run(place, 3)
    (place / "run.json").write_text('{"study": "to')
    folder = run(place, 3, lambda cell: pytest.fail("nothing needs computing"))
    assert "run-damaged.json" in folder.notices[0]
    assert (place / "run-damaged.json").exists()
    assert read_info(place)["status"] == "done"


@pytest.mark.parametrize(
    "changed",
    [
        {"tables": ["../../victim"]},
        {"tables": 3},
        {"timings": {"seconds": -1}},
        {"timings": {"seconds": "long"}},
        {"settings": []},
        {"format": "one"},
        {"steps": "many"},
        {"notices": [1]},
        {"fingerprints": {"model": 3}},
    ],
)
def test_a_run_json_that_says_impossible_things_is_set_aside_and_nothing_outside_is_touched(
    place: Path, changed: dict[str, Any]
) -> None:
    run(place, 2)
    victim = place.parent / "victim.parquet"
    victim.write_text("precious")
    (place / "run.json").write_text(json.dumps({**read_info(place), **changed}))
    with pytest.raises(HeadwiseError, match=r"run\.json cannot be read"):
        read_info(place)
    folder = run(place, 2, lambda cell: pytest.fail("nothing needs computing"))
    assert "run-damaged.json" in folder.notices[0]
    assert read_info(place)["status"] == "done"
    assert victim.read_text() == "precious"


def test_a_damaged_store_is_salvaged_and_the_user_told(place: Path) -> None:
    run(place, 40)
    store = place / "cells.sqlite"
    with store.open("rb+") as file:
        file.truncate(store.stat().st_size * 3 // 4)
    computed: list[int] = []
    folder = run(place, 40, computed.append)
    assert 0 < len(computed) < 40
    (notice,) = folder.notices
    assert f"{40 - len(computed)} finished steps could be saved" in notice
    assert "cells-damaged.sqlite" in notice
    assert (place / "cells-damaged.sqlite").exists()


def test_a_store_that_lost_its_cells_without_a_trace_is_told(place: Path) -> None:
    run(place, 5)
    (place / "cells.sqlite").write_bytes(b"")
    folder = run(place, 5)
    assert "run.json counts 5 finished steps and cells.sqlite holds 0" in folder.notices[0]


def test_a_run_written_by_a_newer_version_is_refused(place: Path) -> None:
    run(place, 1)
    info = {**read_info(place), "format": 99}
    (place / "run.json").write_text(json.dumps(info))
    with pytest.raises(HeadwiseError, match="newer headwise"):
        RunFolder(place)
    (place / "run.json").unlink()
    RunFolder(place).close()  # the lock was let go of


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed")])
def test_a_disk_too_full_for_a_new_run_json_still_gets_the_status(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], status: str
) -> None:
    def full(path: Path, value: Any) -> None:
        raise DiskError("the disk is full")

    folder = RunFolder(place, study="toy")
    monkeypatch.setattr("headwise.runs.info.write_json", full)
    folder.close_after(error())
    assert read_info(place)["status"] == status


# --- one at a time --------------------------------------------------------------------------------


def test_a_second_process_is_turned_away_with_a_sentence_and_let_in_after_a_crash(place: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(place)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(HeadwiseError, match=f"is in use by process {holder.pid} on "):
            RunFolder(place, study="toy")
        assert read_info(place)["process"]["id"] == holder.pid
    finally:
        holder.kill()
        holder.wait()
    with RunFolder(place, study="toy") as folder:
        assert "ended without closing the run" in folder.notices[0]


def test_the_same_process_cannot_hold_a_run_twice(place: Path) -> None:
    with RunFolder(place), pytest.raises(HeadwiseError, match="in use"):
        RunFolder(place)
    RunFolder(place).close()


def test_closing_twice_changes_nothing_and_a_closed_run_computes_nothing(place: Path) -> None:
    folder = run(place, 1)
    folder.close("failed")
    assert read_info(place)["status"] == "done"
    with pytest.raises(HeadwiseError, match="is closed"):
        carry_out(folder, calls(2))


# --- places that will not do ----------------------------------------------------------------------


def test_a_file_is_no_place_for_a_run(place: Path) -> None:
    place.write_text("x")
    with pytest.raises(HeadwiseError, match="is a file"):
        RunFolder(place)
    with pytest.raises(HeadwiseError):
        RunFolder(place / "below")


def test_a_folder_of_other_things_is_left_alone(place: Path) -> None:
    place.mkdir()
    (place / "thesis.tex").write_text("x")
    with pytest.raises(HeadwiseError, match="not empty and is not a run"):
        RunFolder(place)
    assert [entry.name for entry in place.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_and_one_abandoned_at_once_are_fine(place: Path) -> None:
    place.mkdir()
    run(place, 1)
    other = place.with_name("abandoned")
    other.mkdir()
    (other / ".headwise.lock").touch()
    run(other, 1)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EROFS, "cannot be written to; give out="),
        (errno.EACCES, "cannot be written to; give out="),
        (errno.ENOSPC, "is full"),
        (errno.ENAMETOOLONG, "cannot be used: .*too long"),
    ],
)
def test_what_the_disk_says_becomes_a_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(HeadwiseError, match=says):
            RunFolder(place)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(HeadwiseError, match=says):
            RunFolder(place)
    RunFolder(place).close()  # whatever failed, the lock was let go of


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(place: Path) -> None:
    place.mkdir(mode=0o500)
    with pytest.raises(HeadwiseError, match="cannot be written to"):
        RunFolder(place / "run")


@pytest.mark.parametrize(
    "parts", [("..", "x"), ("tables", "..", "..", "x"), ("/etc/passwd",), (".",), ("link", "x")]
)
def test_paths_cannot_leave_the_run(place: Path, parts: tuple[str, ...]) -> None:
    with RunFolder(place) as folder:
        (place / "link").symlink_to(place.parent)
        with pytest.raises(HeadwiseError, match="outside the run folder"):
            folder.file(*parts)
        assert folder.file("figures", "a.png") == place / "figures" / "a.png"
        assert (place / "figures").is_dir()


def test_reading_about_a_run_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(HeadwiseError, match=r"has no run\.json"):
        read_info(tmp_path)
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(HeadwiseError, match="cannot be read"):
        read_info(tmp_path)
