"""The smallest piece of a study that is computed, stored and resumed as one."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Cell:
    """What is to be computed, down to everything that could change the answer.

    Two cells with the same `key` are the same piece of work, and the second one asked for is not computed.
    """

    study: str
    model: str
    task: str
    part: str
    """Which piece of the study: "ablation", "top k=16", "random k=16 draw=3"."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Everything that was chosen: seeds, metric, number of examples. Plain JSON values."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Hashes of what is too large to be a setting: weights, examples, an order of heads."""
    kind: str = ""
    """Which function of the study computes it; no part of the key."""

    def __post_init__(self) -> None:
        for name in ("study", "model", "task", "part", "kind"):
            if not isinstance(getattr(self, name), str):
                raise HeadwiseError(f"a cell's {name} must be text, not {getattr(self, name)!r}")
        # A copy of our own: a caller's dictionary that changes later must not change the key.
        for name in ("settings", "fingerprints"):
            object.__setattr__(self, name, plain(getattr(self, name), name))

    @cached_property
    def text(self) -> str:
        """The cell as canonical JSON: equal cells give equal text."""
        return canonical({name: getattr(self, name) for name in _PARTS})

    @cached_property
    def key(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def label(self) -> str:
        """How the cell is called in messages."""
        return f"{self.part} on {self.task} with {self.model}"

    @classmethod
    def from_text(cls, text: str, kind: str = "") -> Cell:
        """The cell of this `text`, which does not say its kind."""
        return cls(**json.loads(text), kind=kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


_PARTS = tuple(part.name for part in fields(Cell) if part.name != "kind")


@dataclass(frozen=True)
class CellResult:
    """What computing a cell gave."""

    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    """Rows for the run's tables, by table name."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What else there is to say, as plain JSON: rows spent, gaps, values that were not finite."""


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical(value: Any) -> str:
    """JSON with one spelling for each value."""
    return _CANONICAL.encode(value)


def plain(value: Any, where: str) -> Any:
    """`value` as fresh JSON values (tuples as lists, numpy scalars as numbers), or an error that says where.

    Keys that are not text and numbers that are not finite are refused: JSON would turn them into something
    else without a word, and two different settings could become one.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise HeadwiseError(f"{where} is {value}, which JSON cannot hold; give a finite number or null")
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise HeadwiseError(f"{where} has the key {key!r}; keys must be text")
        return {key: plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item(), where)
    raise HeadwiseError(
        f"{where} is a {type(value).__name__}, which cannot be stored; give text, numbers, true, false, "
        "null, or lists and mappings of these"
    )
