"""Arguments that may be one item or several."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, quoted


def several(given: Any) -> list[Any]:
    """What may be given as one text (or path) or as several; one is one, and not its letters.

    >>> several("ioi"), several(["ioi", "docstring"])
    (['ioi'], ['ioi', 'docstring'])
    """
    if isinstance(given, str | Path):
        return [given]
    if not isinstance(given, Iterable):
        raise HeadwiseError(f"{quoted(given)} was given; expected a text or a list of them")
    return list(given)
