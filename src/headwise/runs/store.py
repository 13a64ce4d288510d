"""Finished steps on disk: one SQLite file, one transaction for each step, a checksum for each blob.

What `put` has returned from survives a killed process and a power cut (write-ahead log, full sync). Nothing
that is read back is trusted: the step's text must hash to its key, every table to its checksum, and a
checksum over both says that no table is missing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from headwise.bounded import decode_arrow, regular
from headwise.errors import HeadwiseError, flag, hint, quoted
from headwise.files import DiskError, explain_disk_errors
from headwise.runs.values import canonical, not_finite

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 2
SYNCHRONOUS = "FULL"
"""SQLite's word for how far each result that is put waits for the disk."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS cells (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, cell TEXT NOT NULL, notes TEXT NOT NULL,
    seconds REAL NOT NULL, flagged INTEGER NOT NULL, checksum TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS blobs (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, checksum TEXT NOT NULL,
    UNIQUE (key, name));
CREATE INDEX IF NOT EXISTS flagged ON cells (key) WHERE flagged;
"""
_MOST_STEPS = 1_000
"""Millions of steps of SQLite in which a file is checked: some 20 seconds, where a million steps take a moment."""


class DamagedError(HeadwiseError):
    """The file, or a step in it, is not what was written. Opening the run again saves what can be saved."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{' '.join(what.split())}; run the same command again, and the good steps are saved, the others recomputed"
        )


class MovedError(DiskError):
    """The run is no longer where it was opened: somebody moved, deleted or replaced it."""

    def __init__(self, run: Path) -> None:
        super().__init__(
            f"{run} was moved, deleted or replaced while it was in use; steps that were finished are where its "
            "cells.sqlite is now: put the folder back, if it is still there, and run the same command again"
        )


class Encoded(NamedTuple):
    """A result as the store keeps it: text and bytes, made where it was computed."""

    notes: str
    blobs: Mapping[str, bytes]
    flagged: bool
    """Whether some values are not finite."""


def encode_result(result: Any) -> Encoded:
    """Look for values that are not finite, and make bytes of arrays and frames."""
    from headwise.tables.codec import encode_parts, pack

    entries = not_finite(result)
    content, blobs = encode_parts(pack(result))
    content |= {"not_finite": entries} if entries else {}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)  # in the order of every mapping
    return Encoded(text, blobs, bool(entries))


