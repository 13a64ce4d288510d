"""What `run.json` says of a run, and how two of them differ."""

from __future__ import annotations

import base64
import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from headwise._version import __version__
from headwise.bounded import read_text, regular
from headwise.errors import HeadwiseError, flag, hint, quoted
from headwise.files import explain_disk_errors, replacing
from headwise.runs.values import plain

FORMAT = 2
TABLE_NAME = re.compile(r"[a-z][a-z0-9_]*")
"""What a table may be called: no name can lead out of the run."""
_PACKAGES = ("torch", "transformers", "numpy")
_MISSING = object()
_RUNNING = '"status": "running"'
_ROOM = len('"status": "interrupted"')
"""Bytes that the status has in `run.json`, so that any other fits in its place on a full disk."""


def without_trust(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a run keeps them. Whether code from a model's repository may run is said with every command, by the
    person who gives it; no file may say it for them."""
    return {name: value for name, value in settings.items() if name != "trust_remote_code"}


Settings = Annotated[dict[str, Any], AfterValidator(without_trust)]
Texts = dict[str, str]
TableName = Annotated[str, Field(pattern=rf"^{TABLE_NAME.pattern}$")]


class _Entries(BaseModel):
    """Each of its type; further entries are kept."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Session(_Entries):
    """Which tables a session wrote, their SHA-256, and what they were made with."""

    settings: Settings
    fingerprints: Texts
    versions: Texts
    command: str
    tables: dict[TableName, str]


class _Timings(_Entries):
    created: str | None = None
    started: str | None = None
    finished: str | None = None
    seconds: Annotated[float, Field(ge=0, lt=1e12)] = 0.0


class _Info(_Entries):
    """What every `run.json` says."""

    format: int = FORMAT
    study: str = ""
    settings: Settings = Field(default_factory=dict)
    fingerprints: Texts = Field(default_factory=dict)
    seeds: dict[str, Any] = Field(default_factory=dict)
    command: str = ""
    versions: Texts = Field(default_factory=dict)
    timings: _Timings = Field(default_factory=_Timings)
    status: str = ""
    steps: int = 0
    calls: list[str] = Field(default_factory=list)
    tables: list[TableName] = Field(default_factory=list)
    written: list[_Session] = Field(default_factory=list)
    notices: list[str] = Field(default_factory=list)
    findings: list[str] = Field(default_factory=list)
    plugins: list[str] = Field(default_factory=list)


def read_info(path: str | Path) -> dict[str, Any]:
    """What `run.json` says of a run, without holding it."""
    place = Path(path) / "run.json"
    try:
        return understood(read_text(place, Path(path)), path)
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
        content = plain(json.loads(text), "run.json")
    except (RecursionError, HeadwiseError) as error:
        raise ValueError(str(error)) from None
    version = content.get("format") if isinstance(content, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise HeadwiseError(
            f"{run} was written by a newer headwise (format {version}, this one reads {FORMAT}); update headwise, or "
            "use another run"
        )
    if isinstance(version, int) and version < FORMAT:
        raise HeadwiseError(
            f"{run} was written by an earlier headwise (format {version}, this one reads {FORMAT}); compute it again: "
            f"give {flag('out')} another folder, or {hint('fresh', True)}, which sets the earlier run aside"
        )
    try:
        return _Info.model_validate(content).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        entry = ".".join(map(str, first["loc"])) or "its content"
        raise ValueError(f"{entry} is {quoted(first['input'])}; {first['msg']}") from None


def write_json(path: Path, value: Any) -> None:
    """Write `run.json`, whole or not at all."""
    with explain_disk_errors(path), replacing(path) as partial:
        text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
        text = text.replace(_RUNNING, _RUNNING.ljust(_ROOM))
        # A command line may hold bytes that are no UTF-8; escaped, they are still JSON.
        partial.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def overwrite_status(path: Path, status: str) -> None:
    """Where no room is left for a new `run.json`: put the status into the bytes of the old one."""
    running = _RUNNING.ljust(_ROOM).encode()
    with suppress(OSError), path.open("rb+") as file:
        content = file.read()
        if content.count(running) == 1:
            file.seek(content.index(running))
            file.write(f'"status": "{status}"'.ljust(_ROOM).encode())


def versions() -> dict[str, str]:
    """The versions that can change a number, without importing anything."""
    found = {"python": platform.python_version(), "headwise": __version__}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def timestamp() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def differing(values: Sequence[Mapping[str, Any]], missing: Any = None) -> dict[str, list[Any]]:
    """The entries in which several mappings differ, by path, each with the values of all; missing: where one lacks it.

    >>> differing([{"n": 64, "fit": {"rate": 1}}, {"n": 64, "fit": {"rate": 2}, "seed": 1}])
    {'fit.rate': [1, 2], 'seed': [None, 1]}
    """
    found: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for one in values for key in one):
        entries: list[Any] = [one.get(key, missing) for one in values]
        if all(isinstance(entry, dict) for entry in entries):
            found |= {f"{key}.{name}": inner for name, inner in differing(entries, missing).items()}
        elif any(entry != entries[0] for entry in entries):
            found[key] = entries
    return found


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """One phrase for each value that differs, named by its path.

    >>> list(changes({"settings": {"n": 64, "seed": 0}}, {"settings": {"n": 128, "seed": 0}}))
    ['settings.n was 64 and is 128']
    """
    for name, (new, old) in differing([after, before], _MISSING).items():
        if old is _MISSING:
            yield f"{name} was added ({quoted(new, 60)})"
        elif new is _MISSING:
            yield f"{name} was removed (before: {quoted(old, 60)})"
        else:
            yield f"{name} was {quoted(old, 60)} and is {quoted(new, 60)}"


# ---- which session wrote which table -------------------------------------------------------------


_ABOUT = ("settings", "fingerprints", "versions", "command")
"""What a session's entry takes over from `run.json`; its `tables` are names and hashes."""


def record(info: Mapping[str, Any], name: str, digest: str) -> list[dict[str, Any]]:
    """The list with a table that the session of `info` is about to write; hashes of earlier files stay in it."""
    last = next((entry for entry in reversed(info["written"]) if name in entry["tables"]), None)
    if last is not None and last["tables"][name] == digest and _about(last) == _about(info):
        return list(info["written"])
    return [*info["written"], {**_about(info), "tables": {name: digest}}]


def latest(written: Sequence[Mapping[str, Any]], without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The list with only the last hash of each table, and none of `without`; equal sessions become one."""
    kept: list[dict[str, Any]] = []
    seen = set(without)
    for entry in reversed(written):
        tables = {name: digest for name, digest in entry["tables"].items() if name not in seen}
        seen |= set(tables)
        if tables and kept and _about(kept[0]) == _about(entry):
            kept[0]["tables"] = dict(sorted({**tables, **kept[0]["tables"]}.items()))
        elif tables:
            kept.insert(0, {**_about(entry), "tables": tables})
    return kept


def session(written: Sequence[dict[str, Any]], name: str, digest: str) -> dict[str, Any] | None:
    """The last session that wrote a table with this hash; None where none did."""
    return next((entry for entry in reversed(written) if entry["tables"].get(name) == digest), None)


def _about(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in _ABOUT}


# ---- as a notebook shows it ----------------------------------------------------------------------


def one_line(path: Path, info: Mapping[str, Any]) -> str:
    tables = ", ".join(info.get("tables", ())) or "none yet"
    return f"run {path.name}: study {info.get('study')}, {info.get('status')}, tables: {tables}"


def as_html(path: Path, info: Mapping[str, Any], notices: Sequence[str]) -> str:
    """The run as HTML, its figures inlined; all text is escaped."""
    parts = [f"<p><strong>{escape(one_line(path, info))}</strong></p>"]
    if notices:
        parts.append("<ul>" + "".join(f"<li>{escape(notice)}</li>" for notice in notices) + "</ul>")
    for figure in sorted((path / "figures").glob("*.png")):
        data = base64.b64encode(regular(figure, root=path).read_bytes()).decode()
        parts.append(
            f'<img alt="{escape(figure.stem)}" style="max-width:100%" src="data:image/png;base64,{data}">'
        )
    return "\n".join(parts)
