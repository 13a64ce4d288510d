"""What a study is, the studies known by name, and `run`, which carries one out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headwise.charts.section import SECTIONS, Section, Tables
from headwise.errors import HeadwiseError, unknown
from headwise.files import DiskError
from headwise.registry import Registry
from headwise.report import write_report
from headwise.runs import Cell, CellResult, RunFolder, compute_cells, write_tables
from headwise.runs.gather import RunTables
from headwise.studies.context import Context
from headwise.studies.engines import chosen_executor
from headwise.studies.figures import save_figures
from headwise.studies.settings.resolve import resolve
from headwise.studies.workbench import Workbench


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question, the settings it takes, and how it is answered."""

    name: str
    question: str
    settings: type
    """Derived from `StudySettings`; its fields are the keys of the study file."""
    stages: Callable[[Context[Any]], Iterable[Sequence[Cell]]]
    """The cells of one stage after the other. When the next is asked for, those before are finished, and
    `context.table` has what they found; the order of the cells is that of the tables' rows."""
    compute: Mapping[str, Callable[[Context[Any], Cell], CellResult]]
    """What computes a cell, by the cell's kind. It must depend on nothing but the cell, the settings, and tables that
    the cell's stage has read."""
    section: Section | None = None
    """Charts, which are the figures of the run, and findings, both from the finished tables."""
    notices: Callable[[Context[Any], Tables], Iterable[str]] = lambda context, tables: ()
    """What the user is told when the tables are written, in sentences."""


STUDIES: Registry[Study] = Registry("study", "headwise.studies.*.study")
PUBLISHED = "published"


def register(study: Study) -> Study:
    """Make a study known under its name, to `run` and to the report."""
    STUDIES.add(study.name, study)
    if study.section is not None:
        SECTIONS.add(study.name, study.section)
    return study


def studies() -> dict[str, Study]:
    """Every registered study, by name."""
    return STUDIES.all()


def study(name: str) -> Study:
    """The study of this name."""
    return STUDIES.get(name)


def published(name: str) -> Path:
    """The study file that ships with headwise and names a published set-up."""
    there = {file.parent.name: file for file in Path(__file__).parent.glob("*/published.yaml")}
    if name not in there:
        raise unknown("published study", name, there)
    return there[name]


def carry_out(chosen: Study, settings: Any, bench: Workbench, folder: RunFolder) -> None:
    """Compute the cells stage by stage; then write the tables, draw the figures and give notice."""
    settings = settings.quickened() if settings.quick else settings
    context = Context(chosen.name, settings, bench, folder)
    compute = partial(_compute, chosen.compute, context)
    for cells in chosen.stages(context):
        # Cells without a model among their fingerprints only put tables together.
        progress = bench.progress and any("model" in cell.fingerprints for cell in cells)
        compute_cells(folder, cells, compute, progress=progress)
        context.cells += cells
    write_tables(folder, progress=bench.progress)
    tables = RunTables(folder.path, folder.written)
    if chosen.section is not None:
        save_figures(folder, chosen.section.charts(tables))
    for sentence in chosen.notices(context, tables):
        folder.notice(sentence)


def _compute(
    kinds: Mapping[str, Callable[[Context[Any], Cell], CellResult]], context: Context[Any], cell: Cell
) -> CellResult:
    return kinds[cell.kind](context, cell)


def run(
    name: str,
    out: str | Path,
    file: str | Path | None = None,
    *,
    fresh: bool = False,
    command: str | None = None,
    progress: bool = True,
    workbench: Workbench | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    cores_per_worker: int | None = None,
    devices_per_worker: int | None = None,
    **settings: Any,
) -> RunFolder:
    """Carry out a study into the run folder `out`; the same call again resumes.

    file: a study file, or `published` for the one that names the published set-up; settings: what the file may
    hold, given directly (they win). fresh: set an earlier run in the same folder aside. workbench: models that are
    loaded already. engine: `local` (this process) or `ray`, with the address of a cluster (by default RAY_ADDRESS, else
    one is started on this machine), and how many workers share it; where a run is computed changes nothing in it.
    """
    chosen = study(name)
    if file is not None and str(file) == PUBLISHED:
        file = published(name)
    resolved: Any = resolve(chosen.settings, file, settings)
    resolved.before_run()
    bench = workbench or Workbench(progress=progress)
    bench.configure(resolved)
    where = {"address": address, "workers": workers}
    where |= {"cores_per_worker": cores_per_worker, "devices_per_worker": devices_per_worker}
    executor = chosen_executor(engine, where, bench, getattr(resolved, "device", None))
    fingerprints = bench.fingerprints(resolved)
    given: Mapping[str, Any] = resolved.model_dump()
    with (
        executor,
        RunFolder(
            out,
            study=name,
            question=chosen.question,
            settings=given,
            fingerprints=fingerprints,
            seeds={key: given[key] for key in ("seed", "seeds") if key in given},
            fresh=fresh,
            command=command,
        ) as folder,
    ):
        folder.executor = executor
        carry_out(chosen, resolved, bench, folder)
    try:
        folder.report = write_report([folder.path], folder.path / "report.html")
    except HeadwiseError as error:
        if isinstance(error, DiskError) or not (folder.path / "run.json").is_file():
            folder.mark_failed(f"the report was not written: {error}")
            raise
        # The tables and figures are there: a page about them that cannot be made is no reason to fail.
        folder.notice(f"no report was written: {error}")
    return folder
