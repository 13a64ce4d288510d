"""Saving the good steps of a damaged store into a new one. The damaged file is kept under another name.

A damaged SQLite file usually has a few bad pages; rows on the others can still be read. They are looked for
from both ends of each table and one by one in between, and nothing is taken over that fails its checksum.
"""

from __future__ import annotations

import itertools
import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from headwise.files import explain_disk_errors, flush, fsync_folder, unused
from headwise.runs.store import Encoded, Store, connect, is_intact, is_whole

_PROBED = 10_000
"""How many row numbers are tried beyond the last one known, where the end of a table cannot be read."""
_MOST_ROWS = 4_000_000
_BESIDE = ("-wal", "-shm")


class Salvaged(NamedTuple):
    """What came of it."""

    saved: int
    """Steps that are in the new store."""
    kept: Path
    """Where the damaged file is now."""


def salvage(path: Path) -> Salvaged:
    """Put a new store at `path` with the good steps of the old one, which moves beside it."""
    fresh = _fresh(path)
    kept = unused(path.with_name(f"{path.stem}-damaged{path.suffix}"))
    with explain_disk_errors(path):
        for leftover in (fresh, *(Path(f"{fresh}{end}") for end in _BESIDE)):
            leftover.unlink(missing_ok=True)  # of a salvage that was itself cut short
        saved = _copy_good_results(path, fresh)
        flush(fresh)
        move_store(path, kept)
        fresh.replace(path)
        fsync_folder(path.parent)
    return Salvaged(saved, kept)


def finish_salvage(path: Path) -> None:
    """Complete a salvage that was cut short after the damaged file had been moved away."""
    journal = Path(f"{path}-journal")
    if os.path.lexists(journal):  # a store has none; SQLite would write it, and delete files that it names
        journal.replace(unused(path.with_name(f"{path.stem}-stray.journal")))
    if path.exists():
        return
    # A log without its file must not be replayed into another file.
    move_store(path, unused(path.with_name(f"{path.stem}-stray{path.suffix}")))
    if _fresh(path).exists():
        _fresh(path).replace(path)
        fsync_folder(path.parent)


def move_store(path: Path, target: Path) -> None:
    """Move a store with its log. The file goes first: cut short, no file is left with the wrong log."""
    for end in ("", *_BESIDE):
        with suppress(FileNotFoundError):
            Path(f"{path}{end}").replace(f"{target}{end}")
    fsync_folder(path.parent)


def _fresh(path: Path) -> Path:
    return path.with_name(f"{path.name}.salvaged")


def _copy_good_results(path: Path, fresh: Path) -> int:
    saved = 0
    Store(fresh).close()
    try:
        old = connect(path, damaged=True)
    except sqlite3.DatabaseError:
        return 0  # not even the list of its tables can be read
    with closing(old), closing(Store(fresh)) as new:
        new.sync(False)  # the damaged file is still in place: nothing is lost if this is cut short
        blobs: dict[str, dict[str, tuple[int, str]]] = {}
        for number, key, name, checksum in _readable(old, "blobs", "id, key, name, checksum"):
            blobs.setdefault(key, {})[name] = number, checksum
        columns = "key, cell, notes, seconds, flagged, checksum"
        for key, text, notes, seconds, flagged, checksum in _readable(old, "cells", columns):
            listed = blobs.get(key, {})
            if not is_whole(key, text, notes, checksum, {name: c for name, (_, c) in listed.items()}):
                continue
            data = {name: _blob(old, number) for name, (number, _) in listed.items()}
            if all(is_intact(data[name], checksum) for name, (_, checksum) in listed.items()):
                spent = seconds if isinstance(seconds, int | float) and math.isfinite(seconds) else 0.0
                new.put(text, Encoded(notes, data, bool(flagged)), spent)
                saved += 1
        new.sync(True)
    return saved


def _blob(old: sqlite3.Connection, number: int) -> Any:
    with suppress(sqlite3.DatabaseError):
        return old.execute("SELECT data FROM blobs WHERE id = ?", (number,)).fetchone()[0]
    return None


def _readable(old: sqlite3.Connection, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
    """Every row of a table that can still be read, in the order of writing. Damaged pages may lead in a circle, so the
    number of rows is limited."""
    forward: list[int] = []
    backward: list[int] = []
    for order, numbers in (("ASC", forward), ("DESC", backward)):
        with suppress(sqlite3.DatabaseError):
            rows = old.execute(f"SELECT id FROM {table} NOT INDEXED ORDER BY id {order}")  # noqa: S608
            for (number,) in itertools.islice(rows, _MOST_ROWS):
                numbers.append(number)
    last = forward[-1] if forward else 0
    beyond = range(last + 1, min(backward[-1], last + 100 * _PROBED) if backward else last + _PROBED)
    for number in sorted({*forward, *beyond, *backward}):
        with suppress(sqlite3.DatabaseError):
            row = old.execute(f"SELECT {columns} FROM {table} WHERE id = ?", (number,)).fetchone()  # noqa: S608
            if row is not None:
                yield row
