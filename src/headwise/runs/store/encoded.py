"""A cell's result as the store keeps it: text and bytes, made where the cell was computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headwise.runs.store.cells import CellResult, canonical, plain
from headwise.runs.store.finite import NOTE, not_finite


class Encoded(NamedTuple):
    """What `CellStore.put_encoded` is given."""

    notes: str
    blobs: Mapping[str, bytes]
    flagged: bool
    """Whether the notes hold something that the user should hear."""


def encoded(result: CellResult) -> Encoded:
    """Look for values that are not finite, and make bytes of the tables."""
    from headwise.runs.store.columns import encode, to_arrow

    entries = not_finite(result.tables)
    notes = {**result.notes, NOTE: entries} if entries else result.notes
    blobs = {name: encode(to_arrow(name, frame)) for name, frame in result.tables.items()}
    return Encoded(canonical(plain(notes, "notes")), blobs, bool(entries))