class Store:
    """The finished steps of a run, by key."""

    def __init__(self, path: str | Path) -> None:
        """Open or create. Raises `DamagedError` when the file is no sound database."""
        self.path = Path(path)
        with guarded(self.path):
            self._connection = connect(self.path)
            try:
                self._prepare()
                self._file = self.path.stat()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        run = self._connection.execute
        problem = run("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise DamagedError(f"{self.path} is damaged: {problem}")
        # Every page is now known to belong to one place, so no later query reads more than the file has.
        self._connection.set_progress_handler(None, 0)
        run("PRAGMA journal_mode=WAL")
        run(f"PRAGMA synchronous={SYNCHRONOUS}")
        if run("PRAGMA user_version").fetchone()[0] < FORMAT:
            self._connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={FORMAT}; COMMIT;")

    # --- writing ------------------------------------------------------------------------------------

    def put(self, text: str, encoded: Encoded, seconds: float = 0.0) -> None:
        """Store the result of the call of this text, whole or not at all; an earlier one is replaced."""
        key = _hash(text.encode())
        checksums = {name: _hash(data) for name, data in encoded.blobs.items()}
        with self._transaction() as run:
            _delete(run, key)
            for name, data in encoded.blobs.items():
                values = (key, name, data, checksums[name])
                run("INSERT INTO blobs (key, name, data, checksum) VALUES (?, ?, ?, ?)", values)
            checksum = whole_checksum(text, encoded.notes, checksums)
            run(
                "INSERT INTO cells (key, cell, notes, seconds, flagged, checksum) VALUES (?, ?, ?, ?, ?, ?)",
                (key, text, encoded.notes, seconds, encoded.flagged, checksum),
            )
        self.check_place()  # after storing: a step in a folder that was moved can be used when it is moved back

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., Any]]:
        run = self._connection.execute
        with guarded(self.path):
            run("BEGIN IMMEDIATE")
            try:
                yield run
                run("COMMIT")
            except BaseException:
                # A full disk may have rolled the transaction back already.
                if self._connection.in_transaction:
                    run("ROLLBACK")
                raise

    def check_place(self) -> None:
        """Raise `MovedError` where the path no longer leads to the file that was opened.

        The system goes on writing into a file that was moved or deleted, without an error.
        """
        with suppress(OSError):
            if os.path.samestat(self.path.stat(), self._file):
                return
        raise MovedError(self.path.parent)

    def forget(self, keys: Iterable[str]) -> None:
        """Drop these steps, so that they are computed again."""
        with self._transaction() as run:
            for key in keys:
                _delete(run, key)

    def sync(self, on: bool) -> None:
        """Whether each `put` waits for the disk. Turning it back on brings everything before to the disk."""
        with guarded(self.path):
            self._connection.execute(f"PRAGMA synchronous={SYNCHRONOUS if on else 'OFF'}")
            if on:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- reading ------------------------------------------------------------------------------------

    def _rows(self, query: str, *values: str) -> list[Any]:
        with guarded(self.path):
            return self._connection.execute(query, values).fetchall()

    def keys(self) -> set[str]:
        """The keys of all finished steps, from the index alone."""
        return {key for (key,) in self._rows("SELECT key FROM cells WHERE typeof(key) = 'text'")}

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self._rows("SELECT 1 FROM cells WHERE key = ?", key))

    def __len__(self) -> int:
        return int(self._rows("SELECT count(*) FROM cells")[0][0])

    def flagged(self) -> set[str]:
        """The keys of steps whose notes hold something the user should read."""
        return {key for (key,) in self._rows("SELECT key FROM cells WHERE flagged")}

    def text(self, key: str) -> str:
        """The call whose result this is, as JSON."""
        return self._checked(key)[0]

    def not_finite(self, key: str) -> list[dict[str, Any]]:
        """Where a result has values that are not finite."""
        return list(self._notes(key, self._checked(key)[1]).get("not_finite", []))

    def get(self, key: str) -> Any:
        """A result, every part of it checked."""
        from headwise.tables.codec import decode_parts, unpack

        _, notes, names = self._checked(key)
        tables = {name: self.table(key, name) for name in names}
        try:
            return unpack(decode_parts(self._notes(key, notes), tables))
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            raise HeadwiseError(  # its checksum fits, so this is what was written
                f"step {key[:12]} in {self.path} has a result that headwise does not write ({error}); use another run, "
                f"or start again with {hint('fresh', True)}"
            ) from None

    def _notes(self, key: str, text: str) -> dict[str, Any]:
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            raise DamagedError(f"the notes of step {key[:12]} in {self.path} are damaged") from None

    def encoded(self, key: str) -> tuple[str, Encoded]:
        """The text of a step and its result as it is stored, every part of it checked."""
        text, notes, names = self._checked(key)
        for name in names:
            self.table(key, name)
        blobs = dict(self._rows("SELECT name, data FROM blobs WHERE key = ? ORDER BY id", key))
        return text, Encoded(notes, blobs, "not_finite" in self._notes(key, notes))

    def table(self, key: str, name: str) -> pa.Table:
        """One table of one step."""
        rows = self._rows("SELECT data, checksum FROM blobs WHERE key = ? AND name = ?", key, name)
        if not rows:
            raise KeyError((key, name))
        data, checksum = rows[0]
        if not is_intact(data, checksum):
            raise DamagedError(f"table {name!r} of step {key[:12]} in {self.path} is damaged")
        try:
            return decode_arrow(data, f"table {quoted(name)} of step {key[:12]} in {self.path}")
        except (ValueError, TypeError, KeyError, NotImplementedError, OSError, MemoryError) as error:
            raise HeadwiseError(  # its checksum fits, so this is what was written
                f"table {quoted(name)} of step {key[:12]} in {self.path} is not one that headwise writes ({error}); "
                f"use another run, or start again with {hint('fresh', True)}"
            ) from None

    def _checked(self, key: str) -> tuple[str, str, list[str]]:
        """Text, notes and table names of a step."""
        rows = self._rows("SELECT cell, notes, checksum FROM cells WHERE key = ?", key)
        if not rows:
            raise KeyError(key)
        text, notes, checksum = rows[0]
        checksums = dict(self._rows("SELECT name, checksum FROM blobs WHERE key = ? ORDER BY id", key))
        if not is_whole(key, text, notes, checksum, checksums):
            raise DamagedError(f"step {key[:12]} in {self.path} is damaged")
        return text, notes, list(checksums)

    def close(self) -> None:
        """Fold the log into the file and let go of it. Safe to call twice."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(path: Path, *, damaged: bool = False) -> sqlite3.Connection:
    """A connection to a file that may come from anybody: a regular file, with the tables of a store and nothing else.

    A trigger or a view in it would decide what is written and read. A query that does not end is interrupted.
    damaged: read also what SQLite would refuse, such as the pages of a file that is too short.
    """
    for end in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            regular(Path(f"{path}{end}"), root=path.parent, most=math.inf)
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        calls = itertools.count()
        connection.set_progress_handler(lambda: next(calls) >= _MOST_STEPS, 1_000_000)
        connection.execute(f"PRAGMA writable_schema={'ON' if damaged else 'OFF'}")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT:
            raise HeadwiseError(
                f"{path} was written by a newer headwise (format {version}, this one reads {FORMAT}); "
                f"update headwise, or give {flag('out')} another folder"
            )
        if 0 < version < FORMAT:
            raise HeadwiseError(
                f"{path} was written by an earlier headwise (format {version}, this one reads {FORMAT}); give another "
                f"{flag('out')}, or compute everything again with {hint('fresh', True)}, which sets this run aside"
            )
        found = set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))
        if foreign := sorted(str(name) for _, name, *_ in found - _own_objects()):
            raise HeadwiseError(
                f"{path} has {quoted(foreign[0])}, which headwise did not put there, so its steps cannot be trusted; "
                f"use another run, or start again with {hint('fresh', True)}, which sets this one aside"
            )
        if found != _own_objects() and (found or version) and not damaged:
            raise DamagedError(f"{path} is damaged: it lacks a table")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def copied_store(run: Path) -> Iterator[Store]:
    """The store of a run that is only read: a copy, with the log that a killed process left. SQLite would write beside
    the run's own file."""
    path = run / "cells.sqlite"
    if not path.exists():
        raise HeadwiseError(f"there are no finished steps at {path}; give the folder of a run")
    with TemporaryDirectory() as temporary:
        copy = Path(temporary) / "cells.sqlite"
        with explain_disk_errors(copy):
            for end in ("", "-wal"):
                with suppress(FileNotFoundError):
                    shutil.copyfile(regular(Path(f"{path}{end}"), root=run), f"{copy}{end}")
        try:
            with Store(copy) as store:
                yield store
        except HeadwiseError as error:  # the user knows the run, not its copy
            error.args = (str(error).replace(str(copy), str(path)),)
            raise


