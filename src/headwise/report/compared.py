"""Two runs beside each other: first the settings in which they differ, then their numbers, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.charts.chart import Axis, Chart, Panel, diagonal, points
from headwise.charts.static import figure
from headwise.errors import HeadwiseError
from headwise.runs.info import differing
from headwise.runs.reader import RunReader
from headwise.tables.frames import groups

_NUMBERS = ("score", "difference", "interaction", "value")
"""The column of a table that is compared: the first of these that it has."""
_KEYS = (
    "model task method metric series action by chosen k draw reference condition measure fit role base tuned "
    "layer head position sender receiver slot a b of"
).split()
"""Columns that say what a row is about."""
_GROUPS = ("task", "model", "method", "series", "metric")
_SHOWN = 10


@dataclass(frozen=True)
class RunComparison:
    """What differs between two runs."""

    names: tuple[str, str]
    settings: pd.DataFrame
    """A row per setting, model fingerprint or version that differs: `setting`, then a column per run."""
    rows: pd.DataFrame
    """A row per number that both runs have: `table`, what it is about, `a`, `b`, `difference` (b − a), and `apart`:
    whether the two intervals have no point in common."""
    summary: pd.DataFrame
    """A row per table and group: `rows`, `largest` absolute difference, `mean_size` of the differences,
    `rank_correlation`, `apart`."""
    missing: dict[str, int]
    """Rows that only one of the runs has, by table."""

    @property
    def largest(self) -> float:
        """The largest absolute difference of two numbers; infinite where a number is missing from one run alone."""
        sizes = self.rows["difference"].abs()
        one_sided = self.rows["a"].isna() != self.rows["b"].isna()
        return float("inf") if one_sided.any() else float(np.nan_to_num(sizes.max()))

    def within(self, tolerance: float) -> bool:
        """Whether every number of one run is in the other, and no two differ by more than this."""
        return not self.missing and self.largest <= tolerance

    def plot(self) -> Any:
        """Every number of the first run against the second's; returns the matplotlib figure."""
        return figure(self.chart())

    def chart(self) -> Chart:
        """A panel per table; a dot on the line is a number that both runs have alike."""
        panels = []
        for table, part in groups(self.rows, "table"):
            finite = part[["a", "b"]].dropna()
            ends = np.array([finite.to_numpy().min(), finite.to_numpy().max()])
            marks = [
                diagonal(ends, name="the same", dash="dash"),
                points(finite["a"], finite["b"], name=table, colour="#35608d"),
            ]
            x, y = (Axis(label=name) for name in self.names)
            panels.append(Panel(title=f"{table}: {len(finite)} numbers", marks=marks, x=x, y=y))
        words = (
            "; ".join(f"{r.setting}: {r[2]} | {r[3]}" for r in self.settings.itertuples())
            or "the same settings"
        )
        return Chart(title=f"{self.names[0]} and {self.names[1]}", note=words, panels=panels, page_columns=2)

    def __str__(self) -> str:
        first, second = self.names
        lines = [f"{first} (a) and {second} (b)"]
        lines += [f"  {r.setting}: {r[2]} | {r[3]}" for r in self.settings.itertuples()] or [
            "  the same settings"
        ]
        lines += [f"{count} rows of {table} are in one run only" for table, count in self.missing.items()]
        for r in self.summary.to_dict("records"):
            named = ", ".join(str(r[name]) for name in _GROUPS if isinstance(r.get(name), str))
            lines.append(
                f"{r['table']}{f' ({named})' if named else ''}: {r['rows']} numbers, largest difference "
                f"{r['largest']:.3g}, mean {r['mean_size']:.3g}, rank correlation {r['rank_correlation']:.3f}, "
                f"{r['apart']} with intervals apart"
            )
        top = self.rows.reindex(
            self.rows["difference"].abs().sort_values(ascending=False, kind="stable").index
        )
        for r in top[:_SHOWN].to_dict("records") if self.largest > 0 else ():
            keys = [name for name in ("table", *_KEYS) if name not in "ab" and not pd.isna(r.get(name))]
            words = " ".join(_word(name, r) for name in keys)
            lines.append(f"  {words}: {r['a']:.4g} → {r['b']:.4g} ({r['difference']:+.3g})")
        return "\n".join(lines)

    __repr__ = __str__


