"""The store of finished cells: what is put is got, and damage is noticed, contained and survived."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.runs import CellResult, CellStore
from headwise.runs.store import store as store_module
from headwise.runs.store.columns import encode, to_arrow
from headwise.runs.store.salvage import finish_salvage, salvage
from headwise.runs.store.store import DamagedError
from runs.toy_study import compute, make_cells


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cells.sqlite"


def fill(place: Path, count: int = 20) -> list[str]:
    cells = make_cells(count)
    with CellStore(place) as store:
        store.sync(False)
        for cell in cells:
            store.put(cell, compute(cell), seconds=0.5)
        store.sync(True)
    return [cell.key for cell in cells]


def edit(place: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(place)
    with connection:
        connection.execute(statement, values)
    connection.close()


def test_what_was_put_is_got_back(place: Path) -> None:
    keys = fill(place)
    with CellStore(place) as store:
        assert store.keys() == set(keys)
        assert len(store) == 20
        assert keys[3] in store
        assert "0" * 64 not in store
        for cell in make_cells(20):
            found, expected = store.get(cell.key), compute(cell)
            assert found.notes == {"rows": 12}
            assert set(found.tables) == set(expected.tables)
            for name, frame in expected.tables.items():
                pd.testing.assert_frame_equal(found.tables[name][frame.columns], frame, check_dtype=False)
            assert store.cell(cell.key) == cell
        with pytest.raises(KeyError):
            store.get("0" * 64)


def test_putting_a_cell_again_replaces_it(place: Path) -> None:
    cell = make_cells(1)[0]
    with CellStore(place) as store:
        store.put(cell, CellResult({"wild": pd.DataFrame({"x": [float("inf")]})}))
        assert store.flagged() == {cell.key}
        store.put(cell, CellResult({"other": pd.DataFrame({"x": [1]})}))
        assert list(store.get(cell.key).tables) == ["other"]
        assert len(store) == 1
        assert not store.flagged()


def test_every_kind_of_value_survives_the_bytes(place: Path) -> None:
    cell = make_cells(1)[0]
    frame = pd.DataFrame(
        {
            "text": ["a", None, "ü"],
            "number": [1.5, np.nan, np.inf],
            "whole": [1, 2, 3],
            "gap": pd.array([1, None, 3], dtype="Int64"),
            "yes": [True, False, True],
            "kind": pd.Categorical(["x", "y", "x"]),
            "when": pd.to_datetime(["2024-01-01", "2024-01-02", None]),
        }
    )
    with CellStore(place) as store:
        store.put(cell, CellResult({"wild": frame, "empty": frame.iloc[:0]}))
        found = store.get(cell.key).tables["wild"]
        assert store.get(cell.key).tables["empty"].shape == (0, 7)
    assert found["text"].tolist()[::2] == ["a", "ü"]
    assert pd.isna(found["text"][1])
    np.testing.assert_array_equal(found["number"], frame["number"])
    assert found["gap"].dtype == "Int64"
    assert found["gap"].tolist() == frame["gap"].tolist()
    assert found["kind"].tolist() == ["x", "y", "x"]
    assert found["when"].equals(frame["when"].astype(found["when"].dtype))


def test_notes_that_cannot_be_stored_are_refused_and_leave_nothing_behind(place: Path) -> None:
    with CellStore(place) as store:
        with pytest.raises(HeadwiseError, match=r"notes\.gap is nan"):
            store.put(make_cells(1)[0], CellResult({}, {"gap": float("nan")}))
        assert len(store) == 0


def test_a_transaction_that_fails_in_the_middle_leaves_the_old_cell(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = make_cells(1)[0]
    with CellStore(place) as store:
        store.put(cell, compute(cell))

        def broken(*_: object) -> str:
            raise KeyboardInterrupt  # between the blobs and the cell's own row

        with monkeypatch.context() as patch:
            patch.setattr(store_module, "whole_checksum", broken)
            with pytest.raises(KeyboardInterrupt):
                store.put(cell, CellResult({"other": pd.DataFrame({"x": [1]})}))
        assert set(store.get(cell.key).tables) == {"scores", "examples", "curves"}


def test_the_file_is_as_durable_as_sqlite_can_make_it(place: Path) -> None:
    with CellStore(place) as store:
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_no_pickle_is_in_the_file_and_arrow_alone_reads_a_blob(place: Path) -> None:
    import pyarrow as pa

    fill(place, 1)
    data = sqlite3.connect(place).execute("SELECT data FROM blobs WHERE name = 'scores'").fetchone()[0]
    assert pa.ipc.open_stream(data).read_all().num_rows == 3


def test_a_file_of_a_newer_format_is_refused(place: Path) -> None:
    fill(place, 1)
    edit(place, "PRAGMA user_version=99")
    with pytest.raises(HeadwiseError, match="newer headwise"):
        CellStore(place)


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE blobs SET data = x'00' || substr(data, 2) WHERE key = ? AND name = 'scores'",
        "UPDATE blobs SET data = 'text' WHERE key = ? AND name = 'scores'",
        "UPDATE blobs SET name = 'curves2' WHERE key = ? AND name = 'scores'",
        "DELETE FROM blobs WHERE key = ? AND name = 'scores'",
        "UPDATE cells SET notes = '{\"rows\":13}' WHERE key = ?",
        "UPDATE cells SET cell = replace(cell, 'ioi', 'ioj') WHERE key = ?",
        "UPDATE cells SET notes = x'ff' WHERE key = ?",
        "UPDATE cells SET notes = CAST(x'ff' AS TEXT) WHERE key = ?",
    ],
)
def test_a_changed_cell_is_noticed_and_the_others_are_saved(place: Path, statement: str) -> None:
    keys = fill(place)
    edit(place, statement, keys[7])
    with CellStore(place) as store, pytest.raises(DamagedError):
        store.get(keys[7])
    saved, kept = salvage(place)
    assert saved == 19
    assert kept.name == "cells-damaged.sqlite"
    assert kept.exists()
    with CellStore(place) as store:
        assert store.keys() == set(keys) - {keys[7]}
        for key in store.keys():  # noqa: SIM118
            store.get(key)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_truncated_file_is_noticed_and_gives_up_what_it_has(place: Path, share: float) -> None:
    keys = fill(place, 200)
    whole = place.stat().st_size
    with place.open("rb+") as file:
        file.truncate(int(whole * share))
    with pytest.raises(DamagedError):
        CellStore(place)
    saved, kept = salvage(place)
    assert kept.stat().st_size == int(whole * share)
    with CellStore(place) as store:
        assert len(store) == saved
        assert store.keys() <= set(keys)
        for cell in make_cells(200):
            if cell.key in store:
                found = store.get(cell.key).tables["scores"]["score"]
                np.testing.assert_array_equal(found, compute(cell).tables["scores"]["score"])
    assert saved >= 200 * share * 0.5


def test_bad_pages_in_the_middle_cost_only_the_cells_on_them(place: Path) -> None:
    keys = fill(place, 300)
    size = place.stat().st_size
    with place.open("rb+") as file:
        for page in (0.4, 0.5):
            file.seek(int(size * page) // 4096 * 4096)
            file.write(b"\xff" * 4096)
    saved, _ = salvage(place)
    assert 250 <= saved < 300
    with CellStore(place) as store:
        for key in store.keys():  # noqa: SIM118
            assert key in keys
            store.get(key)


@pytest.mark.parametrize(
    "content", [b"this is not a database" * 500, b"SQLite format 3\x00" + b"\x07" * 9000]
)
def test_a_file_that_is_no_database_is_kept_aside(place: Path, content: bytes) -> None:
    place.write_bytes(content)
    with pytest.raises(DamagedError):
        CellStore(place)
    saved, kept = salvage(place)
    assert saved == 0
    assert kept.read_bytes() == content
    assert salvage(place).kept.name == "cells-damaged-2.sqlite"


def test_a_salvage_that_was_cut_short_is_completed(place: Path) -> None:
    keys = fill(place)
    # As left behind when the damaged file was already gone: the new one under its working name, the old log.
    place.rename(place.with_name("cells.sqlite.salvaged"))
    stray = Path(f"{place}-wal")
    stray.write_bytes(b"a log that belongs to another file")
    finish_salvage(place)
    with CellStore(place) as store:
        assert store.keys() == set(keys)
    assert place.with_name("cells-stray.sqlite-wal").exists()


def test_a_salvage_that_was_cut_short_early_starts_again(place: Path) -> None:
    keys = fill(place)
    place.with_name("cells.sqlite.salvaged").write_bytes(b"half a file")
    edit(place, "DELETE FROM blobs WHERE key = ?", keys[0])
    assert salvage(place).saved == 19


# --- size -----------------------------------------------------------------------------------------


def test_a_hundred_thousand_cells_are_scanned_in_under_five_seconds(place: Path) -> None:
    blob = encode(to_arrow("tiny", pd.DataFrame({"x": [1.0]})))
    checksum = hashlib.sha256(blob).hexdigest()
    keys = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(100_000)]
    with CellStore(place) as store:
        run = store._connection
        run.execute("BEGIN")
        run.executemany(
            "INSERT INTO cells (key, cell, notes, seconds, flagged, checksum) VALUES (?, ?, '{}', 0, 0, '')",
            ((key, "x" * 400) for key in keys),
        )
        run.executemany(
            "INSERT INTO blobs (key, name, data, checksum) VALUES (?, 'tiny', ?, ?)",
            ((key, blob, checksum) for key in keys),
        )
        run.execute("COMMIT")
        for query in ("SELECT key FROM cells", "SELECT key, name FROM blobs"):
            plan = run.execute(f"EXPLAIN QUERY PLAN {query}").fetchone()[-1]
            assert "COVERING INDEX" in plan  # the rows themselves are never touched
    began = time.process_time()  # on a busy machine the clock on the wall measures the others
    with CellStore(place) as store:
        assert store.keys() == set(keys)
    assert time.process_time() - began < 5
