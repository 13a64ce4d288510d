"""Whether a run's numbers come out again: some of its cells, computed anew and compared.

The run itself is not touched. A copy of it without the chosen cells is carried out again, which computes exactly
those; what comes out is compared with what the run holds.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError
from headwise.runs import CellResult, CellStore, RunFolder, read_info
from headwise.studies.base import study
from headwise.studies.settings.resolve import build
from headwise.studies.workbench import Workbench

TOLERANCE = 1e-3
"""Largest difference that counts as the same number, as a share of the column's largest value: rounding differs
between machines, threads and batch sizes."""


@dataclass(frozen=True)
class Verified:
    """One cell, computed again."""

    label: str
    same: bool
    """Whether everything agrees within the tolerance."""
    said: str
    """In words: identical, or what differs by how much."""


def verify(
    run: str | Path,
    *,
    cells: int = 3,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    workbench: Workbench | None = None,
) -> list[Verified]:
    """Compute `cells` randomly chosen cells of a finished run again and compare each with what is stored."""
    path = Path(run)
    info = read_info(path)
    if info.get("status") != "done":
        raise HeadwiseError(
            f"the run {run} is {info.get('status')}; finish it first, with the command it came from"
        )
    chosen = study(str(info["study"]))
    settings: Any = build(chosen.settings, info["settings"])
    bench = workbench or Workbench()
    bench.configure(settings)
    _check_models(info["fingerprints"], bench.fingerprints(settings))
    with TemporaryDirectory() as place:
        copy = Path(place) / "run"
        copy.mkdir()
        with CellStore(path / "cells.sqlite", must_exist=True) as store:
            keys = sorted(store.keys())
            drawn = random.Random(f"verify/{seed}").sample(keys, min(cells, len(keys)))
            before = {key: (store.cell(key).label, store.get(key)) for key in drawn}
        shutil.copy(path / "cells.sqlite", copy)
        with CellStore(copy / "cells.sqlite") as store:
            store.forget(drawn)
        with RunFolder(
            copy,
            study=info["study"],
            settings=info["settings"],
            fingerprints=info["fingerprints"],
            command="verify",
        ) as folder:
            chosen.carry_out(settings, bench, folder)
        with CellStore(copy / "cells.sqlite") as store:
            return [
                _compared(label, old, store.get(key) if key in store else None, tolerance)
                for key, (label, old) in before.items()
            ]


def _check_models(before: dict[str, str], now: dict[str, str]) -> None:
    for name, fingerprint in before.items():
        if now.get(name) != fingerprint:
            raise HeadwiseError(
                f"the model {name!r} is not the one of the run: its fingerprint was {fingerprint}, and is "
                f"{now.get(name)}"
            )


def _compared(label: str, old: CellResult, new: CellResult | None, tolerance: float) -> Verified:
    if new is None:
        # Only when an earlier stage gave other numbers is another cell asked for in its place.
        return Verified(
            label, False, "was not asked for again, because what it builds on came out differently"
        )
    if set(old.tables) != set(new.tables):
        return Verified(label, False, f"gave the tables {sorted(new.tables)} instead of {sorted(old.tables)}")
    said = [
        what
        for name in old.tables
        for what in _differences(name, old.tables[name], new.tables[name], tolerance)
    ]
    if said:
        return Verified(label, False, "; ".join(said))
    largest = max((_largest(old.tables[name], new.tables[name]) for name in old.tables), default=0.0)
    return Verified(
        label, True, "identical" if largest == 0 else f"the same to {largest:.1e} of the largest value"
    )


def _differences(name: str, old: pd.DataFrame, new: pd.DataFrame, tolerance: float) -> Iterator[str]:
    if list(old.columns) != list(new.columns) or len(old) != len(new):
        yield f"{name} has {len(new)} rows of {list(new.columns)}, not {len(old)} of {list(old.columns)}"
        return
    for column, gap in _gaps(old, new):
        if gap > tolerance:
            yield f"{name}.{column} differs by {gap:.1e} of its largest value"


def _largest(old: pd.DataFrame, new: pd.DataFrame) -> float:
    return max((gap for _, gap in _gaps(old, new)), default=0.0)


def _gaps(old: pd.DataFrame, new: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """How far apart each column is: of numbers the largest difference over the largest value, of words 0 or 1."""
    for column in old.columns:
        a, b = old[column], new[column]
        if pd.api.types.is_numeric_dtype(a) and pd.api.types.is_numeric_dtype(b):
            x, y = a.to_numpy(dtype=float, na_value=np.nan), b.to_numpy(dtype=float, na_value=np.nan)
            if (np.isnan(x) != np.isnan(y)).any():
                yield str(column), 1.0
                continue
            known = ~np.isnan(x) & (x != y)
            size = np.abs(x[np.isfinite(x)]).max(initial=0.0) or 1.0
            yield str(column), float(np.abs(x[known] - y[known]).max(initial=0.0) / size)
        else:
            yield str(column), float(not a.astype(object).equals(b.astype(object)))


def summary(results: Sequence[Verified]) -> str:
    """All of it in one sentence."""
    good = sum(one.same for one in results)
    return f"{good} of {len(results)} cells came out the same"
