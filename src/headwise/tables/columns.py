"""What columns a table has and of which type, and frames as Arrow tables and as bytes.

The three tables of the contract begin with fixed columns; a table may carry further ones, and there may be
further tables. Bytes are Arrow's own stream format: no pickle, readable from any language.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from headwise.bounded import check_columns
from headwise.errors import HeadwiseError

LEADING = {
    "scores": "model task method layer head score stderr lo hi n p q",
    "curves": "model task series action k metric value lo hi n draw?",
    "examples": "model task method? series? action? layer? head? k? draw? metric? example value",
}
"""The columns that each table begins with. Those with a `?` may be left out, and are then empty: a row of
`examples` belongs to a score (method, layer, head) or to a point of a curve (series, action, k, draw)."""

_FLOATS = {"score", "stderr", "lo", "hi", "p", "q", "value"}
_INTEGERS = {"layer", "head", "k", "n", "draw", "example"}
NAME_COLUMNS = {"model", "task", "method", "series", "action", "metric"}


def leading_fields(table: str) -> list[pa.Field]:
    """The fixed columns of a table, none for a table outside the contract."""

    def kind(name: str) -> pa.DataType:
        return pa.float64() if name in _FLOATS else pa.int32() if name in _INTEGERS else pa.string()

    names = LEADING.get(table, "").replace("?", "").split()
    return [pa.field(name, kind(name)) for name in names]


def to_arrow(table: str, frame: pd.DataFrame | pa.Table) -> pa.Table:
    """A frame as an Arrow table with the fixed columns first, in their types, then the frame's others."""
    fields = leading_fields(table)
    if isinstance(frame, pa.Table) and _is_ready(frame.schema, fields):
        return frame
    given = _arrays(table, frame)
    required = [name for name in LEADING.get(table, "").split() if not name.endswith("?")]
    missing = [name for name in required if name not in given]
    if missing:
        raise HeadwiseError(
            f"a frame for table {table!r} lacks {', '.join(missing)}; it has {', '.join(given)}"
        )
    rows = frame.num_rows if isinstance(frame, pa.Table) else len(frame)
    arrays = {
        field.name: _cast(given[field.name], field.type, f"{table}.{field.name}")
        if field.name in given
        else pa.nulls(rows, field.type)
        for field in fields
    }
    arrays |= {name: array for name, array in given.items() if name not in arrays}
    return pa.table(arrays)


def _arrays(table: str, frame: Any) -> dict[str, Any]:
    names = [str(name) for name in (frame.column_names if isinstance(frame, pa.Table) else frame.columns)]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise HeadwiseError(f"a frame for table {table!r} has two columns named {', '.join(twice)}")
    if isinstance(frame, pa.Table):
        return {name: _simple(frame[name]) for name in names}
    return {name: _from_pandas(frame.iloc[:, place], f"{table}.{name}") for place, name in enumerate(names)}


def _from_pandas(column: Any, where: str) -> Any:
    # Among floats NaN is a value that was computed; elsewhere it is pandas' way to say "nothing here".
    is_float = getattr(column.dtype, "kind", "") == "f"
    try:
        array = pa.array(column, from_pandas=not is_float)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise HeadwiseError(f"column {where} holds values of more than one kind: {error}") from None
    return _simple(array)


def _simple(array: Any) -> Any:
    """Without the encodings that differ from one pandas to the next: categories, long strings."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    return array


def _is_ready(schema: Any, fields: list[Any]) -> bool:
    """Whether a table is as `to_arrow` makes them: true of all that come from the store."""
    odd = (pa.types.is_dictionary, pa.types.is_large_string, pa.types.is_string_view)
    return list(schema)[: len(fields)] == fields and not any(
        test(kind) for kind in schema.types for test in odd
    )


def _cast(array: Any, kind: Any, where: str) -> Any:
    if pa.types.is_integer(kind) and pa.types.is_floating(array.type):
        # pandas has a column of whole numbers with gaps as floats with NaN
        array = pc.if_else(pc.is_nan(array), None, array)
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise HeadwiseError(f"column {where} must be {kind}: {error}") from None


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """An Arrow table as a frame. Whole numbers with gaps stay whole (pandas' `Int32`)."""
    nullable = {pa.int8(): pd.Int8Dtype(), pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype()}
    nullable |= {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    columns = zip(table.column_names, table.columns, strict=True)
    return pd.DataFrame(
        {name: c.to_pandas(types_mapper=nullable.get if c.null_count else None) for name, c in columns}
    )


def encode(table: pa.Table) -> bytes:
    check_columns("a table of a step", table.schema)
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(None).combine_chunks()
    # On a few rows compression saves nothing and makes reading twenty times slower.
    options = pa.ipc.IpcWriteOptions(compression="zstd" if table.nbytes > 32_768 else None)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
