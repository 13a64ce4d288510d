"""A run folder as the report reads it: what run.json says, and the tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.runs import read_info, read_table


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
            table = self.table(name)
            if "model" in table:
                return [str(model) for model in table["model"].unique()]
        named = self.info["settings"].get("models", [])
        return [str(name) for name in (named if isinstance(named, list) else [named])]

    def has(self, name: str) -> bool:
        return (self.path / "tables" / f"{name}.parquet").is_file()

    def table(self, name: str) -> pd.DataFrame:
        """A table of the run; an empty one where it has none of this name."""
        return read_table(self.path, name) if self.has(name) else pd.DataFrame()


def by_model(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Each model with its rows; nothing of a table that the run does not have."""
    return [(str(model), rows) for model, rows in table.groupby("model", sort=False)] if len(table) else []
