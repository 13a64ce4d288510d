"""What a run holds of values: plain JSON with one spelling for each, and where a result is not finite.

A NaN in `score` or `value` is a computation that went wrong or has no answer; elsewhere (an interval from one
example, a p-value of an unsigned score) it is how a table says "none". An infinity is wrong anywhere. A result class
says what it measured with `measured_tables()`; frames inside other results are looked through as they are.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    import pandas as pd


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


# ---- values that are not finite --------------------------------------------------------------------------

_ANSWERS = ("score", "value")
_MEASURED = ("scores", "curves", "examples")
"""The tables that hold what was measured; a summary in another one may have no answer."""
_LISTED = 8


def not_finite(result: Any) -> list[dict[str, Any]]:
    """One entry for each column with such values: how many of how many, and of which examples."""
    import numpy as np

    entries = []
    for table, frame in _frames(result):
        for name in frame.columns[[dtype.kind == "f" for dtype in frame.dtypes]]:
            values = frame[name].to_numpy(dtype=float, na_value=np.nan)
            bad = ~np.isfinite(values) if name in _ANSWERS else np.isinf(values)
            if not bad.any():
                continue
            count = int(bad.sum())
            entry = {"table": table, "column": str(name), "count": count, "of": len(frame)}
            if "example" in frame.columns:
                examples = frame.loc[bad, "example"].drop_duplicates().head(_LISTED)
                entry["examples"] = [int(example) for example in examples]
            entries.append(entry)
    return entries


def _frames(result: Any, name: str = "result") -> Iterator[tuple[str, pd.DataFrame]]:
    """The frames of a result, each with the name of its table."""
    if hasattr(result, "measured_tables"):
        yield from result.measured_tables().items()
    elif type(result).__name__ == "DataFrame":
        yield name, result
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from _frames(value, str(key))
    elif isinstance(result, list | tuple):
        for value in result:
            yield from _frames(value, name)
    elif dataclasses.is_dataclass(result):
        for field in dataclasses.fields(result):
            yield from _frames(getattr(result, field.name), field.name)


def sentence(label: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """What the user is told of a step with such values; the entry that names examples says most."""
    entry = max(entries, key=lambda e: "examples" in e)
    text = f"{label}: {entry['count']} of {entry['of']} values of {entry['table']}.{entry['column']}"
    text += _examples(entry)
    return f"{text} {'is' if entry['count'] == 1 else 'are'} not finite; the tables keep them as they are"


def nothing_finite(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """The first column of answers (table.column) without a single finite value, and the examples at fault where the
    entries name some; None where each column has a finite value."""
    for entry in entries:
        if entry["table"] in _MEASURED and entry["column"] in _ANSWERS and entry["count"] == entry["of"]:
            at_fault = next((_examples(e) for e in entries if "examples" in e), "")
            return f"{entry['table']}.{entry['column']} is NaN or infinite{at_fault}"
    return None


def _examples(entry: Mapping[str, Any]) -> str:
    if "examples" not in entry:
        return ""
    numbers = ", ".join(str(e) for e in entry["examples"])
    more = ", ..." if len(entry["examples"]) == _LISTED else ""
    return f" (example{'s' * (len(entry['examples']) > 1)} {numbers}{more})"
