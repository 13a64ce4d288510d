"""What the report says of one study: charts and sentences, all from tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from headwise.charts.chart import Chart
from headwise.charts.words import with_minus
from headwise.errors import HeadwiseError, quoted
from headwise.registry import Registry, plugin_hint
from headwise.tables.frames import Tables, head_rows


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

    def __post_init__(self) -> None:
        for text in ("sentence", "plain"):
            object.__setattr__(self, text, with_minus(getattr(self, text)))


@dataclass(frozen=True)
class Shown:
    """What is shown of one run: on the page, in its figures, on the terminal."""

    findings: list[Finding]
    charts: list[Chart]
    heads: pd.DataFrame | None
    texts: pd.DataFrame | None
    docs: str
    texts_title: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """What one study adds to the report, from the tables of a run."""

    charts: Callable[[Tables], list[Chart]]
    findings: Callable[[Tables], list[Finding]]
    heads: Callable[[Tables], pd.DataFrame | None] = head_rows
    """Rows for the table of heads, with the columns `HEAD_COLUMNS`."""
    texts: Callable[[Tables], pd.DataFrame | None] = lambda tables: None
    """Sample texts to read, a row each."""
    texts_title: str = ""
    """What the texts are, where they are part of the answer; by default they are folded away as samples."""
    docs: str = "scores"
    """The documentation page that explains the charts, without `.md`."""

    def shown(self, tables: Tables) -> Shown:
        """Everything that is shown of a run, each part built once."""
        found, drawn = self.findings(tables), self.charts(tables)
        return Shown(found, drawn, self.heads(tables), self.texts(tables), self.docs, self.texts_title)


SECTIONS: Registry[Section | None] = Registry("section of the report", "headwise.studies.*.section")
"""By study; None for a study that was registered without one, which gets that of `score`."""


def section_of(study: str, plugins: Sequence[str]) -> Section:
    """What the report says of a run of this study, which was made with these plug-ins."""
    sections = SECTIONS.all()
    if study not in sections:
        raise HeadwiseError(f"the study {quoted(study)} is not known here{plugin_hint(plugins)}")
    section = sections[study] or sections["score"]
    assert section is not None
    return section
