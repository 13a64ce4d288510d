"""Rows of what is no file: values in memory, or a dataset on the hub through the `datasets` package.

A list holds dicts or tuples; a DataFrame, or one example alone, will do as well. Names of datasets (or of local folders
of that form):

hub:openai/gsm8k:main:test      owner/name, configuration, split
hub:HuggingFaceH4/MATH-500:test owner/name, split
hub:owner/name                  the only split there is
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, first_line, unknown
from headwise.hub import hub_is_silent
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
    return Table(rows, log)


def is_example(item: Any) -> bool:
    """Whether it is one example: an `Example`, a mapping, or a tuple that begins with the prompt."""
    is_pair = isinstance(item, tuple) and len(item) > 0 and isinstance(item[0], str)
    return is_pair or isinstance(item, Mapping | Example)


def items_of(source: Any) -> list[Any]:
    """The items of a list or the rows of a table; one example alone is one item."""
    if is_example(source):
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


# ---- the hub ------------------------------------------------------------------------------------------

PREFIX = "hub:"


def parse(source: str) -> tuple[str, str | None, str | None]:
    """
    >>> parse("hub:openai/gsm8k:main:test")
    ('openai/gsm8k', 'main', 'test')
    """
    name, *rest = source.removeprefix(PREFIX).split(":")
    if not name or len(rest) > 2 or not all(rest):
        raise HeadwiseError(
            f"{source!r} does not name a dataset; write hub:owner/name, hub:owner/name:split or "
            "hub:owner/name:configuration:split"
        )
    return name, rest[0] if len(rest) == 2 else None, rest[-1] if rest else None


def read_hub(source: str, log: Log) -> Table:
    """Every row of one split."""
    name, configuration, split = parse(source)
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise HeadwiseError(
            f"{source} needs the package 'datasets'; install it with: pip install 'headwise[data]'"
        ) from None
    try:
        only_cached = not Path(name).exists() and hub_is_silent()
        download = datasets.DownloadConfig(local_files_only=True) if only_cached else None
        splits = dict(datasets.load_dataset(name, configuration, download_config=download))
    except Exception as error:  # undocumented: network, parsing and lookup errors of many kinds
        raise HeadwiseError(
            f"{source} cannot be loaded ({type(error).__name__}: {first_line(error, 200)}); check the name, the "
            "configuration and the connection"
        ) from None
    if split is None and len(splits) > 1:
        raise HeadwiseError(
            f"{source} has the splits {', '.join(splits)}; add one, as in {source}:{next(iter(splits))}"
        )
    chosen = split or next(iter(splits))
    if chosen not in splits:
        raise unknown(f"split of {name}", chosen, splits)
    rows = [Row(number, "row", dict(row)) for number, row in enumerate(splits[chosen], 1)]
    if not rows:
        raise HeadwiseError(f"{source} is empty; expected at least one example")
    return Table(rows, log)
