"""Reading files that somebody may have sent, within bounds: every file of a run folder is opened through here.

A pipe or a device never ends, a sparse file has any size, and a few kilobytes of Parquet or Arrow hold gigabytes once
they are decoded. So a file must be a regular one, and what it declares about its size is checked before it is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.errors import HeadwiseError, quoted
from headwise.files import inside

if TYPE_CHECKING:
    import pyarrow as pa

LIMIT = "HEADWISE_MAX_GB"
"""Environment variable: the most that one file, or one table in memory, may have."""
MOST_TEXT = 1 << 24
"""Bytes of a `run.json`."""
_NAMES = 1_000
"""Characters of one name (model, task, method), and different names of a column: the report has a chart for each."""
_TEXTS = 2048
"""The longest text may take this part of `HEADWISE_MAX_GB`: by default 1 MiB."""
_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE", "RLE_DICTIONARY", "BIT_PACKED"}
"""Encodings of Parquet whose declared sizes bound what they decode to, once texts are read as dictionaries."""


def regular(path: Path, *, root: Path | None = None, most: float | None = None) -> Path:
    """`path`, if it is a regular file of at most `most` bytes (by default `HEADWISE_MAX_GB`) that lies below `root`."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise HeadwiseError(
            f"{path} is not a regular file but a pipe, a device or a folder; give the file itself"
        )
    if root is not None and not inside(root, path):
        raise HeadwiseError(f"{path} is a link that leads out of {root}; put the file itself there")
    if status.st_size > (_most() if most is None else most):
        raise _too_large(path, status.st_size)
    return path


def read_text(path: Path, root: Path) -> str:
    """A small text file of a run."""
    return regular(path, root=root, most=MOST_TEXT).read_text(encoding="utf-8")


def read_parquet(path: Path, names: Collection[str] = ()) -> pa.Table:
    """A Parquet table with flat columns; those in `names` hold names, which are short and few."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with path.open("rb") as source:
        file = pq.ParquetFile(source)
        schema, metadata = file.schema_arrow, file.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
        if odd := {encoding for chunk in chunks for encoding in chunk.encodings} - _ENCODINGS:
            raise HeadwiseError(
                f"{path} uses the encoding {', '.join(sorted(odd))}, which no table of a run has"
            )
        rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
        _check_size(path, schema, rows, sum(abs(chunk.total_uncompressed_size) for chunk in chunks))
        # As dictionaries, texts take the declared size. How large they are in full is known before they are.
        texts = [
            field.name
            for field in schema
            if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        ]
        table = pq.ParquetFile(source, metadata=metadata, read_dictionary=texts).read()
    in_full = 0
    for name in texts:
        for chunk in table[name].chunks:
            lengths = pc.binary_length(chunk.dictionary)
            longest = pc.max(lengths).as_py() or 0
            if name in names and max(longest, len(lengths)) > _NAMES:
                raise HeadwiseError(
                    f"{path}: the column {name!r} has more than {_NAMES:,} names, or a name of more than {_NAMES:,} "
                    "characters; no run has such names"
                )
            if longest > _most() // _TEXTS:
                raise HeadwiseError(
                    f"{path}: the column {name!r} has a text of {longest:,} bytes, more than the {_most() // _TEXTS:,} "
                    f"that are read; if this run is your own, raise {LIMIT}"
                )
            in_full += text_bytes(chunk)
            _check_size(path, schema, 0, in_full)
    return table.cast(schema)


def decode_arrow(data: bytes, what: str) -> pa.Table:
    """The table of an Arrow stream; `what` is its name in an error."""
    import pyarrow as pa

    with pa.ipc.open_stream(data) as reader:
        check_columns(what, reader.schema)
        rows = size = 0
        for message in pa.ipc.MessageReader.open_stream(data):
            if message.type == "record batch":
                length, compressed = _record_batch(memoryview(message.metadata))
                rows += length
                body = memoryview(message.body)
                # A compressed buffer begins with the size of its content, or with -1 where it was left as it was.
                size += sum(max(0, _number(body, offset, 8)) for offset in compressed)
        _check_size(what, reader.schema, rows, size)
        table = reader.read_all()
    table.validate(full=True)  # an offset that leads out of its buffer would end the process
    return table


def check_columns(what: object, schema: pa.Schema) -> None:
    """Refuse columns that are not of plain numbers, texts or dates: nothing bounds what the others decode to."""
    import pyarrow.types as kinds

    flat = kinds.is_primitive, kinds.is_string, kinds.is_large_string, kinds.is_null, kinds.is_decimal
    for field in schema:
        if not any(is_kind(field.type) for is_kind in flat):
            raise HeadwiseError(
                f"{what}: the column {quoted(field.name)} has the type {quoted(str(field.type))}; the tables of a run "
                "have numbers, texts and dates"
            )
    if len(set(schema.names)) < len(schema):
        raise HeadwiseError(f"{what} has two columns of the same name; give each its own")


def check_bytes(what: object, size: int) -> None:
    """Refuse what takes more than `HEADWISE_MAX_GB`."""
    if size > _most():
        raise _too_large(what, size)


def text_bytes(chunk: pa.DictionaryArray) -> int:
    """What the texts of a dictionary take in full."""
    import pyarrow.compute as pc

    return int(pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0)


def _check_size(what: object, schema: pa.Schema, rows: int, size: int) -> None:
    check_columns(what, schema)
    check_bytes(what, max(size, 8 * rows * len(schema)))


def _record_batch(message: memoryview) -> tuple[int, list[int]]:
    """The rows of a record batch, and where its compressed buffers begin, if it is compressed.

    pyarrow shows neither before it has decompressed everything, so this reads the flatbuffer (`Message.fbs` of Arrow):
    Message.header is a RecordBatch with the fields length, nodes, buffers (offset and length) and compression.
    """

    def field(table: int, index: int) -> int:
        """Where a field of a table is; 0 where it was left out."""
        vtable = table - _number(message, table, 4)
        is_present = 4 + 2 * index < _number(message, vtable, 2)
        offset = _number(message, vtable + 4 + 2 * index, 2) if is_present else 0
        return table + offset if offset else 0

    def follow(place: int) -> int:
        return place + _number(message, place, 4)

    batch = follow(field(follow(0), 2))
    length, buffers, compression = (field(batch, index) for index in (0, 2, 3))
    rows = _number(message, length, 8) if length else 0
    if not (buffers and compression):
        return rows, []
    count = follow(buffers)
    places = range(count + 4, count + 4 + 16 * _number(message, count, 4), 16)
    return rows, [_number(message, place, 8) for place in places if _number(message, place + 8, 8)]


def _number(data: memoryview, place: int, size: int) -> int:
    return int.from_bytes(data[place : place + size], "little", signed=size > 2)


def _most() -> int:
    text = os.environ.get(LIMIT, "2")
    try:
        return int(float(text) * 2**30)
    except (ValueError, OverflowError):
        raise HeadwiseError(f"{LIMIT} is {quoted(text)}; give a number of gigabytes such as 8") from None


def _too_large(what: object, size: float) -> HeadwiseError:
    return HeadwiseError(
        f"{what} takes {size / 2**30:,.1f} GiB, more than the {_most() / 2**30:g} GiB that are read; raise {LIMIT} if "
        "the run is yours"
    )
