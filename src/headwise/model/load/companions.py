"""Models that come with headwise itself: small adapters of a bundled model, inside the package's data.

A companion is a folder as `headwise sparsify` makes it, under `data/` and its alias.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headwise.errors import HeadwiseError
from headwise.model.sparse.adapter import is_adapter

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Companion:
    """A bundled model that was trained further."""

    alias: str
    title: str
    licence: str
    source: str

    @property
    def folder(self) -> Path:
        return _DATA / self.alias


_KNOWN = {
    one.alias: one
    for one in (
        Companion(
            "smollm2-sparse",
            "SmolLM2-135M-Instruct with sparse attention",
            "Apache-2.0",
            "smollm2 and an adapter in this package, made by headwise sparsify (docs/sparsify.md)",
        ),
        Companion(
            "smollm2-control",
            "SmolLM2-135M-Instruct, its dense control",
            "Apache-2.0",
            "smollm2 and an adapter in this package, made by headwise sparsify --dense (docs/sparsify.md)",
        ),
    )
}


def companions() -> dict[str, Companion]:
    """Those that this installation has."""
    return {alias: one for alias, one in _KNOWN.items() if is_adapter(one.folder)}


def companion_folder(alias: str) -> Path | None:
    """The folder behind an alias; None where the name is no companion's."""
    if alias not in _KNOWN:
        return None
    if alias not in companions():
        raise HeadwiseError(
            f"this installation of headwise has no {alias}; make one with headwise sparsify (docs/sparsify.md) and "
            "give its folder"
        )
    return _KNOWN[alias].folder
