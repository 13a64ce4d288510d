"""What `run.json` says of a run, and what differs between two sayings."""

from __future__ import annotations

import copy
import json
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from headwise._version import __version__
from headwise.errors import HeadwiseError, quoted
from headwise.files import explain_disk_errors, replacing
from headwise.runs.store.cells import plain

FORMAT = 1
TABLE_NAME = re.compile(r"[a-z][a-z0-9_]*")
"""What a table may be called: no name can lead out of the run."""
_PACKAGES = ("torch", "transformers", "numpy")
_MISSING = object()
_USUAL: dict[str, Any] = {
    "format": FORMAT,
    "study": "",
    "settings": {},
    "fingerprints": {},
    "seeds": {},
    "command": "",
    "versions": {},
    "timings": {},
    "status": "",
    "cells": 0,
    "tables": [],
    "written": [],
    "notices": [],
}
"""What every `run.json` says, and of which type it is."""
_WORDS = {str: "text", dict: "an object", list: "a list", int: "a whole number"}


def read_info(path: str | Path) -> dict[str, Any]:
    """What `run.json` says of a run, without holding it."""
    place = Path(path) / "run.json"
    try:
        return understood(place.read_text(encoding="utf-8"), path)
    except (FileNotFoundError, NotADirectoryError):
        raise HeadwiseError(f"{path} is not a run: it has no run.json") from None
    except (OSError, ValueError) as error:
        raise HeadwiseError(f"{place} cannot be read: {error}") from None


def understood(text: str, run: str | Path = "this run") -> dict[str, Any]:
    """The content of a `run.json`, what is missing filled in; raises `ValueError` where it is not one.

    The file may come from anybody, and everything that reads it relies on the types of its entries. One of a later
    format is refused with `HeadwiseError`: its entries may mean something else.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it holds no object")
    info: dict[str, Any] = {**found}
    if isinstance(info.get("format"), int) and info["format"] > FORMAT:
        raise HeadwiseError(
            f"{run} was written by a newer headwise (format {info['format']}, this one reads {FORMAT}); update "
            "headwise, or use another run"
        )
    for name, usual in _USUAL.items():
        value = info.setdefault(name, copy.deepcopy(usual))
        kind = dict if isinstance(usual, dict) else type(usual)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{name} is {quoted(value)}, expected {_WORDS[kind]}")
    for name in ("notices", "tables"):
        if not all(isinstance(item, str) for item in info[name]):
            raise ValueError(f"{name} lists {quoted(info[name])}, expected text")
    # Tables that no longer belong to a run are moved aside by these names.
    if not all(TABLE_NAME.fullmatch(name) for name in info["tables"]):
        raise ValueError(f"tables lists {quoted(info['tables'])}, expected lower-case words")
    for name in ("fingerprints", "versions"):
        if not all(isinstance(item, str) for item in info[name].values()):
            raise ValueError(f"{name} holds {quoted(info[name])}, expected text")
    for name in ("created", "started", "finished"):
        if not isinstance(info["timings"].setdefault(name, None) or "", str):
            raise ValueError(f"timings.{name} is {quoted(info['timings'][name])}, expected a time")
    seconds = info["timings"].setdefault("seconds", 0.0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e12:
        raise ValueError(f"timings.seconds is {quoted(seconds)}, expected a number of seconds")
    try:
        plain(info["settings"], "settings")
        plain(info["written"], "written")
    except HeadwiseError as error:
        raise ValueError(str(error)) from None
    if not all(map(_is_session, info["written"])):
        raise ValueError(f"written lists {quoted(info['written'])}, expected what wrote which tables")
    for about in (info, *info["written"]):
        about["settings"] = without_trust(about["settings"])
    return info


def without_trust(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a run keeps them. Whether code from a model's repository may run is said with every command, by the
    person who gives it; no file may say it for them."""
    return {name: value for name, value in settings.items() if name != "trust_remote_code"}


def _is_session(entry: Any) -> bool:
    """Whether this says which tables a session wrote, their SHA-256, and what they were made with."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("command"), str)
        and isinstance(entry.get("settings"), dict)
        and all(_is_text_by_name(entry.get(name)) for name in ("fingerprints", "versions", "tables"))
        and all(TABLE_NAME.fullmatch(name) for name in entry["tables"])
    )


def _is_text_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    with explain_disk_errors(path), replacing(path) as partial:
        text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
        # A command line may hold bytes that are no UTF-8; escaped, they are still JSON.
        partial.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def overwrite_status(path: Path, status: str) -> None:
    """Where no room is left for a new `run.json`: put the status into the bytes of the old one, if it fits there."""
    running = b'"status": "running"'
    other = f'"status": "{status}"'.encode().ljust(len(running))
    with suppress(OSError), path.open("rb+") as file:
        content = file.read()
        if content.count(running) == 1 and len(other) == len(running):
            file.seek(content.index(running))
            file.write(other)


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
