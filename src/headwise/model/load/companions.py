"""Adapters of a bundled model that have an alias of their own, from the package headwise-companions.

A companion is a folder as `headwise sparsify` makes it. The package is data and nothing of it is run. It is found
where it is installed, or in `companions/` of the clone that this file is in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headwise.errors import HeadwiseError
from headwise.model.load.cache import sha256_once
from headwise.model.sparse.adapter import is_adapter

PACKAGE, MANIFEST = "headwise_companions", "manifest.json"
MANIFEST_SHA256 = "0683c8bd5360bbe337a749340c51ff1ad4788826f51545908b9c61938550b61c"
"""The manifest has the hash of every file of the package: an alias means the same weights everywhere."""
_INSTALL = "in a clone of the repository of headwise run: pip install --force-reinstall ./companions"


@dataclass(frozen=True)
class Companion:
    """A bundled model that was trained further."""

    alias: str
    title: str
    command: str
    """What made it."""
    licence: str = "Apache-2.0"

    @property
    def source(self) -> str:
        return f"smollm2 and an adapter of headwise-companions, made by {self.command} (docs/sparsify.md)"


_KNOWN = {
    companion.alias: companion
    for companion in (
        Companion("smollm2-sparse", "SmolLM2-135M-Instruct with sparse attention", "headwise sparsify"),
        Companion("smollm2-control", "SmolLM2-135M-Instruct, its dense control", "headwise sparsify --dense"),
    )
}


def companions() -> dict[str, Companion]:
    """The companions that are installed."""
    root = _root()
    return {alias: c for alias, c in _KNOWN.items() if root is not None and is_adapter(root / alias)}


def companion_folder(alias: str) -> Path | None:
    """The folder behind an alias, its files checked; None where the name is no companion's."""
    if alias not in _KNOWN:
        return None
    root = _root()
    if root is None:
        raise HeadwiseError(
            f"{alias} is in a package of its own, headwise-companions, which is not installed; {_INSTALL}"
        )
    _check(root, alias)
    return root / alias


def _root() -> Path | None:
    """The folder of the companions, if there is one."""
    spec = find_spec(PACKAGE)  # which does not import it
    installed = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    clone = Path(__file__).parents[4] / "companions" / PACKAGE
    return next((folder for folder in (*installed, clone) if (folder / MANIFEST).is_file()), None)


def _check(root: Path, alias: str) -> None:
    """Refuse a companion whose files are not those that this version of headwise was made for."""
    try:
        files = {MANIFEST: MANIFEST_SHA256}
        if sha256_once(root / MANIFEST) == MANIFEST_SHA256:
            listed = json.loads((root / MANIFEST).read_text(encoding="utf-8")).items()
            files = {name: entry["sha256"] for name, entry in listed if name.startswith(f"{alias}/")}
        wrong = [name for name, digest in files.items() if sha256_once(root / name) != digest]
    except OSError as error:
        raise HeadwiseError(f"{error.filename} cannot be read ({error.strerror}); {_INSTALL}") from error
    if wrong:
        raise HeadwiseError(
            f"{root / wrong[0]} is not the file that this version of headwise was made for (its SHA-256 differs); "
            f"{_INSTALL}"
        )