def compare_runs(one: RunReader, two: RunReader) -> RunComparison:
    """Compare the numbers of two runs of one study.

    Rows belong together where all columns that say what they are about agree. A column in which the runs share no value
    (the model, or the ablation type, of runs that differ in it) is left out of account.
    """
    if one.study != two.study:
        raise HeadwiseError(
            f"{one.path} is a run of {one.study!r} and {two.path} of {two.study!r}; compare two runs of one study"
        )
    frames: list[pd.DataFrame] = []
    missing: dict[str, int] = {}
    for table in [name for name in one.tables if name in two.tables]:
        found = _joined(one.tables[table], two.tables[table])
        if found is not None:
            both, left_over = found
            frames.append(both.assign(table=table))
            missing |= {table: left_over} if left_over else {}
    missing |= {name: len(run.tables[name]) for run, other in ((one, two), (two, one)) for name in run.tables
                if name not in other.tables and _number(run.tables[name])}  # fmt: skip
    if not frames:
        raise HeadwiseError(f"{one.path} and {two.path} have no table of numbers in common")
    rows = pd.concat(frames, ignore_index=True)
    names = run_names([one, two])
    return RunComparison((names[0], names[1]), _settings([one, two], names), rows, _summary(rows), missing)


def run_names(runs: Sequence[RunReader]) -> list[str]:
    """The names of the folders, with the folder above where two are alike."""
    paths = [run.path.absolute() for run in runs]
    alike = len({path.name for path in paths}) < len(paths)
    return [f"{path.parent.name}/{path.name}" if alike else path.name for path in paths]


def run_labels(runs: Sequence[RunReader]) -> list[str]:
    """What a page over several runs calls each: study, name, and the settings in which runs of this study differ."""
    if len(runs) == 1:
        return [runs[0].study]
    labels = []
    for run, name in zip(runs, run_names(runs), strict=True):
        alike = [other for other in runs if other.study == run.study]
        differ = differing([other.made_with["settings"] for other in alike])
        values = [f"{setting} {found[alike.index(run)]}" for setting, found in differ.items()]
        words = f" ({', '.join(values[:6])}{', …' if len(values) > 6 else ''})" if values else ""
        labels.append((run.study if name == run.study else f"{run.study}: {name}") + words)
    return labels


def _settings(runs: Sequence[RunReader], names: Sequence[str]) -> pd.DataFrame:
    """Settings first, then the weights of models, then versions."""
    rows: dict[str, list[Any]] = {}
    for part in ("settings", "fingerprints", "versions"):
        found = differing([run.made_with[part] for run in runs])
        rows |= {
            name if part == "settings" else f"{part[:-1]} {name}": values for name, values in found.items()
        }
    return pd.DataFrame([[name, *values] for name, values in rows.items()], columns=["setting", *names])


def _number(table: pd.DataFrame) -> str | None:
    return next((name for name in _NUMBERS if name in table), None)


def _joined(one: pd.DataFrame, two: pd.DataFrame) -> tuple[pd.DataFrame, int] | None:
    """The numbers of both tables, and how many rows only one of them has; None for a table without numbers of ours."""
    number = _number(one)
    if (
        number is None or number not in two or "example" in one
    ):  # the values of single examples make up the others
        return None
    keys = [name for name in _KEYS if name in one and name in two and set(one[name]) & set(two[name])]
    parts = []
    for table in (one, two):
        ends = {name: table.get(name, np.nan) for name in ("lo", "hi")}
        part = table[keys].assign(number=table[number], **ends)
        # Equal keys are told apart by their order.
        parts.append(
            part.assign(_turn=part.groupby(keys, dropna=False).cumcount() if keys else range(len(part)))
        )
    both = parts[0].merge(parts[1], on=[*keys, "_turn"], how="outer", suffixes=("_a", "_b"), indicator=True)
    shared = both[both["_merge"] == "both"].rename(columns={"number_a": "a", "number_b": "b"})
    apart = (shared["lo_a"] > shared["hi_b"]) | (shared["lo_b"] > shared["hi_a"])
    shared = shared.assign(difference=shared["b"] - shared["a"], apart=apart)
    return shared[[*keys, "a", "b", "difference", "apart"]], len(both) - len(shared)


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
    by = ["table", *(name for name in _GROUPS if name in rows)]
    found: list[Mapping[str, Any]] = []
    for key, part in rows.groupby(by, sort=False, dropna=False):
        values, sizes = part[["a", "b"]].dropna(), part["difference"].abs()
        agreement = stats.rank_correlation(*values.to_numpy().T) if len(values) > 1 else np.nan
        numbers: dict[str, Any] = {"rows": len(part), "largest": sizes.max(), "mean_size": sizes.mean()}
        numbers |= {"rank_correlation": agreement, "apart": int(part["apart"].sum())}
        found.append(dict(zip(by, key, strict=True)) | numbers)
    return pd.DataFrame(found)


def _word(name: str, row: dict[Any, Any]) -> str:
    """A column that names a row, in few characters: `L22` and `H8`, 0.883."""
    value = row[name]
    if isinstance(value, float | int):
        return {"layer": "L", "head": "H"}.get(name, "") + f"{value:.3g}"
    return str(value)
