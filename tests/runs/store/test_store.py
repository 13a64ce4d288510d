"""The store of finished steps: what is put is got, and damage is noticed, contained and survived."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.runs import Store
from headwise.runs import store as store_module
from headwise.runs.salvage import finish_salvage, salvage
from headwise.runs.store import DamagedError, encode_result
from headwise.tables.columns import encode, to_arrow
from runs.toy_study import calls, tables_of


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cells.sqlite"


def fill(place: Path, count: int = 20) -> list[str]:
    with Store(place) as store:
        store.sync(False)
        for number, call in calls(count).items():
            store.put(call.text, encode_result(tables_of(number, f"model{number % 2}")), seconds=0.5)
        store.sync(True)
    return [call.key for call in calls(count).values()]


def edit(place: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(place)
    with connection:
        connection.execute(statement, values)
    connection.close()


def test_what_was_put_is_got_back(place: Path) -> None:
    keys = fill(place)
    with Store(place) as store:
        assert store.keys() == set(keys)
        assert len(store) == 20
        assert keys[3] in store
        assert "0" * 64 not in store
        for number, call in calls(20).items():
            found, expected = store.get(call.key), tables_of(number, f"model{number % 2}")
            assert set(found) == set(expected)
            for name, frame in expected.items():
                pd.testing.assert_frame_equal(found[name], frame, check_dtype=False)
            assert store.text(call.key) == call.text
        with pytest.raises(KeyError):
            store.get("0" * 64)


def test_putting_a_result_again_replaces_it(place: Path) -> None:
    call = calls(1)[0]
    with Store(place) as store:
        store.put(call.text, encode_result({"wild": pd.DataFrame({"x": [float("inf")]})}))
        assert store.flagged() == {call.key}
        store.put(call.text, encode_result({"other": pd.DataFrame({"x": [1]})}))
        assert list(store.get(call.key)) == ["other"]
        assert len(store) == 1
        assert not store.flagged()


def test_a_transaction_that_fails_in_the_middle_leaves_the_old_result(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = fill(place, 1)
    with Store(place) as store:

        def broken(*_: object) -> str:
            raise KeyboardInterrupt  # between the blobs and the row of the call

        with monkeypatch.context() as patch:
            patch.setattr(store_module, "whole_checksum", broken)
            with pytest.raises(KeyboardInterrupt):
                store.put(calls(1)[0].text, encode_result({"other": pd.DataFrame({"x": [1]})}))
        assert set(store.get(key)) == {"scores", "examples", "curves"}


def test_the_file_is_as_durable_as_sqlite_can_make_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, unsynced: str
) -> None:
    monkeypatch.setattr(store_module, "SYNCHRONOUS", unsynced)
    with Store(place) as store:
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_no_pickle_is_in_the_file_and_arrow_alone_reads_a_blob(place: Path) -> None:
    import pyarrow as pa

    fill(place, 1)
    data = sqlite3.connect(place).execute("SELECT data FROM blobs WHERE name = '0'").fetchone()[0]
    assert pa.ipc.open_stream(data).read_all().num_rows == 3


@pytest.mark.parametrize(("version", "message"), [(99, "newer headwise"), (1, "earlier headwise.*fresh")])
def test_a_file_of_another_format_is_refused(place: Path, version: int, message: str) -> None:
    fill(place, 1)
    edit(place, f"PRAGMA user_version={version}")
    with pytest.raises(HeadwiseError, match=message):
        Store(place)


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE blobs SET data = x'00' || substr(data, 2) WHERE key = ? AND name = '0'",
        "UPDATE blobs SET data = 'text' WHERE key = ? AND name = '0'",
        "UPDATE blobs SET name = 'curves2' WHERE key = ? AND name = '0'",
        "DELETE FROM blobs WHERE key = ? AND name = '0'",
        "UPDATE cells SET notes = '{}' WHERE key = ?",
        "UPDATE cells SET cell = replace(cell, 'model', 'modem') WHERE key = ?",
        "UPDATE cells SET notes = x'ff' WHERE key = ?",
        "UPDATE cells SET notes = CAST(x'ff' AS TEXT) WHERE key = ?",
    ],
)
def test_a_changed_result_is_noticed_and_the_others_are_saved(place: Path, statement: str) -> None:
    keys = fill(place)
    edit(place, statement, keys[7])
    with Store(place) as store, pytest.raises(DamagedError):
        store.get(keys[7])
    saved, kept = salvage(place)
    assert saved == 19
    assert kept.name == "cells-damaged.sqlite"
    assert kept.exists()
    with Store(place) as store:
        assert store.keys() == set(keys) - {keys[7]}
        for key in store.keys():  # noqa: SIM118
            store.get(key)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_truncated_file_is_noticed_and_gives_up_what_it_has(place: Path, share: float) -> None:
    keys = fill(place, 80)
    whole = place.stat().st_size
    with place.open("rb+") as file:
        file.truncate(int(whole * share))
    with pytest.raises(DamagedError):
        Store(place)
    saved, kept = salvage(place)
    assert kept.stat().st_size == int(whole * share)
    with Store(place) as store:
        assert len(store) == saved
        assert store.keys() <= set(keys)
        for number, call in calls(80).items():
            if call.key in store:
                found, expected = store.get(call.key), tables_of(number, f"model{number % 2}")
                np.testing.assert_array_equal(found["scores"]["score"], expected["scores"]["score"])
    assert saved >= 80 * share * 0.5


def test_bad_pages_in_the_middle_cost_only_the_results_on_them(place: Path) -> None:
    keys = fill(place, 120)
    size = place.stat().st_size
    with place.open("rb+") as file:
        for page in (0.4, 0.5):
            file.seek(int(size * page) // 4096 * 4096)
            file.write(b"\xff" * 4096)
    saved, _ = salvage(place)
    assert 80 <= saved < 120
    with Store(place) as store:
        for key in store.keys():  # noqa: SIM118
            assert key in keys
            store.get(key)


@pytest.mark.parametrize(
    "content", [b"this is not a database" * 500, b"SQLite format 3\x00" + b"\x07" * 9000]
)
def test_a_file_that_is_no_database_is_kept_aside(place: Path, content: bytes) -> None:
    place.write_bytes(content)
    with pytest.raises(DamagedError):
        Store(place)
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
    with Store(place) as store:
        assert store.keys() == set(keys)
    assert place.with_name("cells-stray.sqlite-wal").exists()


def test_a_salvage_that_was_cut_short_early_starts_again(place: Path) -> None:
    keys = fill(place)
    place.with_name("cells.sqlite.salvaged").write_bytes(b"half a file")
    edit(place, "DELETE FROM blobs WHERE key = ?", keys[0])
    assert salvage(place).saved == 19


# --- size -----------------------------------------------------------------------------------------


def test_a_list_of_all_results_is_read_from_the_index_alone(place: Path) -> None:
    blob = encode(to_arrow("tiny", pd.DataFrame({"x": [1.0]})))
    checksum = hashlib.sha256(blob).hexdigest()
    keys = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(2_000)]
    with Store(place) as store:
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
    with Store(place) as store:
        assert store.keys() == set(keys)
