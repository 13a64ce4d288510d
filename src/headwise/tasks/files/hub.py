"""Rows of a dataset on the hub (or in a local folder of that form), through the `datasets` package.

hub:openai/gsm8k:main:test      owner/name, configuration, split
hub:HuggingFaceH4/MATH-500:test owner/name, split
hub:owner/name                  the only split there is
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, unknown
from headwise.hub import hub_is_silent
from headwise.tasks.files.rows import Row, Table, quoted

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
    split = rest[-1] if rest else None
    return name, rest[0] if len(rest) == 2 else None, split


def read_hub(source: str) -> Table:
    """Every row of one split."""
    name, configuration, split = parse(source)
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise HeadwiseError(
            f"{source} needs the package 'datasets'; install it with: pip install 'headwise[data]'"
        ) from None
    try:
        only_here = not Path(name).exists() and hub_is_silent()
        how = {"download_config": datasets.DownloadConfig(local_files_only=True)} if only_here else {}
        loaded: Any = datasets.load_dataset(name, configuration, **how)
    except (
        Exception
    ) as error:  # what it raises is not documented: network, parsing and lookup errors of many kinds
        first = (str(error).strip() or "no reason given").splitlines()[0]
        raise HeadwiseError(
            f"{source} cannot be loaded ({type(error).__name__}: {quoted(first, 200)}); check the name, the "
            "configuration and the connection"
        ) from None
    splits = dict(loaded)
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
    return Table(rows)
