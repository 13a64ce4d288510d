"""A run folder as the report reads it: what run.json says, and the tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.runs import read_info, read_table


class RunTables(Mapping[str, pd.DataFrame]):
    """The tables of a run, each read when it is first asked for."""

    def __init__(self, path: Path, names: Collection[str] | None = None) -> None:
        """names: which tables there are; by default all that the folder has."""
        there = names if names is not None else [file.stem for file in (path / "tables").glob("*.parquet")]
        self._path, self._names = path, sorted(there)
        self._read: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = read_table(self._path, name)
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class Run:
    """One run folder."""

    path: Path

    @cached_property
    def info(self) -> dict[str, Any]:
        return read_info(self.path)

    @property
    def study(self) -> str:
        return str(self.info["study"])

    @property
    def question(self) -> str:
        """What the study asks; runs of an earlier headwise do not say."""
        return str(self.info.get("question") or f"What did the study {self.study} find?")

    @cached_property
    def models(self) -> list[str]:
        """What the tables call the models (a file's name, say, where the settings have its path)."""
        for name in ("scores", "curves", *self.info.get("tables", [])):
            table = self.tables.get(name)
            if table is not None and "model" in table:
                return [str(model) for model in table["model"].unique()]
        named = self.info["settings"].get("models", [])
        return [str(name) for name in (named if isinstance(named, list) else [named])]

    @cached_property
    def tables(self) -> RunTables:
        return RunTables(self.path)
