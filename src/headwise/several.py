"""Arguments that may be one item or several."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def several(given: Any) -> list[Any]:
    """What may be given as one text (or path) or as several; one is one, and not its letters.

    >>> several("ioi"), several(["ioi", "docstring"])
    (['ioi'], ['ioi', 'docstring'])
    """
    return [given] if isinstance(given, str | Path) else list(given)
