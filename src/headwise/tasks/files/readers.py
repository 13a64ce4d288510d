"""Data files to rows: JSON lines, JSON, CSV, Parquet and plain text become the same list of dicts.

A file is read once per process, and again when it has changed: the checks before a model is loaded, the loading for
each model, and the studies that open one file in several ways share the rows.
"""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from headwise.bounded import check_bytes, text_bytes
from headwise.errors import HeadwiseError, first_line, hint, quoted, unknown
from headwise.tasks.files.rows import Log, Row, Table, kind, named

LINE_LIMIT = 8 * 2**20
"""The longest line that is read, in bytes. An example of this size is thousands of pages."""
FILE_LIMIT = 512 * 2**20
"""The largest JSON file that is read, in bytes: unlike JSON lines it must be held in memory as a whole."""
REMEMBERED = 64 * 2**20
"""The size up to which the rows of a file are kept in memory, in bytes; a larger file is read each time."""


def read_table(path: Path, log: Log, records: str | None = None) -> Table:
    """Every row of a file, by its extension. The rows are shared with later calls: nobody changes them."""
    reader = reader_of(path, log.source)
    if records is not None and reader is not _json:
        raise no_lists(log, records)
    try:
        status = path.stat()
        # Within a tick of the file system a file may change again under the same time.
        is_settled = time.time_ns() - status.st_mtime_ns > 2_000_000_000
        read = _read if is_settled and status.st_size <= REMEMBERED else _read.__wrapped__
        table = read(path.resolve(), log.source, records, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise _unreadable(log.source, error) from None
    log.problems += table.log.problems
    if not table.rows:
        log.refuse_if_bad()
        raise HeadwiseError(f"{log.source} is empty; expected at least one example")
    return replace(table, log=log)


@lru_cache(maxsize=4)
def _read(path: Path, source: str, records: str | None, size: int, changed: int) -> Table:
    """Size and time of the last change: a file that has changed is read again."""
    reader, log = READERS[path.suffix.lower()], Log(source)
    return _json(path, log, records) if reader is _json else reader(path, log)


def no_lists(log: Log, records: str) -> HeadwiseError:
    return HeadwiseError(
        f"{hint('records', records)} names a list inside a .json object; {log.source} has none"
    )


def reader_of(path: Path, source: str) -> Callable[[Path, Log], Table]:
    """The reader for a file's extension; refuses what is no file of a known format, without reading it."""
    if "\0" in source:
        raise HeadwiseError(f"{source!r} is not a path; it holds a null character")
    try:
        if path.is_dir():
            inside = sorted(p.name for p in path.iterdir() if p.suffix.lower() in READERS)
            hint = f"give one of the files in it: {named(inside, 5)}" if inside else "give a file"
            raise HeadwiseError(f"{source} is a folder, expected a file; {hint}")
        exists, regular = path.exists(), path.is_file()
    except OSError as error:
        raise _unreadable(source, error) from None
    if not exists:
        raise HeadwiseError(
            f"there is no file {source}; check the path, or write hub:owner/name for a dataset"
        )
    if path.suffix.lower() not in READERS:
        raise HeadwiseError(
            f"{source} ends in {path.suffix or 'nothing'!r}, which is not a known data format; "
            f"expected one of {', '.join(READERS)}"
        )
    if not regular:
        raise HeadwiseError(f"{source} is not a regular file; save the data to a file first")
    return READERS[path.suffix.lower()]


def _unreadable(source: str, error: OSError) -> HeadwiseError:
    return HeadwiseError(f"{quoted(source, 200)} cannot be read: {error.strerror or error}")


# ---- one reader per format ----


def _lines(path: Path, log: Log) -> Iterator[tuple[int, str]]:
    """(number, text with its line end), without ever holding more than `LINE_LIMIT` bytes of a line."""
    number = 0
    check_bytes(log.source, path.stat().st_size)
    with path.open("rb") as file:
        while raw := file.readline(LINE_LIMIT + 1):
            number += 1
            if len(raw) > LINE_LIMIT:
                limit = LINE_LIMIT // 2**20
                log.bad(number, f"the line is longer than {limit} MiB, expected one example per line")
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(2**20)
                continue
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                log.bad(number, _not_utf8(error))
                continue
            yield number, text.removeprefix("\ufeff") if number == 1 else text


def _not_utf8(error: UnicodeDecodeError) -> str:
    at = error.start
    return f"byte 0x{error.object[at]:02x} at position {at + 1} is not UTF-8; save the file in UTF-8"


def _parse(text: str) -> Any:
    """JSON to values, with every way it can fail brought to `ValueError`."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Python keeps the last of two equal keys and says nothing; the other value would be lost in silence.
    if twice := _repeated(key for key, _ in pairs):
        raise ValueError(f"the field {twice[0]!r} occurs twice")
    return dict(pairs)


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _why_not_json(error: ValueError) -> str:
    return f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _objects(values: Iterable[tuple[int, Any]], unit: str, log: Log) -> list[Row]:
    """A row for every value that is an object; others are noted in the log."""
    rows = []
    for number, value in values:
        if isinstance(value, dict):
            rows.append(Row(number, unit, value))
        else:
            problem = f'{kind(value)}, expected an object such as {{"prompt": …}}'
            log.bad(number, problem, f"{unit} {number}")
    return rows


def _json_lines(path: Path, log: Log) -> Table:
    def values() -> Iterator[tuple[int, Any]]:
        for number, text in _lines(path, log):
            try:
                if text.strip():
                    yield number, _parse(text.strip())
            except ValueError as error:
                log.bad(number, f"not JSON ({_why_not_json(error)}), expected one object per line")

    return Table(_objects(values(), "line", log), log)


def _json(path: Path, log: Log, records: str | None = None) -> Table:
    if path.stat().st_size > FILE_LIMIT:
        raise HeadwiseError(
            f"{log.source} is larger than {FILE_LIMIT // 2**20} MiB; save it as JSON lines (.jsonl), one "
            "object per line"
        )
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise HeadwiseError(f"{log.source}, line {line}: {_not_utf8(error)}") from None
    if not text.strip():
        return Table([], log)
    try:
        value = _parse(text)
    except json.JSONDecodeError as error:
        first = text[: error.pos].strip()
        if error.msg == "Extra data" and first.startswith("{") and "\n" not in first:
            return _json_lines(path, log)  # JSON lines are often saved under the name .json
        raise HeadwiseError(
            f"{log.source}, line {error.lineno}: not JSON ({_why_not_json(error)}), expected a list of objects"
        ) from None
    except ValueError as error:
        raise HeadwiseError(f"{log.source}: not JSON that can be read ({error})") from None
    listed, about = _records(value, log.source, records)
    return Table(_objects(enumerate(listed, 1), "record", log), log, about)


def _records(value: Any, source: str, records: str | None) -> tuple[list[Any], dict[str, Any]]:
    """The list of records in a JSON value, and what stands beside it."""
    if isinstance(value, list):
        if records is not None:
            raise HeadwiseError(f"{source} is a list by itself; leave out {hint('records', records)}")
        return value, {}
    if not isinstance(value, dict):
        raise HeadwiseError(f"{source} holds {kind(value)}, expected a list of objects")
    lists = {k: v for k, v in value.items() if isinstance(v, list) and any(isinstance(i, dict) for i in v)}
    if records is not None and records not in lists:
        raise unknown(f"list of records in {source}", records, lists)
    if not lists and value and all(isinstance(each, dict) for each in value.values()):
        return [{"name": name, **each} for name, each in value.items()], {}
    if not lists:
        raise HeadwiseError(
            f"{source} holds one object with the fields {named(value)} and no list of objects in it; "
            "expected a list of objects"
        )
    chosen = next(iter(lists)) if records is None else records
    if records is None and len(lists) > 1:
        raise HeadwiseError(
            f"{source} holds several lists ({named(lists)}); say which with {hint('records', chosen)}"
        )
    return lists[chosen], {k: v for k, v in value.items() if k != chosen}


def _csv(path: Path, log: Log, delimiter: str = ",") -> Table:
    waiting: list[int] = []  # lines that went into the record being read; a quoted cell may span several

    def feed() -> Iterator[str]:
        for number, text in _lines(path, log):
            waiting.append(number)
            yield text

    header: list[str] = []
    rows = []
    usual = csv.field_size_limit(LINE_LIMIT)  # 128 KiB, less than a long prompt, for the whole process
    try:
        for cells in csv.reader(feed(), delimiter=delimiter, strict=True):
            start = waiting[0]
            waiting.clear()
            if cells and not header:
                header = cells
                _check_header(cells, delimiter, f"{log.source}, line {start}")
            elif cells and len(cells) != len(header):
                log.bad(
                    start, f"{len(cells)} cells, expected {len(header)} as in the header ({named(header)})"
                )
            elif cells:
                rows.append(Row(start, "line", dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        # After a stray quote nothing says where the next record starts.
        problem = f"not CSV ({error}); quote cells that hold commas, quotes or line ends"
        log.bad(waiting[0] if waiting else 1, problem)
    finally:
        csv.field_size_limit(usual)
    return Table(rows, log, from_text=True)


def _check_header(cells: list[str], delimiter: str, location: str) -> None:
    if twice := _repeated(cells):
        raise HeadwiseError(f"{location}: the column {twice[0]!r} occurs twice; rename one of them")
    if len(cells) == 1 and delimiter == "," and (";" in cells[0] or "\t" in cells[0]):
        mark = "tabs (name it .tsv)" if "\t" in cells[0] else "semicolons"
        raise HeadwiseError(f"{location}: the cells seem to be separated by {mark}, expected commas")


def _parquet(path: Path, log: Log) -> Table:
    import pyarrow as pa
    from pyarrow import parquet

    if path.stat().st_size == 0:
        return Table([], log)
    try:
        schema = parquet.read_schema(path)
        if twice := _repeated(schema.names):
            raise HeadwiseError(f"{log.source}: the column {twice[0]!r} occurs twice; rename one of them")
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        size, values = 0, []
        with parquet.ParquetFile(path, page_checksum_verification=True, read_dictionary=texts) as file:
            for batch in file.iter_batches(batch_size=1024):
                # A text that is repeated a million times is stored once: what it takes in full is known before it is.
                size += sum(
                    text_bytes(x) if pa.types.is_dictionary(x.type) else x.nbytes for x in batch.columns
                )
                check_bytes(log.source, size)
                values += batch.to_pylist()
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        reason = first_line(error, 120)
        raise HeadwiseError(f"{log.source} is not a Parquet file that can be read ({reason})") from None
    return Table([Row(number, "row", row) for number, row in enumerate(values, 1)], log)


def _text(path: Path, log: Log) -> Table:
    """One row per line that is not blank, under the name `text`."""
    lines = ((number, text.strip()) for number, text in _lines(path, log))
    return Table([Row(number, "line", {"text": text}) for number, text in lines if text], log)


READERS: dict[str, Callable[[Path, Log], Table]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": partial(_csv, delimiter="\t"),
    ".parquet": _parquet,
    ".txt": _text,
}
