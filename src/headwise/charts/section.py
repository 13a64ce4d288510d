"""What the report says of one study: charts and sentences, all from tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from headwise.charts.chart import Chart
from headwise.errors import HeadwiseError, quoted
from headwise.names import component_name, method_name
from headwise.registry import Registry, plugin_hint
from headwise.stats import smallest_p
from headwise.stats import too_few as sentence_of_too_few

Tables = Mapping[str, pd.DataFrame]
HEAD_COLUMNS = [
    "model",
    "task",
    "measure",
    "layer",
    "head",
    "score",
    "lo",
    "hi",
    "n",
    "q",
    "unit",
    "p",
    "units",
]
"""Columns of the report's table of heads; a table without `unit` has numbers without one, one without `units` no
groups of examples."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One result, in a sentence with its numbers."""

    sentence: str
    weight: float = 0.0
    """Rank among findings, where only the first few are shown: an effect size between 0 and 1."""
    chart: str = ""
    """Start of the name of the chart that shows it; by default the study's first chart."""
    plain: str = ""
    """The same in everyday words, for the top of the page; by default the sentence."""
    found: bool = True
    """False where the examples show no effect: such results come after the others."""


def table_of(tables: Tables, name: str) -> pd.DataFrame:
    """A table of the run; an empty one where it has none of this name."""
    return tables[name] if name in tables else pd.DataFrame()


def groups(table: pd.DataFrame, *columns: str) -> list[tuple[Any, pd.DataFrame]]:
    """The rows by the values of the columns, in order of appearance; nothing for a table that the run does not have."""
    keys = columns[0] if len(columns) == 1 else list(columns)
    return list(table.groupby(keys, sort=False)) if len(table) else []


def by_size(table: pd.DataFrame, column: str = "score") -> pd.DataFrame:
    """The rows by the absolute value of a column, the largest first; equal ones keep their order."""
    return table.sort_values(column, key=abs, ascending=False, kind="stable")


def head_names(table: pd.DataFrame) -> list[str]:
    """The heads of a table's rows, in its order, as `L12H3`; MLPs as `MLP12`, the embeddings as `input`."""
    return [component_name(layer, head) for layer, head in zip(table["layer"], table["head"], strict=True)]


def too_few(table: pd.DataFrame, what: str = "head") -> str:
    """What the examples behind a table of tests (columns n, p and, with groups, units) are too few to show.

    Empty where a single head can be significant, and for other tests than sign flips, whose p has no smallest value.
    """
    tested = table[table["p"].notna()] if "p" in table else table[:0]
    if tested.empty or tested["n"].nunique() > 1:  # scores that stop early have a test of their own
        return ""
    grouped = "units" in tested and tested["units"].notna().all()
    units = int(tested["units" if grouped else "n"].iloc[0])
    if tested["p"].min() < smallest_p(units, len(tested)) * (1 - 1e-9):
        return ""
    return sentence_of_too_few(units, len(tested), what)


def head_rows(tables: Tables) -> pd.DataFrame | None:
    """The rows of `scores` as the table of heads has them."""
    if "scores" not in tables:
        return None
    scores = tables["scores"]
    if "reference" in scores:
        methods = [method_name(*pair) for pair in zip(scores["method"], scores["reference"], strict=True)]
        scores = scores.assign(method=methods)
    return scores.rename(columns={"method": "measure", "metric": "unit"}).reindex(columns=HEAD_COLUMNS)


@dataclass(frozen=True)
class Shown:
    """What is shown of one run: on the page, in its figures, on the terminal."""

    findings: list[Finding]
    charts: list[Chart]
    heads: pd.DataFrame | None
    texts: pd.DataFrame | None
    docs: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """What one study adds to the report, from the tables of a run."""

    charts: Callable[[Tables], list[Chart]]
    findings: Callable[[Tables], list[Finding]]
    heads: Callable[[Tables], pd.DataFrame | None] = head_rows
    """Rows for the table of heads, with the columns `HEAD_COLUMNS`."""
    texts: Callable[[Tables], pd.DataFrame | None] = lambda tables: None
    """Sample texts to read, a row each."""
    docs: str = "scores"
    """The documentation page that explains the charts, without `.md`."""

    def shown(self, tables: Tables) -> Shown:
        """Everything that is shown of a run, each part built once."""
        return Shown(
            self.findings(tables), self.charts(tables), self.heads(tables), self.texts(tables), self.docs
        )


SECTIONS: Registry[Section | None] = Registry("section of the report", "headwise.studies.*.charts")
"""By study; None for a study that was registered without one, which gets that of `score`."""


def section_of(study: str, plugins: Sequence[str]) -> Section:
    """What the report says of a run of this study, which was made with these plug-ins."""
    known = SECTIONS.all()
    if study not in known:
        raise HeadwiseError(f"the study {quoted(study)} is not known here{plugin_hint(plugins)}")
    section = known[study] or known["score"]
    assert section is not None
    return section
