"""Frames: long tables of arrays, tables of a run by groups, and tables of heads as names and as grids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError
from headwise.names import KV, component_name, method_name
from headwise.stats import smallest_p
from headwise.stats import too_few as sentence_of_too_few

Tables = Mapping[str, pd.DataFrame]
"""The tables of a run by name."""
LEVEL = 0.05
"""Heads whose q-value is below it are significant."""
SKEWED = 2.0
"""Above this skewness of its values the q-value of a head, a test of symmetry, says less about its mean."""
HEAD_COLUMNS = "model task measure layer head score lo hi n q unit p units".split()
"""Columns of the report's table of heads; a table without `unit` has numbers without one, one without `units` no
groups of examples."""


def long_table(
    columns: Mapping[str, Any], axes: Iterable[Mapping[str, Any]], values: Mapping[str, np.ndarray]
) -> pd.DataFrame:
    """One row per entry of arrays of the same shape.

    columns: those of one value each; axes: for each axis of the arrays the columns that label it, integers as int32.
    """
    shape = next(iter(values.values())).shape
    frame = dict(columns)
    for axis, entries in zip(axes, np.indices(shape).reshape(len(shape), -1), strict=True):
        for name, labels in axis.items():
            spread = np.asarray(labels)[entries]
            frame[name] = spread.astype(np.int32) if spread.dtype.kind == "i" else spread
    return pd.DataFrame(frame | {name: array.ravel() for name, array in values.items()})


# ---- tables of a run ------------------------------------------------------------------------------------------------


def table_of(tables: Tables, name: str) -> pd.DataFrame:
    """A table of the run; an empty one where it has none of this name."""
    return tables[name] if name in tables else pd.DataFrame()


def groups(table: pd.DataFrame, *columns: str) -> list[tuple[Any, pd.DataFrame]]:
    """The rows by the values of the columns, in order of appearance; nothing for a table that the run does not have."""
    keys = columns[0] if len(columns) == 1 else list(columns)
    return list(table.groupby(keys, sort=False)) if len(table) else []


def rows_where(table: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """The rows that have these values; none of a table that the run does not have."""
    for name, value in values.items() if len(table) else ():
        table = table[table[name] == value]
    return table


def by_size(table: pd.DataFrame, column: str = "score") -> pd.DataFrame:
    """The rows by the absolute value of a column, the largest first; equal ones keep their order."""
    return table.sort_values(column, key=abs, ascending=False, kind="stable")


def distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order of first appearance."""
    return list(dict.fromkeys(values))


def cell_text(value: Any) -> str:
    """A value of a table as a page shows it."""
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def columns_of(rows: pd.DataFrame, *columns: str) -> dict[str, str]:
    """What these columns of the rows hold, as texts; each has one value. Columns that the table lacks are left out."""
    return {name: str(rows[name].iloc[0]) for name in columns if name in rows and len(rows)}


# ---- tables of heads ------------------------------------------------------------------------------------------------


def head_names(table: pd.DataFrame) -> list[str]:
    """The heads of a table's rows, in its order, as `L12H3`; other components as `L12KV1`, `MLP12`, `input`."""
    return [component_name(layer, head) for layer, head in zip(table["layer"], table["head"], strict=True)]


def head_rows(tables: Tables) -> pd.DataFrame | None:
    """The rows of `scores` as the report's table of heads has them."""
    if "scores" not in tables:
        return None
    scores = tables["scores"]
    if "reference" in scores:
        methods = [method_name(*pair) for pair in zip(scores["method"], scores["reference"], strict=True)]
        scores = scores.assign(method=methods)
    return scores.rename(columns={"method": "measure", "metric": "unit"}).reindex(columns=HEAD_COLUMNS)


def map_shape(table: pd.DataFrame) -> tuple[int, int]:
    """The number of layers and of columns in a table of heads: one per head, two more with MLPs or the input."""
    columns = column_numbers(table)
    others = 2 if (columns < 0).any() else 0
    shape = int(table["layer"].max()) + 1, max(int(columns.max()) + 1, 0) + others
    check_map(shape, 1 << 18)
    return shape


def column_numbers(table: pd.DataFrame) -> np.ndarray:
    """The column of each row of a table of heads in such a map: key/value heads are counted from 0 as well."""
    heads = table["head"].to_numpy()
    return np.where(heads <= KV, KV - heads, heads)


def check_map(shape: tuple[int, int], most: int = 1 << 22) -> None:
    """Refuse a map with more cells than any model or prompt has: its size is a number that a table names."""
    if shape[0] * shape[1] > most:
        raise HeadwiseError(
            f"a table asks for a map of {shape[0]:,} x {shape[1]:,} cells; at most {most:,} are drawn"
        )


def grid(table: pd.DataFrame, column: str = "score", shape: tuple[int, int] | None = None) -> np.ndarray:
    """A column of a table of heads as an array `[layers, heads]`; NaN where there is no such head.

    With MLPs or the input the last two columns are the input and the MLPs, whose head numbers are -2 and -1.
    """
    values = np.full(shape or map_shape(table), np.nan)
    values[table["layer"], column_numbers(table)] = table[column]
    return values


def attention_grid(table: pd.DataFrame) -> np.ndarray:
    """The rows of one attention map as an array `[queries, keys]`; NaN where the table has no row."""
    length = int(table[["query", "key"]].to_numpy().max()) + 1
    check_map((length, length))
    weights = np.full((length, length), np.nan)
    weights[table["query"], table["key"]] = table["attention"]
    return weights


def significant(table: pd.DataFrame) -> pd.DataFrame:
    """The heads whose score differs significantly from 0 (q < .05)."""
    return table[table["q"] < LEVEL] if "q" in table else table[:0]


def significant_first(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with q < .05 by the size of their score, then all others by size."""
    rows = by_size(table)
    return pd.concat([rows[rows["q"] < LEVEL], rows[~(rows["q"] < LEVEL)]])


def too_few(table: pd.DataFrame, what: str = "head") -> str:
    """What the examples behind a table of tests (columns n, p and, with groups, units) are too few to show.

    Empty where a single head can be significant, and for other tests than sign flips, whose p has no smallest value.
    """
    tested = table[table["p"].notna()] if "p" in table else table[:0]
    if tested.empty or tested["n"].nunique() > 1:  # scores that stop early have a test of their own
        return ""
    grouped = "units" in tested and tested["units"].notna().all()
    units = int(tested["units" if grouped else "n"].iloc[0])
    if tested["p"].min() < smallest_p(units, len(tested)) * (1 - 1e-9):
        return ""
    return sentence_of_too_few(units, len(tested), what)
