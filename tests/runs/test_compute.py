"""Computing calls: resumed runs equal uninterrupted ones to the byte, whatever happened in between."""

from __future__ import annotations

import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.runs import Call, Finished, LocalExecutor, RunFolder, Store, read_info, read_table
from headwise.runs import store as store_module
from headwise.runs.store import encode_result
from runs.toy_study import Tables, calls, carry_out, run, table_bytes, tables_of

TOY = Path(__file__).parent / "toy_study.py"


def start(place: Path, cells: int, pause: float, die_at: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, str(TOY), str(place), str(cells), str(pause), *([die_at] if die_at else [])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_tables_hold_every_call_in_the_order_asked_for(tmp_path: Path) -> None:
    run(tmp_path / "run", 5)
    expected = pd.concat([tables_of(i, f"model{i % 2}")["scores"] for i in range(5)], ignore_index=True)
    pd.testing.assert_frame_equal(read_table(tmp_path / "run", "scores"), expected, check_dtype=False)
    assert len(read_table(tmp_path / "run", "curves")) == 4  # parts 0 and 3


def test_finished_calls_are_not_computed_again_and_repeated_ones_once(tmp_path: Path) -> None:
    counted: list[int] = []
    run(tmp_path, 3, counted.append)
    run(tmp_path, 4, counted.append)
    assert counted == [0, 1, 2, 3]
    assert len(read_table(tmp_path, "scores")) == 12
    run(tmp_path, 4, counted.append)
    assert len(counted) == 4


def test_a_study_in_stages_has_the_rows_of_all_of_them(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "stages", study="toy") as folder:
        carry_out(folder, calls(2), calls(6, first=2))
    run(tmp_path / "once", 6)
    assert table_bytes(tmp_path / "stages") == table_bytes(tmp_path / "once")


def test_a_run_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    cells, draw = 60, random.Random(4)
    run(tmp_path / "whole", cells)
    place, finished = tmp_path / "killed", [0]
    for _ in range(5):
        process = start(place, cells, 0.05)
        assert process.stdout is not None
        for _ in range(draw.randint(2, 7)):
            assert process.stdout.readline().startswith("part")
        time.sleep(draw.random() * 0.07)  # anywhere in computing, storing or waiting
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        with Store(place / "cells.sqlite") as store:
            finished.append(len(store))
    assert finished == sorted(finished)
    assert 5 <= finished[-1] < cells
    process = start(place, cells, 0)
    assert len(process.communicate()[0].split("\n")) - 1 == cells - finished[-1]
    assert process.returncode == 0
    assert table_bytes(place) == table_bytes(tmp_path / "whole")
    assert read_info(place)["status"] == "done"


@pytest.mark.parametrize(
    "die_at",
    [
        "runs.store:whole_checksum:4",
        "runs.tables:_fit:9",
        "files:flush:3",
        "files:fsync_folder:3",
        "runs.info:write_json:3",
    ],
    ids=[
        "inside a transaction",
        "inside a table",
        "before a rename",
        "after a rename",
        "before the last words",
    ],
)
def test_a_run_killed_at_the_worst_moment_ends_with_the_same_bytes(tmp_path: Path, die_at: str) -> None:
    run(tmp_path / "whole", 9)
    place = tmp_path / "killed"
    process = start(place, 9, 0, die_at)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert read_info(place)["status"] == "running"
    folder = run(place, 9)
    assert "ended without closing the run" in folder.notices[0]
    assert table_bytes(place) == table_bytes(tmp_path / "whole")
    assert sorted(file.name for file in (place / "tables").iterdir()) == [
        "curves.parquet",
        "examples.parquet",
        "scores.parquet",
    ]


def test_ctrl_c_closes_the_run_and_is_raised_again(tmp_path: Path) -> None:
    process = start(tmp_path / "run", 50, 0.05)
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    errors = process.communicate()[1]
    assert process.returncode not in (0, -signal.SIGKILL)
    assert "KeyboardInterrupt" in errors
    info = read_info(tmp_path / "run")
    assert info["status"] == "interrupted"
    assert not (tmp_path / "run" / "cells.sqlite-wal").exists()  # the store was closed in order
    with Store(tmp_path / "run" / "cells.sqlite") as store:
        assert len(store) == info["steps"] >= 2
    run(tmp_path / "run", 50)
    run(tmp_path / "whole", 50)
    assert table_bytes(tmp_path / "run") == table_bytes(tmp_path / "whole")


def test_an_error_in_a_step_keeps_the_finished_ones_and_says_where(tmp_path: Path) -> None:
    def broken(number: int) -> None:
        if number == 2:
            raise ZeroDivisionError("no attention left")

    with pytest.raises(ZeroDivisionError, match="no attention left") as caught:
        run(tmp_path, 5, broken)
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["while computing part 2 on ioi with model0"]
    info = read_info(tmp_path)
    assert info["status"] == "failed"
    assert info["problem"] == "ZeroDivisionError: no attention left"
    assert info["steps"] == 2
    run(tmp_path, 5)
    assert read_info(tmp_path)["status"] == "done"
    assert "problem" not in read_info(tmp_path)


def test_an_error_after_the_steps_marks_the_run_as_failed(tmp_path: Path) -> None:
    def study() -> None:
        with RunFolder(tmp_path, study="toy") as folder:
            carry_out(folder, calls(2))
            raise ValueError("no figure")

    with pytest.raises(ValueError, match="figure"):
        study()
    assert read_info(tmp_path)["status"] == "failed"
    assert len(read_table(tmp_path, "scores")) == 6


def test_a_bad_frame_is_refused_by_the_column_that_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(HeadwiseError, match="lacks task"):
        run(tmp_path, 5, change=lambda number, tables: tables.update(scores=pd.DataFrame({"model": ["m"]})))


# --- values that are not finite -------------------------------------------------------------------


def spoil(number: int, tables: Tables) -> None:
    if number in (1, 3):
        tables["examples"].loc[2, "value"] = np.nan if number == 1 else np.inf
        tables["scores"].loc[0, "score"] = np.nan


def never(number: int) -> None:
    pytest.fail("nothing needs computing")


def test_values_that_are_not_finite_are_told_and_the_run_goes_on(tmp_path: Path) -> None:
    folder = run(tmp_path, 5, change=spoil)
    assert folder.status == "done"
    assert folder.notices == [
        f"part {i} on ioi with model1: 1 of 4 values of examples.value (example 2) is not finite; "
        "the tables keep them as they are"
        for i in (1, 3)
    ]
    with Store(tmp_path / "cells.sqlite") as store:
        entries = {entry["table"]: entry for entry in store.not_finite(calls(5)[1].key)}
        assert store.not_finite(calls(5)[0].key) == []
    assert entries["examples"]["examples"] == [2]
    assert (entries["scores"]["column"], entries["scores"]["count"]) == ("score", 1)
    found = read_table(tmp_path, "examples")["value"].to_numpy()
    assert np.isnan(found).sum() == 1
    assert np.isinf(found).sum() == 1


def test_a_resumed_run_tells_of_them_too(tmp_path: Path) -> None:
    first = run(tmp_path, 5, change=spoil)
    again = run(tmp_path, 5, never)
    assert again.notices == first.notices
    assert read_info(tmp_path)["notices"] == first.notices


def test_many_such_steps_are_counted_not_listed(tmp_path: Path) -> None:
    def one_bad(number: int, tables: Tables) -> None:
        tables["scores"].loc[1, "score"] = np.nan

    notices = run(tmp_path, 9, change=one_bad).notices
    assert len(notices) == 6
    assert notices[-1].startswith("4 more steps")


@pytest.mark.parametrize(("table", "column"), [("scores", "score"), ("examples", "value")])
def test_a_step_without_a_single_finite_value_fails_the_run_and_the_others_are_kept(
    tmp_path: Path, table: str, column: str
) -> None:
    def all_bad(number: int, tables: Tables) -> None:
        if number == 2:
            tables[table][column] = [np.nan, np.inf, *[np.nan] * (len(tables[table]) - 2)]

    message = rf"part 2 on ioi with model0: every value of {table}\.{column} is NaN or infinite.*so there is no result"
    with pytest.raises(HeadwiseError, match=message):
        run(tmp_path, 4, change=all_bad)
    info = read_info(tmp_path)
    assert (info["status"], info["steps"]) == ("failed", 4)
    assert "every value of" in info["problem"]
    with pytest.raises(HeadwiseError, match="every value of"):  # the same on resuming, and at once
        run(tmp_path, 4, never)
    assert read_info(tmp_path)["status"] == "failed"


def test_empty_intervals_and_tests_are_not_taken_for_trouble(tmp_path: Path) -> None:
    def one_example(number: int, tables: Tables) -> None:
        tables["scores"][["stderr", "lo", "hi", "p", "q"]] = np.nan

    assert run(tmp_path / "a", 2, change=one_example).notices == []

    def infinite(number: int, tables: Tables) -> None:
        tables["scores"]["hi"] = np.inf

    assert "scores.hi" in run(tmp_path / "b", 1, change=infinite).notices[0]


# --- trouble with the disk ------------------------------------------------------------------------


def test_a_damaged_blob_is_computed_again_and_the_rest_is_kept(tmp_path: Path) -> None:
    run(tmp_path / "whole", 8)
    place = tmp_path / "damaged"
    run(place, 8)
    connection = sqlite3.connect(place / "cells.sqlite")
    with connection:
        key = calls(8)[5].key
        connection.execute("UPDATE blobs SET data = zeroblob(length(data)) WHERE key = ?", (key,))
    connection.close()
    computed: list[int] = []
    folder = run(place, 8, computed.append)
    assert computed == [5]
    assert "7 finished steps could be saved" in folder.notices[0]
    assert (place / "cells-damaged.sqlite").exists()
    assert table_bytes(place) == table_bytes(tmp_path / "whole")


def test_damage_to_an_earlier_stage_is_found_when_its_result_is_read(tmp_path: Path) -> None:
    first = calls(2)
    with RunFolder(tmp_path, study="toy") as folder:
        carry_out(folder, first)
        folder.store._connection.execute("UPDATE blobs SET data = x'00' WHERE key = ?", (first[0].key,))
        carry_out(folder, first, calls(4, first=2))
    assert "1 finished step could be saved" in folder.notices[0]
    assert len(read_table(tmp_path, "scores")) == 12


def test_a_disk_that_cannot_be_trusted_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder(tmp_path, study="toy") as folder:
        monkeypatch.setattr(store_module, "is_intact", lambda *_: False)
        with pytest.raises(HeadwiseError, match="cannot be trusted"):
            carry_out(folder, calls(2))


def test_a_full_disk_ends_the_run_with_a_sentence_and_keeps_what_is_finished(tmp_path: Path) -> None:
    place = tmp_path / "run"

    def study() -> None:
        with RunFolder(place, study="toy", settings={"count": 150}) as folder:
            # SQLite reports a database that may not grow exactly as it reports a full disk.
            folder.store._connection.execute("PRAGMA max_page_count=60")
            carry_out(folder, calls(150))

    with pytest.raises(HeadwiseError, match="is full; everything finished so far is kept"):
        study()
    info = read_info(place)
    assert info["status"] == "failed"
    assert 5 < info["steps"] < 150
    counted: list[int] = []
    run(place, 150, counted.append)
    assert len(counted) == 150 - info["steps"]


# --- other executors ------------------------------------------------------------------------------


class Backwards:
    """Finishes the last call first, as a cluster might."""

    closed = False

    def run(self, given: Sequence[Call[Any]], folder: Any, progress: bool) -> Generator[Finished, None, None]:
        try:
            yield from LocalExecutor().run(given[::-1])
        finally:
            self.closed = True


def test_the_order_of_finishing_does_not_show(tmp_path: Path) -> None:
    run(tmp_path / "forwards", 7)
    run(tmp_path / "backwards", 7, executor=Backwards())
    assert table_bytes(tmp_path / "backwards") == table_bytes(tmp_path / "forwards")


def test_an_executor_is_closed_when_the_run_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Backwards()

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with RunFolder(tmp_path, study="toy") as folder:
        folder.executor = executor
        monkeypatch.setattr(folder.store, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            carry_out(folder, calls(3))
    assert executor.closed
    assert read_info(tmp_path)["status"] == "interrupted"


def test_progress_is_shown_on_the_error_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, 2)
    assert capsys.readouterr() == ("", "")
    with RunFolder(tmp_path, study="toy") as folder:
        carry_out(folder, calls(5), progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"toy, 2 steps cached; remaining: 3/3 \(100%\), done in \d+:\d\d\n", err)


def test_thousands_of_steps_take_no_more_memory_than_hundreds(tmp_path: Path) -> None:
    import tracemalloc

    result = encode_result(tables_of(0, "model0"))
    held: list[int] = []

    class Stub:
        """Gives every call the same result, and notes the memory in use along the way."""

        def run(self, given: Sequence[Call[Any]], *_: Any) -> Generator[Finished, None, None]:
            for number, call in enumerate(given):
                if number in (300, len(given) - 1):
                    held.append(tracemalloc.get_traced_memory()[0])
                    if len(held) == 2:
                        tracemalloc.stop()  # the tables are written without its eyes, which make it slow
                yield Finished(call, result, 0.1)

    many = calls(800)
    [call.key for call in many.values()]  # made when first asked for, and kept
    [call.label for call in many.values()]
    with RunFolder(tmp_path, study="toy") as folder:
        folder.store.sync(False)  # these steps are to be stored, not to survive a power cut
        folder.executor = Stub()
        tracemalloc.start()
        carry_out(folder, many)
    assert held[1] - held[0] < 50_000
    assert len(read_table(tmp_path, "scores")) == 2_400
