"""Rows of a dataset on the hub (or in a local folder of that form), through the `datasets` package.

hub:openai/gsm8k:main:test      owner/name, configuration, split
hub:HuggingFaceH4/MATH-500:test owner/name, split
hub:owner/name                  the only split there is
"""

from __future__ import annotations

import importlib
from pathlib import Path

from headwise.errors import HeadwiseError, first_line, unknown
from headwise.hub import hub_is_silent
from headwise.tasks.files.rows import Row, Table

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
    return Table(rows)
