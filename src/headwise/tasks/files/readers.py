"""Data files to rows: JSON lines, JSON, CSV, Parquet and plain text become the same list of dicts."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.files.rows import Log, Row, Table, kind, named, quoted

LINE_LIMIT = 8 * 2**20
"""The longest line that is read, in bytes. An example of this size is thousands of pages."""
FILE_LIMIT = 512 * 2**20
"""The largest JSON file that is read, in bytes: unlike JSON lines it must be held in memory as a whole."""


def read_table(path: Path, log: Log, records: str | None = None) -> Table:
    """Every row of a file, by its extension."""
    try:
        reader = reader_of(path, log)
        if records is not None and reader is not _json:
            raise HeadwiseError(
                f"records={records!r} names a list inside a .json object; {log.source} has none"
            )
        table = reader(path, log, records)
    except OSError as error:
        raise HeadwiseError(f"{quoted(log.source, 200)} cannot be read: {error.strerror or error}") from None
    if not table.rows:
        log.refuse_if_bad()
        raise HeadwiseError(f"{log.source} is empty; expected at least one example")
    return table


def reader_of(path: Path, log: Log) -> Callable[[Path, Log, str | None], Table]:
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if p.suffix.lower() in READERS)
        hint = f"give one of the files in it: {named(inside, 5)}" if inside else "give a file"
        raise HeadwiseError(f"{log.source} is a folder, expected a file; {hint}")
    if not path.exists():
        raise HeadwiseError(
            f"there is no file {log.source}; check the path, or write hub:owner/name for a dataset"
        )
    if path.suffix.lower() not in READERS:
        raise HeadwiseError(
            f"{log.source} ends in {path.suffix or 'nothing'!r}, which is no known data format; "
            f"expected one of {', '.join(READERS)}"
        )
    if not path.is_file():
        raise HeadwiseError(f"{log.source} is not a regular file; save the data to a file first")
    return READERS[path.suffix.lower()]


# Lines, and what is made of them


def _lines(path: Path, log: Log) -> Iterator[tuple[int, str]]:
    """(number, text with its line end), without ever holding more than `LINE_LIMIT` bytes of a line."""
    number = 0
    with path.open("rb") as file:
        while raw := file.readline(LINE_LIMIT + 1):
            number += 1
            if len(raw) > LINE_LIMIT:
                log.bad(
                    number,
                    f"line {number}",
                    f"the line is longer than {LINE_LIMIT // 2**20} MiB, expected one example per line",
                )
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(2**20)
                continue
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                log.bad(number, f"line {number}", _not_utf8(raw, error.start))
                continue
            yield number, text.removeprefix("\ufeff") if number == 1 else text


def _not_utf8(raw: bytes, at: int) -> str:
    return f"byte 0x{raw[at]:02x} at position {at + 1} is not UTF-8; save the file in UTF-8"


def _parse(text: str) -> Any:
    """JSON to values, with every way it can fail brought to `ValueError`."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Python keeps the last of two equal keys and says nothing; the other value would be lost in silence.
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"the field {twice!r} is there twice")
    return made


def _json_lines(path: Path, log: Log, records: str | None = None) -> Table:
    rows = []
    for number, text in _lines(path, log):
        if not text.strip():
            continue
        try:
            value = _parse(text.strip())
        except ValueError as error:
            log.bad(number, f"line {number}", f"not JSON ({_syntax(error)}), expected one object per line")
            continue
        if not isinstance(value, dict):
            log.bad(number, f"line {number}", f'{kind(value)}, expected an object such as {{"prompt": …}}')
            continue
        rows.append(Row(number, "line", value))
    return Table(rows)


