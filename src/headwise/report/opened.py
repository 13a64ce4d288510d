"""`hw.open_run`: a run folder in Python, with its tables, settings, charts and findings. Nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.charts.chart import Chart
from headwise.charts.section import Finding
from headwise.charts.static import figure
from headwise.errors import HeadwiseError, unknown
from headwise.files import user_path
from headwise.report.page import shown_of, write_report
from headwise.runs.info import as_html, one_line
from headwise.runs.reader import RunReader
from headwise.runs.store import copied_store


@dataclass(frozen=True, repr=False)
class OpenedRun(RunReader):
    """A finished or unfinished run, opened to read. `tables` has a DataFrame per table, read when it is asked for."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the tables were computed with."""
        return dict(self.made_with["settings"])

    @property
    def status(self) -> str:
        """`done`, `interrupted` or `failed`; `running` also where the process was killed."""
        return str(self.info["status"])

    @property
    def notices(self) -> list[str]:
        """The warnings and notes of the run, and what is wrong with its files, if anything."""
        return [*self.info["notices"], *self.warnings]

    @property
    def findings(self) -> list[Finding]:
        """The results in sentences, as the report has them."""
        return shown_of(self).findings

    def scores(
        self, method: str | None = None, *, model: str | None = None, task: str | None = None
    ) -> list[Any]:
        """The scores behind the tables as `hw.Scores` (or `PositionScores`), with their values per example."""
        return self._results(("Scores", "PositionScores"), method=method, model=model, task=task)

    def curves(
        self, series: str | None = None, *, model: str | None = None, task: str | None = None
    ) -> list[Any]:
        """The curves behind the tables as `hw.sweep` gives them (or curves over edges)."""
        return self._results(("Sweep", "EdgeCurve"), series=series, model=model, task=task)

    def edges(
        self, method: str | None = None, *, model: str | None = None, task: str | None = None
    ) -> list[Any]:
        """The edges behind the tables as `hw.Edges`."""
        return self._results(("Edges",), method=method, model=model, task=task)

    def texts(self, *, model: str | None = None, task: str | None = None) -> pd.DataFrame:
        """What the model wrote in the run, a row per text: its column `text`, and what it was written for."""
        named = [self.tables[name] for name in ("texts", "cross_texts", "answers") if name in self.tables]
        tables = [table for table in named if "text" in table]
        if not tables:
            raise HeadwiseError(
                f"the run {self.path} of the study {self.study!r} has no texts; masking and prompts do"
            )
        rows = tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)
        for name, value in (("model", model), ("task", task)):
            rows = rows if value is None else rows[rows[name] == value]
        return rows.reset_index(drop=True)

    def _results(self, kinds: tuple[str, ...], **wanted: str | None) -> list[Any]:
        """The stored results of these classes whose attributes have the values that are asked for."""
        with copied_store(self.path) as store:
            stored = [store.get(key) for key in self.info["calls"] if key in store]
        found = [part for result in stored for part in _parts(result, kinds)]
        return [
            part
            for part in found
            if all(value is None or getattr(part, name) == value for name, value in wanted.items())
        ]

    @cached_property
    def charts(self) -> dict[str, Chart]:
        """The charts of the report by name; `plot` draws one."""
        charts = shown_of(self).charts
        return {chart.name or f"chart_{number}": chart for number, chart in enumerate(charts)}

    def plot(self, name: str | None = None) -> Any:
        """Draw the chart of this name (by default the first one); returns the matplotlib figure."""
        if not self.charts:
            raise HeadwiseError(f"the run {self.path} has no charts; its status is {self.status!r}")
        name = next(iter(self.charts)) if name is None else name
        if name not in self.charts:
            raise unknown("chart", name, self.charts)
        return figure(self.charts[name])

    @property
    def report(self) -> Path | None:
        """The run's report; None where it has none (`write_report` writes it)."""
        page = self.path / "report.html"
        return page if page.is_file() else None

    def write_report(self, out: str | Path | None = None) -> Path:
        """Write the report of this run (by default into its folder) and return its path."""
        return write_report([self.path], self.path / "report.html" if out is None else out)

    def __repr__(self) -> str:
        return one_line(self.path, {**self.info, "tables": list(self.tables)})

    def _repr_html_(self) -> str:
        """In a notebook, what it is, its notices and its figures."""
        return as_html(self.path, {**self.info, "tables": list(self.tables)}, self.notices)


def _parts(result: Any, kinds: tuple[str, ...]) -> Iterator[Any]:
    """The results of these classes in a stored one, however deep."""
    if type(result).__name__ in kinds:
        yield result
    elif isinstance(result, dict):
        for value in result.values():
            yield from _parts(value, kinds)
    elif isinstance(result, list | tuple):
        for value in result:
            yield from _parts(value, kinds)
    elif is_dataclass(result):
        for field in fields(result):
            yield from _parts(getattr(result, field.name), kinds)


def open_run(path: str | Path) -> OpenedRun:
    """Open a run folder to read it: tables, settings, status, notices, findings, charts and report.

    path: the folder, or `hf://owner/name` for a run that somebody pushed to the hub (`headwise push`).

    >>> run = hw.open_run("runs/score-smollm2-ioi")                   # doctest: +SKIP
    >>> run.tables["scores"].nlargest(5, "score")                     # doctest: +SKIP
    >>> run.scores("ablation", task="ioi")[0].top(5)                  # doctest: +SKIP
    """
    from headwise.report.sharing import SCHEME, fetched

    run = OpenedRun(fetched(path) if isinstance(path, str) and path.startswith(SCHEME) else user_path(path))
    _ = run.info  # a folder that is no run is refused here, and not at the first use
    return run
