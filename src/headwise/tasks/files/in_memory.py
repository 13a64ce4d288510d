"""Examples that are given as Python values: a list of dicts or tuples, a DataFrame, or one example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from headwise.errors import HeadwiseError
from headwise.tasks.examples import Example
from headwise.tasks.files.rows import Log, Row, RowError, Table, kind

TUPLE = ("prompt", "target", "foils")
_EXPECTED = "expected (prompt, answer), (prompt, answer, wrong answer) or {'prompt': …, 'target': …}"


def read_items(source: Any, log: Log) -> Table:
    """A row for every item; an item that is no example is noted in the log."""
    rows = []
    for number, item in enumerate(items_of(source), 1):
        row = Row(number, "item", {})
        with log.at(row):
            rows.append(Row(number, "item", _fields(item)))
    if not rows:
        log.refuse_if_bad()
        raise HeadwiseError(f"{log.source} is empty; expected at least one example")
    return Table(rows)


def items_of(source: Any) -> list[Any]:
    """The items of a list or the rows of a table; one example alone is one item."""
    if isinstance(source, Mapping | Example) or (
        isinstance(source, tuple) and source and isinstance(source[0], str)
    ):
        return [source]
    if hasattr(source, "to_dict") and hasattr(source, "columns"):  # pandas
        return list(source.to_dict("records"))
    if not isinstance(source, Iterable):
        raise HeadwiseError(
            f"the source of a task is {kind(source)}, expected a task's name, a path, hub:owner/name, a DataFrame or "
            "a list of examples"
        )
    rows = source.iter_rows(named=True) if hasattr(source, "iter_rows") else source  # polars
    return list(rows)


def _fields(item: Any) -> dict[str, Any]:
    if isinstance(item, Example):
        return {name: _plain(value) for name, value in asdict(item).items() if value is not None}
    if isinstance(item, Mapping):
        return {str(name): _plain(value) for name, value in item.items()}
    if isinstance(item, tuple | list) and 2 <= len(item) <= len(TUPLE):
        return dict(zip(TUPLE, map(_plain, item), strict=False))
    raise RowError(f"{kind(item)}, {_EXPECTED}")


def _plain(value: Any) -> Any:
    """Arrays as lists, numbers of numpy as numbers, pandas' "nothing" as None."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(value) if isinstance(value, tuple) else value
