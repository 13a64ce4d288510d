"""Tables, texts and nested numbers as named arrays: the one form in which results are stored and compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

Arrays = dict[str, np.ndarray]
NOTHING = "∅"
"""A missing value among texts."""
SEPARATOR = "|"
"""Between the job and the array in the names of an `.npz`."""


def columns(table: str, frame: pd.DataFrame) -> Arrays:
    """A table as one array per column, and the columns' names in their order."""
    arrays = {f"{table}/#columns": texts(frame.columns)}
    for name, column in frame.items():
        if pd.api.types.is_bool_dtype(column) and not column.isna().any():
            array = column.to_numpy(dtype=bool)
        elif pd.api.types.is_numeric_dtype(column):
            whole = pd.api.types.is_integer_dtype(column) and not column.isna().any()
            array = (
                column.to_numpy(dtype=np.int64) if whole else column.to_numpy(dtype=float, na_value=np.nan)
            )
        else:
            array = texts(column)
        arrays[f"{table}/{name}"] = array
    return arrays


def texts(values: Iterable[Any]) -> np.ndarray:
    return np.array([_text(value) for value in values], dtype=str)


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray | list | tuple) and not hasattr(value, "_fields"):
        return json.dumps([_text(one) for one in value])
    return NOTHING if value is None or value is pd.NA or value != value else str(value)


def numbers(value: Any) -> Iterator[float]:
    """The numbers in nested dictionaries and lists, in order."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list | tuple | np.ndarray):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, int | float | np.number):
        yield float(value)
