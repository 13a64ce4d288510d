"""A run folder as the report reads it: what run.json says, and the tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.bounded import regular
from headwise.errors import HeadwiseError, quoted
from headwise.files import explain_disk_errors, sha256
from headwise.runs.info import read_info, session
from headwise.runs.tables import read_table


class RunTables(Mapping[str, pd.DataFrame]):
    """The tables of a run, each read when it is first asked for."""

    def __init__(self, path: Path, names: Collection[str] | None = None) -> None:
        """names: which tables there are; by default all that the folder has."""
        files = (path / "tables").glob("*.parquet")
        self._path, self._names = path, sorted([file.stem for file in files] if names is None else names)
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
class RunReader:
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
        """What the tables call the models (for example a file's name, where the settings have its path)."""
        for name in ("scores", "curves", *self.info.get("tables", [])):
            table = self.tables.get(name)
            if table is not None and "model" in table:
                return [str(model) for model in table["model"].unique()]
        named = self.made_with["settings"].get("models", [])
        return [str(name) for name in (named if isinstance(named, list) else [named])]

    @cached_property
    def _sessions(self) -> dict[str, dict[str, Any] | None]:
        """The tables that are there, each with the session that wrote it; None where no session wrote this file."""
        files = [regular(path, root=self.path) for path in sorted((self.path / "tables").glob("*.parquet"))]
        with explain_disk_errors(self.path / "tables"):
            return {file.stem: session(self.info["written"], file.stem, sha256(file)) for file in files}

    @property
    def made_with(self) -> dict[str, Any]:
        """Settings, fingerprints, versions and command of what wrote the tables: a run that was started again with
        others, and stopped, still has the tables of before."""
        wrote = [entry for entry in self.info["written"] if entry in self._sessions.values()]
        return wrote[-1] if wrote else self.info

    @property
    def warnings(self) -> list[str]:
        """What the reader of the tables must know before anything else."""
        if not self.info["written"]:
            return []  # an earlier headwise wrote no hashes
        sessions, made_with = self._sessions, self.made_with
        warnings = []
        forged = [name for name, wrote in sessions.items() if wrote is None]
        if forged:
            warnings.append(
                f"{_tables(forged)} not what the run wrote: the SHA-256 is not the one in run.json. Do not rely on "
                "what is shown from there; `headwise verify` reports what differs, and the command of the run writes "
                "the tables again."
            )
        gone = sorted({name for entry in self.info["written"] for name in entry["tables"]} - {*sessions})
        if gone:
            warnings.append(f"{_tables(gone)} missing from the run folder.")
        older = [
            name for name, wrote in sessions.items() if wrote and wrote["settings"] != made_with["settings"]
        ]
        if older:
            warnings.append(
                f"{_tables(older)} of an earlier session with other settings: the last session was stopped before it "
                "wrote its own."
            )
        if made_with["settings"] != self.info["settings"]:
            warnings.append(
                "This run was started again with other settings and has written no tables since. The tables, and the "
                "settings below, are those of the session before."
            )
        return warnings

    @property
    def hashes(self) -> str:
        """Whether the tables were checked, in words."""
        if not self.info["written"]:
            return "run.json has no SHA-256 of the tables (written by an earlier version), so they were not checked"
        good = sum(wrote is not None for wrote in self._sessions.values())
        return f"{good} of {len(self._sessions)} tables have the SHA-256 that is in run.json"

    @cached_property
    def tables(self) -> RunTables:
        return RunTables(self.path)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what goes wrong inside into a sentence: tables may be anybody's, and charts rely on their columns."""
        try:
            yield
        except HeadwiseError:
            raise
        except Exception as error:
            message = " ".join(str(error).split())
            raise HeadwiseError(
                f"the tables of {self.path} are not those that the study {quoted(self.study)} writes "
                f"({type(error).__name__}: {quoted(message, 200)}); run the study again to rewrite them"
            ) from error


def _tables(names: list[str]) -> str:
    """The subject of a sentence about these tables, with its verb."""
    return f"The table {names[0]} is" if len(names) == 1 else f"The tables {', '.join(names)} are"
