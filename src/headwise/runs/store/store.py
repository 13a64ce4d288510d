"""Finished cells on disk: one SQLite file, one transaction for each cell, a checksum for each blob.

What `put` has returned from survives a killed process and a power cut (write-ahead log, full sync). Nothing
that is read back is trusted: the cell's text must hash to its key, every table to its checksum, and a
checksum over both says that no table is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.errors import HeadwiseError
from headwise.files import DiskError, explain_disk_errors
from headwise.runs.store.cells import Cell, CellResult, canonical, plain

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS cells (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, cell TEXT NOT NULL, notes TEXT NOT NULL,
    seconds REAL NOT NULL, flagged INTEGER NOT NULL, checksum TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS blobs (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, checksum TEXT NOT NULL,
    UNIQUE (key, name));
CREATE INDEX IF NOT EXISTS flagged ON cells (key) WHERE flagged;
"""


class DamagedError(HeadwiseError):
    """The file, or a cell in it, is not what was written. Opening the run again saves what can be saved."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{' '.join(what.split())}; run the same command again, and the good cells are saved, the others recomputed"
        )


class MovedError(DiskError):
    """The run is no longer where it was opened: somebody moved, deleted or replaced it."""

    def __init__(self, run: Path) -> None:
        super().__init__(
            f"{run} was moved, deleted or replaced while it was in use; cells that were finished are where its "
            "cells.sqlite is now: put the folder back, if it is still there, and run the same command again"
        )


class CellStore:
    """The finished cells of a run, by key."""

    def __init__(self, path: str | Path, *, must_exist: bool = False) -> None:
        """Open or create. Raises `DamagedError` when the file is no sound database."""
        self.path = Path(path)
        if must_exist and not self.path.is_file():
            raise HeadwiseError(f"there are no finished cells at {self.path}; give the folder of a run")
        with guarded(self.path):
            self._connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
            try:
                self._prepare()
                self._file = self.path.stat()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        run = self._connection.execute
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=FULL")
        version = run("PRAGMA user_version").fetchone()[0]
        if version > FORMAT:
            raise HeadwiseError(
                f"{self.path} was written by a newer headwise (format {version}, this one reads {FORMAT}); "
                "update headwise, or give another --out"
            )
        found = run("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise DamagedError(f"{self.path} is damaged: {found}")
        if version < FORMAT:
            self._connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={FORMAT}; COMMIT;")

    # --- writing ------------------------------------------------------------------------------------

    def put(self, cell: Cell, result: CellResult, *, seconds: float = 0.0, flagged: bool = False) -> None:
        """Store a finished cell, whole or not at all; an earlier result of the same cell is replaced.

        `flagged` cells have something in their notes that the user should hear.
        """
        from headwise.runs.store.columns import encode, to_arrow

        blobs = {name: encode(to_arrow(name, frame)) for name, frame in result.tables.items()}
        notes = canonical(plain(result.notes, "notes"))
        self.put_encoded(cell.text, notes, blobs, seconds=seconds, flagged=flagged)

    def put_encoded(
        self, text: str, notes: str, blobs: Mapping[str, bytes], *, seconds: float, flagged: bool
    ) -> None:
        """Store a cell whose parts are text and bytes already."""
        key = _hash(text.encode())
        checksums = {name: _hash(data) for name, data in blobs.items()}
        run = self._connection.execute
        with guarded(self.path):
            run("BEGIN IMMEDIATE")
            try:
                run("DELETE FROM cells WHERE key = ?", (key,))
                run("DELETE FROM blobs WHERE key = ?", (key,))
                for name, data in blobs.items():
                    run(
                        "INSERT INTO blobs (key, name, data, checksum) VALUES (?, ?, ?, ?)",
                        (key, name, data, checksums[name]),
                    )
                run(
                    "INSERT INTO cells (key, cell, notes, seconds, flagged, checksum)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (key, text, notes, seconds, flagged, whole_checksum(text, notes, checksums)),
                )
                run("COMMIT")
            except BaseException:
                # A full disk may have rolled the transaction back already.
                if self._connection.in_transaction:
                    run("ROLLBACK")
                raise
        self.check_place()  # after storing: a cell in a folder that was moved can be used when it is moved back

    def check_place(self) -> None:
        """Raise `MovedError` where the path no longer leads to the file that was opened.

        The system goes on writing into a file that was moved or deleted, without a word.
        """
        try:
            now = self.path.stat()
        except OSError:
            raise MovedError(self.path.parent) from None
        if not os.path.samestat(now, self._file):
            raise MovedError(self.path.parent)

    def forget(self, keys: Iterable[str]) -> None:
        """Drop these cells, so that they are computed again."""
        run = self._connection.execute
        with guarded(self.path):
            run("BEGIN IMMEDIATE")
            for key in keys:
                run("DELETE FROM cells WHERE key = ?", (key,))
                run("DELETE FROM blobs WHERE key = ?", (key,))
            run("COMMIT")

    def sync(self, on: bool) -> None:
        """Whether each `put` waits for the disk. Turning it back on brings everything before to the disk."""
        with guarded(self.path):
            self._connection.execute(f"PRAGMA synchronous={'FULL' if on else 'OFF'}")
            if on:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- reading ------------------------------------------------------------------------------------

    def keys(self) -> set[str]:
        """The keys of all finished cells, from the index alone."""
        with guarded(self.path):
            return {key for (key,) in self._connection.execute("SELECT key FROM cells")}

    def has(self, key: str) -> bool:
        with guarded(self.path):
            return (
                self._connection.execute("SELECT 1 FROM cells WHERE key = ?", (key,)).fetchone() is not None
            )

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.has(key)

    def __len__(self) -> int:
        with guarded(self.path):
            return int(self._connection.execute("SELECT count(*) FROM cells").fetchone()[0])

    def flagged(self) -> set[str]:
        """The keys of cells whose notes hold something the user should hear."""
        with guarded(self.path):
            return {key for (key,) in self._connection.execute("SELECT key FROM cells WHERE flagged")}

    def cell(self, key: str) -> Cell:
        """The cell that was computed."""
        return Cell.from_text(self._checked(key)[0])

    def notes(self, key: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(self._checked(key)[1])
        return found

    def get(self, key: str) -> CellResult:
        """A finished cell, every part of it checked."""
        from headwise.runs.store.columns import to_pandas

        _, notes, names = self._checked(key)
        tables = {name: to_pandas(self.table(key, name)) for name in names}
        return CellResult(tables, json.loads(notes))

    def table(self, key: str, name: str) -> pa.Table:
        """One table of one cell."""
        from headwise.runs.store.columns import decode

        with guarded(self.path):
            row = self._connection.execute(
                "SELECT data, checksum FROM blobs WHERE key = ? AND name = ?", (key, name)
            ).fetchone()
        if row is None:
            raise KeyError((key, name))
        if not is_intact(*row):
            raise DamagedError(f"table {name!r} of cell {key[:12]} in {self.path} is damaged")
        return decode(row[0])

    def check(self, key: str) -> None:
        """Raise `DamagedError` where a finished cell is not what was written."""
        for name in self._checked(key)[2]:
            self.table(key, name)

    def table_names(self) -> Iterator[tuple[str, str]]:
        """Every (key, table name) there is, from the index alone."""
        with guarded(self.path):
            yield from self._connection.execute("SELECT key, name FROM blobs")

    def _checked(self, key: str) -> tuple[str, str, list[str]]:
        run = self._connection.execute
        with guarded(self.path):
            row = run("SELECT cell, notes, checksum FROM cells WHERE key = ?", (key,)).fetchone()
            if row is None:
                raise KeyError(key)
            checksums = dict(run("SELECT name, checksum FROM blobs WHERE key = ? ORDER BY id", (key,)))
        text, notes, checksum = row
        if not is_whole(key, text, notes, checksum, checksums):
            raise DamagedError(f"cell {key[:12]} in {self.path} is damaged")
        return text, notes, list(checksums)

    def close(self) -> None:
        """Fold the log into the file and let go of it. Safe to call twice."""
        self._connection.close()

    def __enter__(self) -> CellStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_intact(data: object, checksum: object) -> bool:
    """Whether a blob is what was written."""
    return isinstance(data, bytes) and _hash(data) == checksum


def is_whole(key: str, text: str, notes: str, checksum: str, checksums: Mapping[str, str]) -> bool:
    """Whether a cell's row is what was written and lists exactly the tables that are there."""
    if not (isinstance(text, str) and isinstance(notes, str)):
        return False  # damage can change the type of a column
    return _hash(text.encode()) == key and whole_checksum(text, notes, checksums) == checksum


def whole_checksum(text: str, notes: str, checksums: Mapping[str, str]) -> str:
    """One checksum over the cell, its notes, and the checksums of its tables."""
    return _hash(canonical([text, notes, sorted(checksums.items())]).encode())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Tell what is wrong with a file's content, `DamagedError`, from what the world does to it."""
    with explain_disk_errors(path):
        try:
            yield
        except sqlite3.DatabaseError as error:
            # Its subclasses are about statements and the world; the plain class is about the content. Text
            # that is no text is content too, though Python files it under OperationalError.
            if type(error) is sqlite3.DatabaseError or "decode to UTF-8" in str(error):
                raise DamagedError(f"{path} is damaged: {error}") from error
            raise