def _syntax(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return str(error)


def _json(path: Path, log: Log, records: str | None) -> Table:
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
        raise HeadwiseError(f"{log.source}, line {line}: {_not_utf8(raw, error.start)}") from None
    if not text.strip():
        raise HeadwiseError(f"{log.source} is empty; expected a JSON list of objects")
    try:
        value = _parse(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and _starts_with_object(text):
            return _json_lines(path, log)  # JSON lines are often saved under the name .json
        raise HeadwiseError(
            f"{log.source}, line {error.lineno}: not JSON ({error.msg} at column {error.colno}), expected a "
            "list of objects"
        ) from None
    except ValueError as error:
        raise HeadwiseError(f"{log.source}: not JSON that can be read ({error})") from None
    listed, about = _records(value, log, records)
    rows = []
    for number, item in enumerate(listed, 1):
        if isinstance(item, dict):
            rows.append(Row(number, "record", item))
        else:
            log.bad(number, f"record {number}", f'{kind(item)}, expected an object such as {{"prompt": …}}')
    return Table(rows, about)


def _starts_with_object(text: str) -> bool:
    try:
        return isinstance(_parse(text.lstrip().split("\n", 1)[0]), dict)
    except ValueError:
        return False


def _records(value: Any, log: Log, records: str | None) -> tuple[list[Any], dict[str, Any]]:
    """The list of records in a JSON value, and what stands beside it."""
    if isinstance(value, list):
        if records is not None:
            raise HeadwiseError(f"{log.source} is a list by itself; leave out records={records!r}")
        return value, {}
    if not isinstance(value, dict):
        raise HeadwiseError(f"{log.source} holds {kind(value)}, expected a list of objects")
    lists = {k: v for k, v in value.items() if isinstance(v, list) and any(isinstance(i, dict) for i in v)}
    if records is not None:
        if records not in lists:
            raise unknown(f"list of records in {log.source}", records, lists)
        chosen = records
    elif len(lists) == 1:
        chosen = next(iter(lists))
    elif lists:
        raise HeadwiseError(
            f"{log.source} holds several lists ({named(lists)}); say which with records={next(iter(lists))!r}"
        )
    else:
        raise HeadwiseError(
            f"{log.source} holds one object with the fields {named(value)} and no list of objects in it; "
            "expected a list of objects"
        )
    return lists[chosen], {k: v for k, v in value.items() if k != chosen}


def _csv(path: Path, log: Log, records: str | None = None, delimiter: str = ",") -> Table:
    usual = csv.field_size_limit(
        LINE_LIMIT
    )  # 128 KiB, less than a long prompt; it holds for the whole process
    try:
        return _csv_rows(path, log, delimiter)
    finally:
        csv.field_size_limit(usual)


def _csv_rows(path: Path, log: Log, delimiter: str) -> Table:
    waiting: list[int] = []  # lines that went into the record being read; a quoted cell may span several

    def feed() -> Iterator[str]:
        for number, text in _lines(path, log):
            waiting.append(number)
            yield text

    header: list[str] = []
    rows = []
    reader = csv.reader(feed(), delimiter=delimiter, strict=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            # After a stray quote nothing says where the next record starts.
            start = waiting[0] if waiting else 1
            log.bad(
                start,
                f"line {start}",
                f"not CSV ({error}); quote cells that hold commas, quotes or line ends",
            )
            break
        start = waiting[0]
        waiting.clear()
        if not cells:
            continue
        if not header:
            header = _header(cells, delimiter, start, log)
        elif len(cells) != len(header):
            log.bad(
                start,
                f"line {start}",
                f"{len(cells)} cells, expected {len(header)} as in the header ({named(header)})",
            )
        else:
            rows.append(Row(start, "line", dict(zip(header, cells, strict=True))))
    return Table(rows, from_text=True)


def _header(cells: list[str], delimiter: str, line: int, log: Log) -> list[str]:
    twice = next((name for i, name in enumerate(cells) if name in cells[:i]), None)
    if twice is not None:
        raise HeadwiseError(
            f"{log.source}, line {line}: the column {twice!r} is there twice; rename one of them"
        )
    if len(cells) == 1 and delimiter == "," and (";" in cells[0] or "\t" in cells[0]):
        mark = "tabs (name it .tsv)" if "\t" in cells[0] else "semicolons"
        raise HeadwiseError(
            f"{log.source}, line {line}: the cells seem to be separated by {mark}, expected commas"
        )
    return cells


def _tsv(path: Path, log: Log, records: str | None = None) -> Table:
    return _csv(path, log, delimiter="\t")


def _parquet(path: Path, log: Log, records: str | None = None) -> Table:
    import pyarrow as pa
    from pyarrow import parquet

    if path.stat().st_size == 0:
        return Table([])
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise HeadwiseError(f"{log.source}: the column {twice!r} is there twice; rename one of them")
            values = [row for batch in file.iter_batches() for row in batch.to_pylist()]
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HeadwiseError(
            f"{log.source} is not a Parquet file that can be read ({quoted(first, 120)})"
        ) from None
    return Table([Row(number, "row", row) for number, row in enumerate(values, 1)])


def _text(path: Path, log: Log, records: str | None = None) -> Table:
    """One row per line that is not blank, under the name `text`."""
    return Table(
        [Row(number, "line", {"text": text.strip()}) for number, text in _lines(path, log) if text.strip()]
    )


READERS: dict[str, Callable[[Path, Log, str | None], Table]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
    ".txt": _text,
}