@cache
def _own_objects() -> frozenset[tuple[Any, ...]]:
    """Type, name, table and definition of everything in a new store."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(_SCHEMA)
        return frozenset(fresh.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))


def _delete(run: Callable[..., Any], key: str) -> None:
    run("DELETE FROM cells WHERE key = ?", (key,))
    run("DELETE FROM blobs WHERE key = ?", (key,))


def is_intact(data: object, checksum: object) -> bool:
    """Whether a blob is what was written."""
    return isinstance(data, bytes) and _hash(data) == checksum


def is_whole(key: str, text: str, notes: str, checksum: str, checksums: Mapping[str, str]) -> bool:
    """Whether a step's row is what was written and lists exactly the tables that are there."""
    if not all(isinstance(part, str) for part in (text, notes, *checksums, *checksums.values())):
        return False  # damage can change the type of a column
    return _hash(text.encode()) == key and whole_checksum(text, notes, checksums) == checksum


def whole_checksum(text: str, notes: str, checksums: Mapping[str, str]) -> str:
    """One checksum over the step, its notes, and the checksums of its tables."""
    return _hash(canonical([text, notes, sorted(checksums.items())]).encode())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Raise `DamagedError` for a damaged content, and a `DiskError` for what the disk refuses."""
    with explain_disk_errors(path):
        try:
            yield
        except sqlite3.DatabaseError as error:
            # The class itself is raised for damaged content. Text that is not UTF-8, a table that is missing and a
            # query that does not end are damage too, though they raise a subclass.
            if type(error) is sqlite3.DatabaseError or re.search("UTF-8|no such|interrupted", str(error)):
                raise DamagedError(f"{path} is damaged: {error}") from error
            raise
