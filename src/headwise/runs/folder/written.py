"""Which session of a run wrote which table: the SHA-256 of the file, and the settings that it was made with.

`run.json` holds this as the list `written`, the latest session last. A table's hash is written down just before its
file takes its place, and the hash of the file before it is dropped just after. So whenever a run is killed, the list
has the hash of every table that is there, and the settings that the table was made with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
