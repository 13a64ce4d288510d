"""The run's tables, `RUN/tables/NAME.parquet`: written piece by piece, visible only when whole.

The same rows give the same bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from headwise.bounded import read_parquet, regular
from headwise.errors import HeadwiseError
from headwise.files import explain_disk_errors, replacing, sha256
from headwise.runs.info import TABLE_NAME
from headwise.tables.columns import NAME_COLUMNS, encode, leading_fields, to_arrow, to_pandas

if TYPE_CHECKING:
    from headwise.runs.folder import RunFolder

_ROWS = 131_072
"""Rows of one row group: what is held in memory while a table is written."""


def write_table(folder: RunFolder | Path | str, name: str, frames: Iterable[pd.DataFrame | pa.Table]) -> Path:
    """Write the rows of all frames, in the order given, as the run's table `name`; returns its path.

    `frames` is gone through twice, first for the columns, then for the rows, so it must be able to start
    again (a list, or an object with `__iter__`; not a generator). Only a part is in memory at any time. The
    bytes depend on the rows alone, not on how they are cut into frames.
    """
    if iter(frames) is frames:
        raise TypeError("write_table goes through its frames twice; give a list, not a generator")
    path = table_path(folder, name)
    schema = _common_schema(name, frames)
    with explain_disk_errors(path), replacing(path) as partial:
        with (
            partial.open("wb") as file,  # Python's own file: a full disk is then an OSError with its number
            pq.ParquetWriter(file, schema, compression="zstd", version="2.6") as writer,
        ):
            for group in _row_groups(name, frames, schema):
                writer.write_table(group, row_group_size=_ROWS)
        if not isinstance(folder, str | Path):
            folder.record_table(name, sha256(partial))
    return path


def read_table(folder: RunFolder | Path | str, name: str, columns: list[str] | None = None) -> pd.DataFrame:
    """A table of a run as a frame; with `columns`, only these."""
    path = table_path(folder, name)
    try:
        table = read_parquet(regular(path, root=path.parent.parent), NAME_COLUMNS)
        return to_pandas(table if columns is None else table.select(columns))
    except FileNotFoundError:
        tables = ", ".join(sorted(file.stem for file in path.parent.glob("*.parquet"))) or "none yet"
        raise HeadwiseError(f"the run {path.parent.parent} has no table {name!r}; it has {tables}") from None
    except (OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError, pa.ArrowException) as error:
        raise HeadwiseError(
            f"{path} is not a readable table ({' '.join(str(error).split())}); run the study again to rewrite it"
        ) from None


def table_path(folder: RunFolder | Path | str, name: str) -> Path:
    """Where a table lives. Names are lower-case words, so none can lead out of the run."""
    if not TABLE_NAME.fullmatch(name):
        raise HeadwiseError(f"{name!r} is not a valid name of a table; use lower-case letters, digits and _")
    if isinstance(folder, str | Path):
        return Path(folder) / "tables" / f"{name}.parquet"
    return folder.file("tables", f"{name}.parquet")


def _common_schema(name: str, frames: Iterable[Any]) -> pa.Schema:
    """The fixed columns, then all further ones as they first appear, each in a type that fits every frame."""
    schema = pa.schema(leading_fields(name))
    seen: list[pa.Schema] = []  # the many steps of a study have few kinds of frame
    for frame in frames:
        added = to_arrow(name, frame).schema
        if added in seen:
            continue
        seen.append(added)
        try:
            schema = pa.unify_schemas([schema, added], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise HeadwiseError(f"the frames of table {name!r} do not agree: {error}") from None
    return schema


def _row_groups(name: str, frames: Iterable[Any], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows in the common schema, cut anew into equal pieces."""
    waiting: list[pa.Table] = []
    rows = 0
    for frame in frames:
        waiting.append(_fit(name, frame, schema))
        rows += waiting[-1].num_rows
        if rows >= _ROWS or len(waiting) >= 1_000:  # a table of one row takes far more memory than its row
            together = pa.concat_tables(waiting).combine_chunks()
            while together.num_rows >= _ROWS:
                yield together.slice(0, _ROWS).combine_chunks()
                together = together.slice(_ROWS)
            waiting, rows = [together], together.num_rows
    if rows:
        yield pa.concat_tables(waiting).combine_chunks()


def _fit(name: str, frame: Any, schema: pa.Schema) -> pa.Table:
    """A frame with all columns of the common schema, in its types."""
    if isinstance(frame, pa.Table) and frame.schema.equals(schema):
        return frame
    table = to_arrow(name, frame)
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(schema.names).cast(schema)


class Spool:
    """The rows of one table, kept on disk until all of them are there; what `write_table` takes as its frames."""

    def __init__(self, name: str) -> None:
        self.name, self._sizes = name, list[int]()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the spool

    def add(self, frame: pd.DataFrame) -> None:
        data = encode(to_arrow(self.name, frame))
        self._file.seek(0, 2)
        self._file.write(data)
        self._sizes.append(len(data))

    def __iter__(self) -> Iterator[pa.Table]:
        place = 0
        for size in self._sizes:
            self._file.seek(place)
            with pa.ipc.open_stream(self._file.read(size)) as reader:
                yield reader.read_all()
            place += size
