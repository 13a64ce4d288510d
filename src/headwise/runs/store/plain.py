"""Plain JSON values: one spelling for each; refused, or shown as null, what JSON cannot hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical(value: Any) -> str:
    """JSON with one spelling for each value."""
    return _CANONICAL.encode(value)


def with_nulls(value: Any) -> Any:
    """Values for JSON that is shown: NaN and infinity as null, arrays and numpy's numbers as lists and numbers."""
    if isinstance(value, Mapping):
        return {str(key): with_nulls(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_nulls(item) for item in value]
    if hasattr(value, "tolist"):
        return with_nulls(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def plain(value: Any, where: str) -> Any:
    """`value` as fresh JSON values (tuples as lists, numpy scalars as numbers), or an error that says where.

    Keys that are not text and numbers that are not finite are refused: JSON would turn them into something
    else without a word, and two different settings could become one.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise HeadwiseError(f"{where} is {value}, which JSON cannot hold; give a finite number or null")
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise HeadwiseError(f"{where} has the key {key!r}; keys must be text")
        return {key: plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item(), where)
    raise HeadwiseError(
        f"{where} is a {type(value).__name__}, which cannot be stored; give text, numbers, true, false, "
        "null, or lists and mappings of these"
    )
