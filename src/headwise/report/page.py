"""The page: sections of every run, one table of heads, everything inlined.

Whatever comes from a prompt, a model or a file name reaches the page either through the template, which
escapes, or as JSON that the script sets as text, never as markup.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from headwise._version import __version__
from headwise.charts.chart import Chart
from headwise.charts.interactive import json_numbers, page_chart
from headwise.charts.section import Finding, Shown, section_of
from headwise.charts.style import css_variables
from headwise.errors import HeadwiseError, flag
from headwise.files import explain_disk_errors, replacing
from headwise.report.cards import head_pages
from headwise.report.compared import run_labels
from headwise.report.docs import glossary, glossed, markdown, terms_in
from headwise.report.docs import page as doc_page
from headwise.report.examples import ExampleSets
from headwise.runs.reader import RunReader
from headwise.runs.values import with_nulls
from headwise.tables.frames import Tables, cell_text, groups, too_few

if TYPE_CHECKING:
    from jinja2 import Template

log = logging.getLogger("headwise")

_ROWS = 500
"""Most rows of a chart's table; the run's tables have all rows."""
_TEXTS = 60
"""Most sample texts on the page."""
_NUMBERS = ("score", "lo", "hi", "n", "q")
"""Columns of the table of heads that hold numbers, or none."""
PLOTLY = "plotly/plotly-cartesian.min.js"
"""plotly.js-cartesian-dist-min 4.1.1 of npm, under the MIT licence beside it: the traces that charts use, in a third
of the bytes of the whole library."""
_STORY = "chart-story"
_TOP = 5
"""Findings at the top of the page."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """What a page tells before its findings: one result, in sentences for a newcomer, with one picture."""

    title: str
    sentences: Sequence[str]
    chart: Chart


def write_report(
    runs: Sequence[str | Path],
    out: str | Path,
    story: Story | None = None,
    drawn: Mapping[Path, Shown | None] | None = None,
) -> Path:
    """Write the report over `runs` (run folders) to the file `out`; returns its path.

    drawn: charts and findings by folder, where they are built already.
    """
    if not runs:
        raise HeadwiseError("a report needs at least one run folder")
    path = Path(out)
    if path.exists() and not path.is_file():
        raise HeadwiseError(
            f"{path} is {'a folder' if path.is_dir() else 'not a regular file'}, but the report is one file; give "
            f"{flag('out')} a name such as report.html"
        )
    opened = [RunReader(Path(run)) for run in runs]
    page = _page(opened, story, drawn or {})
    for run in opened:
        for warning in run.warnings:
            log.warning("%s: %s", run.path, warning)
    return _write(page, path)


def write_head_page(
    out: str | Path, title: str, lead: str, tables: Tables, notes: Sequence[str] = ()
) -> Path:
    """Write the head page of one card to the file `out`, without a report around it; returns its path.

    tables: those of `Card.tables`. lead: examples, metric and reference, under the title. notes: why a part is missing.
    """
    cards = head_pages({f"card_{name}": table for name, table in tables.items()})
    page = _template("head.html").render(
        title=title,
        lead=lead,
        notes=notes,
        scores=_table(tables["scores"]),
        version=__version__,
        style=css_variables() + _asset("page.css") + _asset("card.css"),
        cards=_in_script(cards),
        script=_asset("card.js"),
    )
    return _write(page, Path(out))


def _write(page: str, path: Path) -> Path:
    with explain_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_text(page, encoding="utf-8", errors="replace")
    return path


def findings(runs: Sequence[str | Path], drawn: Mapping[Path, Shown | None] | None = None) -> list[Finding]:
    """What the runs found, by weight; the first finding of each run comes before all others."""
    shown = [(drawn or {}).get(Path(run)) or shown_of(RunReader(Path(run))) for run in runs]
    by_run = [[_Linked(finding) for finding in one.findings] for one in shown]
    return [linked.finding for linked in _ranked(by_run)]


@dataclass(frozen=True)
class _Linked:
    """A finding with the anchor of its chart."""

    finding: Finding
    anchor: str = ""
    study: str = ""


def _ranked(by_run: Sequence[Sequence[_Linked]]) -> list[_Linked]:
    """The findings of all runs by weight, those that found nothing last; within both, the heaviest of each run comes
    before all others."""
    ranked = []
    for found in by_run:
        for shown in (True, False):
            of_run = [linked for linked in found if linked.finding.found is shown]
            of_run.sort(key=lambda linked: -linked.finding.weight)
            ranked += [(not shown, rank > 0, linked) for rank, linked in enumerate(of_run)]
    ranked.sort(key=lambda entry: (*entry[:2], -entry[2].finding.weight))
    return [linked for *_, linked in ranked]


def _top(by_run: Sequence[Sequence[_Linked]]) -> list[_Linked]:
    """The findings at the top of the page; none where the list of the only study, just below, has the same ones."""
    if len(by_run) == 1 and len(by_run[0]) <= _TOP:
        return []
    heaviest = {id(max(found, key=lambda one: one.finding.weight)) for found in by_run if found}
    ranked = _ranked(by_run)
    # Of what was not found, only the main question of a study: every study is named once.
    nulls = [linked for linked in ranked if not linked.finding.found and id(linked) in heaviest]
    return [*[linked for linked in ranked if linked.finding.found][: _TOP - len(nulls)], *nulls][:_TOP]


def shown_of(run: RunReader) -> Shown:
    """Charts and findings of a run."""
    section = section_of(run.study, run.info["plugins"])
    with run.explained():
        return section.shown(run.tables)


def _page(runs: Sequence[RunReader], story: Story | None, drawn: Mapping[Path, Shown | None]) -> str:
    charts: dict[str, Any] = {}
    story_data = None
    if story is not None:
        charts[_STORY] = page_chart(story.chart) | {"sets": []}
        story_data = {
            "title": story.title,
            "sentences": story.sentences,
            "chart": _shown(story.chart, _STORY),
        }
    examples = ExampleSets()
    sections, heads, cards = [], [], list[dict[str, Any]]()
    for number, (run, label) in enumerate(zip(runs, run_labels(runs), strict=True)):
        section = drawn.get(run.path) or shown_of(run)
        on_page = [chart for chart in section.charts if chart.page_panels]
        with run.explained():
            shown = [_shown(chart, f"chart-{len(charts) + i}") for i, chart in enumerate(on_page)]
            for chart, about in zip(on_page, shown, strict=True):
                charts[about["id"]] = _with_examples(page_chart(chart), number, run, examples)
                about["examples"] = bool(charts[about["id"]]["sets"])
            if section.heads is not None and len(section.heads):
                rows = section.heads.astype({"layer": int, "head": int} | dict.fromkeys(_NUMBERS, float))
                heads.append(rows.assign(study=label, run=number))
            cards += [{"study": label, **card} for card in head_pages(run.tables)]
        sections.append(_words(run, section, shown, f"study-{number}", label))
    docs = [name for name in dict.fromkeys(section["docs"] for section in sections) if markdown(name)]
    content = {"charts": charts, "heads": _heads(heads), "sets": examples.sets, "inputs": examples.inputs}
    style = f"{css_variables()}{_asset('page.css')}\n{_asset('card.css')}"
    parts = {"style": style, "script": _asset("page.js"), "plotly": _asset(PLOTLY)}
    parts |= {"card_script": _asset("card.js"), "cards": _in_script(cards)}
    models = list(dict.fromkeys(model for run in runs for model in run.models))
    return _template("page.html").render(
        version=__version__,
        title=", ".join(models),
        models=models,
        story=story_data,
        sections=sections,
        few=_few(heads),
        top=_top([section["findings"] for section in sections]),
        docs=[{"name": name, "html": doc_page(name, docs)} for name in docs],
        glossary=glossary(docs),
        data=_in_script(content),
        **parts,
    )


def _shown(chart: Chart, name: str) -> dict[str, Any]:
    """What the page says around a chart."""
    caption = _caption(chart)
    panels = [(one.heading, one.note, one.x.label, one.y.label) for one in chart.page_panels]
    used = " ".join([chart.title, caption, *(word for words in panels for word in words)])
    words = {"title": chart.title, "caption": caption, "prompt": chart.prompt, "terms": terms_in(used)}
    return {"id": name, "name": chart.name, "table": _table(chart.table), "shown": chart.table_shown, **words}


def _with_examples(
    chart: dict[str, Any], number: int, run: RunReader, examples: ExampleSets
) -> dict[str, Any]:
    """The chart, each trace with the number of its set of examples as `meta`; `sets` lists the numbers."""
    sets: list[int] = []
    for trace in (trace for panel in chart["panels"] for trace in panel["traces"]):
        columns = trace.pop("examples", None)
        found = examples.add(number, run.tables, columns) if columns else None
        if found is not None:
            trace["meta"] = found
            sets.append(found)
    return chart | {"sets": list(dict.fromkeys(sets))}


def _words(
    run: RunReader, section: Shown, shown: list[dict[str, Any]], name: str, label: str
) -> dict[str, Any]:
    """What the template says of one run."""

    def link(finding: Finding) -> str:
        charts = [chart["id"] for chart in shown if chart["name"].startswith(finding.chart)]
        first = next(iter([*charts, *(chart["id"] for chart in shown)]), None)
        return f"{first}-title" if first else name

    return {
        "id": name,
        "run": run,
        "label": label,
        "info": run.info,
        "question": run.question,
        "findings": [_Linked(finding, link(finding), label) for finding in section.findings],
        "charts": shown,
        "docs": section.docs,
        "published": _published(run.info.get("about")),
        "texts": _table(section.texts, _TEXTS),
        "texts_title": section.texts_title,
        "made_with": run.made_with,
        "settings": json.dumps(run.made_with["settings"], indent=1, ensure_ascii=False),
        "took": _took(run.info.get("timings", {}).get("seconds")),
    }


def _published(setup: Any) -> dict[str, Any] | None:
    """What a study file says of its paper; the file may be anybody's."""
    if not isinstance(setup, dict) or not setup:
        return None
    rows = [row for row in setup.get("settings", []) if isinstance(row, dict)]
    words = {str(name): str(setup[name]) for name in ("paper", "figure", "first", "cost") if name in setup}
    return {"words": words, "table": _table(pd.DataFrame(rows).fillna("–")) if rows else None}


