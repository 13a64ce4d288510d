"""Run folders that somebody sent: every command refuses a bad one in a sentence, at once, and reads no more than it
should."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing, contextmanager, suppress
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headwise as hw
from headwise.bounded import LIMIT, decode_arrow, read_parquet
from headwise.cards.head_card import run_scores
from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.heads.heads_file import read_heads
from headwise.report import write_report
from headwise.runs import RunFolder, Store, compute, read_table
from headwise.runs.store import DamagedError
from headwise.tables.columns import encode
from report.conftest import finished_run, score_table

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x, x, x, x FROM c"
FOREIGN = {
    "a trigger that puts cells back": "CREATE TRIGGER t AFTER DELETE ON cells BEGIN SELECT old.id; END;",
    "a trigger that never ends": "CREATE TRIGGER t AFTER INSERT ON cells BEGIN INSERT INTO blobs (key, name, data, "
    f"checksum) {ENDLESS}; END;",
    "a trigger with an escape sequence": "CREATE TRIGGER t BEFORE DELETE ON cells BEGIN SELECT RAISE(ABORT, "
    "'\x1b[2J'); END;",
    "a view that never ends": f"DROP TABLE cells; CREATE VIEW cells (id, key, cell, notes) AS {ENDLESS};",
    "a generated column": "ALTER TABLE cells ADD COLUMN size AS (length(cell));",
    "an index of its own": "CREATE INDEX mine ON blobs (abs(length(data)));",
    "a renamed column": "ALTER TABLE cells RENAME COLUMN notes TO noted;",
    "a table of its own": "CREATE TABLE more (x);",
}


@contextmanager
def within(seconds):
    """The block ends within so many seconds."""

    def stop(*_):
        raise AssertionError(f"this takes more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def run(tmp_path):
    return finished_run(
        tmp_path / "run", "score", {"scores": score_table("tiny", "words", "ablation", (4, 4))}
    )


def resume(run):
    with RunFolder(run) as folder:
        (key,) = folder.store.keys() or {""}
        compute(folder, {0: SimpleNamespace(key=key, text=key, label="a step", cost=None)})[0]


def show(run):
    opened = hw.open_run(run)
    return opened.findings, opened.charts, opened._repr_html_(), opened.notices


READERS = {
    "report": lambda run: write_report([run], run.parent / "page.html"),
    "open_run": show,
    "card": lambda run: run_scores(run, "tiny", Head(0, 0)),
    "heads": lambda run: read_heads(run, 2),
}


def refused(read, run, words):
    with within(10), pytest.raises(HeadwiseError, match=words):
        read(run)


@pytest.mark.parametrize("what", FOREIGN)
def test_a_store_with_anything_that_is_not_ours_is_refused_and_left_as_it_is(run, what):
    with closing(sqlite3.connect(run / "cells.sqlite")) as database:
        database.executescript(FOREIGN[what])
    before = (run / "cells.sqlite").read_bytes()
    refused(resume, run, "which headwise did not put there")
    refused(lambda run: Store(run / "cells.sqlite"), run, "which headwise did not put there")
    assert (run / "cells.sqlite").read_bytes() == before


def test_a_view_in_a_store_whose_schema_is_damaged_is_not_read_while_steps_are_saved(run):
    with closing(sqlite3.connect(run / "cells.sqlite")) as database:
        database.executescript(FOREIGN["a view that never ends"])
        database.executescript(
            "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = 'CREATE TABLE blobs (' WHERE name = 'blobs'"
        )
    with pytest.raises(DamagedError):
        Store(run / "cells.sqlite")
    refused(resume, run, "which headwise did not put there")


@pytest.mark.parametrize("gone", ["cells", "blobs"])
def test_a_store_that_lacks_a_table_is_begun_again(run, gone):
    with closing(sqlite3.connect(run / "cells.sqlite")) as database:
        database.executescript(f"DROP TABLE {gone}")
    with within(20), RunFolder(run) as folder:
        assert len(folder.store) == 0
        assert any("0 finished steps could be saved" in notice for notice in folder.notices)


PLACES = {
    "a pipe": lambda path: os.mkfifo(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "a link out of the run": lambda path: path.symlink_to("/etc/passwd"),
    "a sparse file": lambda path: (path.touch(), os.truncate(path, 200 << 30)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["run.json", "tables/scores.parquet", "cells.sqlite"])
def test_what_is_not_a_regular_file_of_the_run_is_refused_before_it_is_read(run, name, place):
    file = run / name
    file.rename(file.parent / ".kept")
    PLACES[place](file)
    words = "not a regular file|a link that leads out of|GiB, more than|is a link, and"
    if name == "cells.sqlite":
        if place != "a sparse file":
            refused(resume, run, words)
        return
    for command, read in READERS.items():
        if command == "heads" and name == "run.json":
            continue  # without a run.json the folder is not taken for a run
        if command == "heads" and place == "a link out of the run":
            continue  # the table may be given alone, wherever it lies
        refused(read, run, words)


def test_a_figure_that_is_a_link_out_of_the_run_is_not_shown_in_a_notebook(run, tmp_path):
    (run / "figures").mkdir(exist_ok=True)
    (tmp_path / "secret").write_text("secret")
    (run / "figures/a.png").symlink_to(tmp_path / "secret")
    refused(lambda run: hw.open_run(run)._repr_html_(), run, "a link that leads out of")


def test_a_journal_beside_the_store_is_set_aside_and_not_played_back(run):
    whole = (run / "cells.sqlite").read_bytes()
    (run / "cells.sqlite-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(600))
    with RunFolder(run) as folder:
        assert len(folder.store) == 1
    assert (run / "cells.sqlite").read_bytes() == whole
    assert (run / "cells-stray.journal").exists()


# --- tables that hold more than their files --------------------------------------------------------------


def scores_with(run, **columns):
    table = pq.read_table(run / "tables/scores.parquet")
    for name, values in columns.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, values)
        else:
            table = table.append_column(name, values)
    return table


def test_a_table_that_holds_gigabytes_is_refused_by_what_it_declares(run, monkeypatch):
    monkeypatch.setenv(LIMIT, "0.25")
    rows = 4_000_000
    pq.write_table(
        pa.table({name: pa.array(np.zeros(rows)) for name in "abcdefghij"}),
        run / "tables/scores.parquet",
        compression="zstd",
    )
    assert (run / "tables/scores.parquet").stat().st_size < 2_000_000
    before = pa.total_allocated_bytes()
    for read in READERS.values():
        refused(read, run, "takes 0.3 GiB, more than the 0.25 GiB that are read; raise HEADWISE_MAX_GB")
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize(
    ("column", "text", "words"),
    [
        ("model", "x" * 2_000_000, "a name of more than 1,000 characters|a text of 2,000,000 bytes"),
        ("extra", "x" * 2_000_000, "a text of 2,000,000 bytes"),
    ],
)
def test_one_endless_text_is_refused(run, column, text, words):
    rows = len(read_table(run, "scores"))
    pq.write_table(scores_with(run, **{column: pa.array([text] * rows)}), run / "tables/scores.parquet")
    for read in READERS.values():
        refused(read, run, words)


def test_a_text_that_is_repeated_counts_as_often_as_it_is_there(run, monkeypatch):
    """The text is once in the file and a thousand times in the table."""
    monkeypatch.setenv(LIMIT, "0.5")
    table = pa.table({"a": pa.array(["y" * 200_000] * 4_000)})
    place = run / "tables/other.parquet"
    pq.write_table(table, place)
    assert place.stat().st_size < 200_000
    refused(lambda run: read_table(run, "other"), run, "takes 0.7 GiB, more than the 0.5 GiB")
    monkeypatch.setenv(LIMIT, "1")
    assert read_table(run, "other")["a"].str.len().sum() == 200_000 * 4_000


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([[1]] * 3), "has the type 'list<"),
        (pa.array([{"a": 1}] * 3), "has the type 'struct<"),
        (pa.array([b"x"] * 3), "has the type 'binary'"),
        (pa.array(["a"] * 3).dictionary_encode(), "has the type 'dictionary<"),
    ],
)
def test_columns_that_no_study_writes_are_refused(tmp_path, column, words):
    pq.write_table(pa.table({"a": column}), tmp_path / "t.parquet")
    with pytest.raises(HeadwiseError, match=words):
        read_parquet(tmp_path / "t.parquet")
    with pytest.raises(HeadwiseError, match=words):
        encode(pa.table({"a": column}))


def test_an_encoding_that_hides_its_size_is_refused(tmp_path):
    table = pa.table({"a": pa.array(["x" * 100_000] * 100)})
    encoding = {"a": "DELTA_BYTE_ARRAY"}
    pq.write_table(table, tmp_path / "t.parquet", use_dictionary=False, column_encoding=encoding)
    with pytest.raises(HeadwiseError, match="DELTA_BYTE_ARRAY"):
        read_parquet(tmp_path / "t.parquet")


def arrow(table, compression=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_table(table, max_chunksize=len(table) // 3 or None)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_a_blob_declares_the_size_that_it_has_once_it_is_decoded(monkeypatch, compression):
    """The limit is just below, then just above, what pyarrow says of the decoded table."""
    frame = {"a": np.zeros(90_000), "b": np.zeros(90_000, np.int64), "c": ["text"] * 90_000}
    table = pa.table(frame)
    data = arrow(table, compression)
    monkeypatch.setenv(LIMIT, str(1.01 * max(table.nbytes, 24 * len(table)) / 2**30))
    assert decode_arrow(data, "it").equals(table)
    if compression:
        monkeypatch.setenv(LIMIT, str(0.99 * table.nbytes / 2**30))
        with pytest.raises(HeadwiseError, match="more than the"):
            decode_arrow(data, "it")


def test_a_blob_of_rows_that_take_no_room_is_refused():
    with pytest.raises(HeadwiseError, match=r"it takes 7\.5 GiB"):
        decode_arrow(arrow(pa.table({"a": pa.nulls(10**9)})), "it")


def test_a_blob_whose_offsets_lead_out_of_it_is_refused():
    data = bytearray(arrow(pa.table({"a": ["abc", "def"]})))
    place = bytes(data).index(b"\0\0\0\0\x03\0\0\0\x06\0\0\0")
    data[place + 4 : place + 8] = (10**8).to_bytes(4, "little")
    with pytest.raises(ValueError, match=r"[Oo]ffset"):
        decode_arrow(bytes(data), "it")


# --- tables with other columns ----------------------------------------------------------------------------

VALUES = [float("inf"), float("nan"), None, "x", -1, 10**18, 100_000, 1.5, True, "\x1b[2J", b"x"]


@pytest.mark.parametrize("column", ["layer", "head", "score", "n", "model", "task"])
def test_a_table_with_any_value_in_a_column_is_shown_or_refused_in_a_sentence(run, column):
    table = read_table(run, "scores")
    for value in VALUES:
        table.assign(**{column: value}).to_parquet(run / "tables/scores.parquet", index=False)
        for read in READERS.values():
            with within(20), suppress(HeadwiseError):
                read(run)
    table.drop(columns=[column]).to_parquet(run / "tables/scores.parquet", index=False)
    if column != "n":
        refused(READERS["heads"], run, "has no column")


@pytest.mark.parametrize(
    "notes", ['{"not_finite": 1}', '{"not_finite": [{}]}', "{}", "[1]", "{", "[" * 100_000]
)
def test_forged_notes_are_a_sentence(run, notes):
    with Store(run / "cells.sqlite") as store:
        (key,) = store.keys()
        text, encoded = store.encoded(key)
        store.put(text, encoded._replace(notes=notes, flagged=True))
    refused(resume, run, "not what headwise writes|headwise does not write|notes of")


def test_a_message_with_an_escape_sequence_is_written_out(run, monkeypatch, capsys):
    from headwise.cli.app import main

    info = json.loads((run / "run.json").read_text())
    info["study"] = "\x1b[2Jscore\x9b1m"
    (run / "run.json").write_text(json.dumps(info))
    moved = run.rename(run.parent / "run\x1b]0;title\x07")
    monkeypatch.setattr("sys.argv", ["headwise", "report", str(moved)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    message = "".join(capsys.readouterr())
    assert "\\x1b[2Jscore" in message
    assert not {"\x1b", "\x9b", "\x07"} & set(message)


def test_a_frame_of_a_study_is_what_pandas_reads(run):
    expected = pd.read_parquet(run / "tables/scores.parquet")
    pd.testing.assert_frame_equal(read_table(run, "scores"), expected, check_dtype=False)
