"""What `run.json` says of a run, and what differs between two sayings."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from headwise._version import __version__
from headwise.errors import HeadwiseError
from headwise.runs.disk import replacing, told

FORMAT = 1
_PACKAGES = ("torch", "transformers", "numpy")
_MISSING = object()


def read_info(path: str | Path) -> dict[str, Any]:
    """What `run.json` says of a run, without holding it."""
    place = Path(path) / "run.json"
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
        return found
    except (FileNotFoundError, NotADirectoryError):
        raise HeadwiseError(f"{path} is not a run: it has no run.json") from None
    except (OSError, ValueError) as error:
        raise HeadwiseError(f"{place} cannot be read: {error}") from None


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    with told(path), replacing(path) as partial:
        text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
        # A command line may hold bytes that are no UTF-8; escaped, they are still JSON.
        partial.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def versions() -> dict[str, str]:
    """The versions that can change a number, without importing anything."""
    found = {"python": platform.python_version(), "headwise": __version__}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def changes(name: str, before: Any, after: Any) -> list[str]:
    """One phrase for each value that differs, named by its path.

    >>> changes("settings", {"n": 64, "seed": 0}, {"n": 128, "seed": 0})
    ['settings.n was 64 and is 128']
    """
    return list(_walk(name, _MISSING if before is None else before, after))


def _walk(name: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*after, *(key for key in before if key not in after)]:
            yield from _walk(f"{name}.{key}", before.get(key, _MISSING), after.get(key, _MISSING))
    elif before is _MISSING:
        yield f"{name} is new ({_short(after)})"
    elif after is _MISSING:
        yield f"{name} is gone (it was {_short(before)})"
    elif before != after:
        yield f"{name} was {_short(before)} and is {_short(after)}"


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