def _caption(chart: Chart) -> str:
    """The heading and the note of the figure on paper, then the page's caption."""
    words = [" ".join((chart.heading or "").split("\n")), chart.note]
    return " ".join([*(f"{word}." for word in words if word), chart.caption]).strip()


def _few(parts: list[pd.DataFrame]) -> list[str]:
    """What the examples behind the q-values of the table of heads are too few to show, a sentence for each reason."""
    maps = [rows for part in parts for _, rows in groups(part, "model", "task", "measure")]
    sentences = [f"{few[:1].upper()}{few[1:]}." for rows in maps if (few := too_few(rows))]
    return list(dict.fromkeys(sentences))


def _heads(parts: list[pd.DataFrame]) -> dict[str, Any]:
    """The table of heads by columns; each word is stored once and referred to by number, to save nine tenths."""
    if not parts:
        return {"rows": 0}
    table = pd.concat(parts, ignore_index=True)
    columns: dict[str, Any] = {"rows": len(table)}
    table["unit"] = table["unit"].fillna("no unit") if "unit" in table else "no unit"
    for name in ("study", "model", "task", "measure", "unit"):
        codes, words = pd.factorize(table[name].astype(str))
        columns[name] = {"words": list(words), "codes": codes.tolist()}
    for name in ("layer", "head", "run"):
        columns[name] = table[name].tolist()
    for name in _NUMBERS:
        columns[name] = json_numbers(table[name], 4)
    return columns


def _table(rows: pd.DataFrame | None, most: int = _ROWS) -> dict[str, Any] | None:
    if rows is None or rows.empty:
        return None
    return {
        "columns": [str(column).replace("_", " ") for column in rows.columns],
        "rows": [[cell_text(value) for value in row] for row in rows.head(most).itertuples(index=False)],
        "left": max(0, len(rows) - most),
    }


def _took(seconds: float | None) -> str:
    if seconds is None:
        return "not finished"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _in_script(data: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can close the element or open a comment."""
    text = json.dumps(with_nulls(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _template(name: str) -> Template:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, loader=FunctionLoader(_asset))
    environment.filters["glossed"] = glossed
    return environment.get_template(name)


def _asset(name: str) -> str:
    return (resources.files("headwise.report") / "assets" / name).read_text(encoding="utf-8")
