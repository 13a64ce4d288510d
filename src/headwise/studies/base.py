"""What a study is, the studies known by name, and `run`, which carries one out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.charts.chart import Chart
from headwise.charts.section import SECTIONS, Section, Tables
from headwise.charts.static import figure
from headwise.charts.style import save
from headwise.errors import HeadwiseError, unknown
from headwise.files import DiskError, user_path
from headwise.progress import progress as show_progress
from headwise.registry import Registry
from headwise.report import write_report
from headwise.runs import Cell, CellResult, LocalExecutor, RunFolder, compute_cells, write_tables
from headwise.runs.gather import Run, RunTables
from headwise.studies.context import Context
from headwise.studies.settings.resolve import resolve
from headwise.studies.workbench import Workbench

if TYPE_CHECKING:
    from headwise.runs.executors.ray_executor import RayExecutor

Compute = Mapping[str, Callable[[Context[Any], Cell], CellResult]]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question, the settings it takes, and how it is answered."""

    name: str
    question: str
    settings: type
    """Derived from `StudySettings`; its fields are the keys of the study file."""
    stages: Callable[[Context[Any]], Iterable[Sequence[Cell]]]
    """The cells of one stage after the other. When the next stage is asked for, the cells before are finished, and
    `context.table` reads their tables; the order of the cells is that of the tables' rows."""
    compute: Compute
    """What computes a cell, by the cell's kind. It must depend on nothing but the cell, the settings, and tables that
    the cell's stage has read."""
    stage_names: Callable[[Any], Sequence[str]] = lambda settings: ()
    """What each of the stages computes, so that the progress bar can say which of how many is under way."""
    section: Section | None = None
    """Charts, which are the figures of the run, and findings, both from the finished tables."""
    notices: Callable[[Context[Any], Tables], Iterable[str]] = lambda context, tables: ()
    """Sentences for the user, shown when the tables are written."""


STUDIES: Registry[Study] = Registry("study", "headwise.studies.*.study")
PUBLISHED = "published"
ENGINES = ("local", "ray")
ENGINE_OPTIONS = ("address", "workers", "cores_per_worker", "devices_per_worker")
"""Of the engine `ray`."""


def register(study: Study) -> Study:
    """Make a study known under its name, to `run` and to the report."""
    STUDIES.add(study.name, study)
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
    files = {file.parent.name: file for file in Path(__file__).parent.glob("*/published.yaml")}
    if name not in files:
        raise unknown("published study", name, files)
    return files[name]


def carry_out(chosen: Study, settings: Any, bench: Workbench, folder: RunFolder) -> None:
    """Compute the cells stage by stage; then write the tables, draw the figures and give notice."""
    settings = settings.quickened() if settings.quick else settings
    names = chosen.stage_names(settings)
    of_how_many = f" of {len(names) + 1}" if names else ""
    context = Context(chosen.name, settings, bench, folder)
    compute = partial(_compute, chosen.compute, context)
    for number, cells in enumerate(chosen.stages(context), 1):
        context.stage = f"stage {number}{of_how_many}"
        label = f"{context.stage}, {names[number - 1]}" if number <= len(names) else context.stage
        # Cells without a model among their fingerprints only put tables together.
        progress = bench.progress and any("model" in cell.fingerprints for cell in cells)
        compute_cells(folder, cells, compute, progress=progress, label=label)
        context.cells += cells
    with show_progress("last stage, tables, figures and report", show=bench.progress):
        write_tables(folder, progress=bench.progress)
        tables = RunTables(folder.path, folder.written)
        if chosen.section is not None:
            with Run(folder.path).explained():
                save_figures(folder, chosen.section.charts(tables))
    for sentence in chosen.notices(context, tables):
        folder.notice(sentence)


def _compute(kinds: Compute, context: Context[Any], cell: Cell) -> CellResult:
    """The cell's result; a table with intervals says what replaced the ablated heads."""
    result = kinds[cell.kind](context, cell)
    reference = cell.settings.get("reference")
    if reference is None:
        return result
    tables = {
        name: table.assign(reference=reference) if "lo" in table and "reference" not in table else table
        for name, table in result.tables.items()
    }
    return replace(result, tables=tables)


def save_figures(folder: RunFolder, charts: Iterable[Chart]) -> None:
    """Draw every chart that has a file name into the run, as PNG, SVG and PDF."""
    for chart in charts:
        if chart.name:
            save(figure(chart), folder.path / "figures", chart.name)


def chosen_executor(
    engine: str, options: Mapping[str, Any], bench: Workbench, device: str | None
) -> LocalExecutor | RayExecutor:
    """Where the cells are computed: the executor of that name; `options`: `ENGINE_OPTIONS`, None where not given."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if engine == "local":
        for name, value in options.items():
            if value is not None:
                raise HeadwiseError(
                    f"{name} is {value!r}, but only the engine 'ray' has this option; give engine 'ray' too"
                )
        return LocalExecutor()
    from headwise.runs.executors.ray_executor import RayExecutor

    bench.use_main_memory()
    return RayExecutor(**options, device=device, replica_bytes=bench.replica_bytes, progress=bench.progress)


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
    **settings: Any,
) -> RunFolder:
    """Run a study into the run folder `out`; the same call again resumes.

    file: a study file, or `published` for the one that names the published set-up; settings: what the file may
    hold, given directly (they override it). fresh: move an earlier run in the same folder aside. workbench: models that
    are loaded already. engine: `local` (this process) or `ray`, which also takes the `address` of a cluster (by default
    RAY_ADDRESS, else one is started on this machine), how many `workers` share it, `cores_per_worker` and
    `devices_per_worker`; where a run is computed changes nothing in it.
    """
    chosen, out = study(name), user_path(out)
    engine_options = {option: settings.pop(option, None) for option in ENGINE_OPTIONS}
    if file is not None and str(file) == PUBLISHED:
        file = published(name)
    resolved: Any = resolve(chosen.settings, file, settings)
    resolved.before_run()
    bench = workbench or Workbench(progress=progress)
    bench.configure(resolved)
    bench.check_files(resolved)
    executor = chosen_executor(engine, engine_options, bench, resolved.device)
    # The outermost bar: it is done when the report is written.
    with show_progress(name, show=bench.progress):
        with show_progress("loading models", show=bench.progress):
            fingerprints = bench.fingerprints(resolved)
        values: Mapping[str, Any] = resolved.model_dump()
        with (
            executor,
            RunFolder(
                out,
                study=name,
                question=chosen.question,
                settings=values,
                fingerprints=fingerprints,
                seeds={key: values[key] for key in ("seed", "seeds") if key in values},
                fresh=fresh,
                command=command,
            ) as folder,
        ):
            folder.executor = executor
            folder.announce()  # other settings than before are worth knowing before hours are spent on them
            carry_out(chosen, resolved, bench, folder)
        _write_report(folder)
    return folder


def _write_report(folder: RunFolder) -> None:
    """The report of one run. The tables and figures are there: a report that cannot be written is no reason to fail."""
    try:
        folder.report = write_report([folder.path], folder.path / "report.html")
    except HeadwiseError as error:
        if isinstance(error, DiskError) or not (folder.path / "run.json").is_file():
            folder.mark_failed(f"the report was not written: {error}")
            raise
        folder.notice(f"no report was written: {error}")
