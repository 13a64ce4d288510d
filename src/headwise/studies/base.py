"""What a study is, the studies known by name, and `run`, which carries one out.

    @study(question="Which heads matter for this task?", settings=ScoreSettings, section=section)
    def score(run: Run, s: ScoreSettings) -> None: ...

A study is ordinary Python over steps (`runs/step.py`): it asks its run for results, and adds rows to tables.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headwise.charts.chart import Chart
from headwise.charts.section import SECTIONS, Section, Shown
from headwise.charts.static import figure
from headwise.charts.style import save
from headwise.errors import HeadwiseError, unknown
from headwise.files import DiskError, user_path
from headwise.progress import progress as show_progress
from headwise.registry import Registry, command_line
from headwise.report import write_report
from headwise.runs import Call, LocalExecutor, RunFolder
from headwise.runs.reader import RunReader
from headwise.settings import several
from headwise.studies.plan import Plan, make_plan
from headwise.studies.run import Run
from headwise.studies.settings.resolve import about_of, resolve
from headwise.studies.workbench import Workbench

if TYPE_CHECKING:
    from headwise.runs.ray_executor import RayExecutor

Body = TypeVar("Body", bound=Callable[..., None])


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question, the settings it takes, and how it is answered."""

    name: str
    question: str
    settings: type
    """Derived from `StudySettings`; its fields are the keys of the study file."""
    body: Callable[[Run, Any], None]
    """Computes the answer: from a run and the settings to the run's tables."""
    section: Section | None = None
    """Charts, which are the figures of the run, and findings, both from the finished tables."""
    plan: Callable[[Run, Any], Iterable[Call[Any]]] | None = None
    """The calls that the body will make, for `--dry-run`; stand-ins of the right size take the place of results."""


STUDIES: Registry[Study] = Registry("study", "headwise.studies.*.study")
PUBLISHED = "published"
ENGINES = ("local", "ray")
ENGINE_OPTIONS = ("address", "workers", "cores_per_worker", "devices_per_worker")
"""Of the engine `ray`."""


def study(
    question: str,
    settings: type,
    section: Section | None = None,
    plan: Callable[..., Iterable[Call[Any]]] | None = None,
    *,
    name: str | None = None,
) -> Callable[[Body], Body]:
    """Decorator: make a function a study, known to `run`, the command line and the report under its name."""

    def register(body: Body) -> Body:
        study_name = name or body.__name__
        fields: dict[str, Any] = {
            "question": question,
            "settings": settings,
            "section": section,
            "plan": plan,
        }
        STUDIES.add(study_name, Study(name=study_name, body=body, **fields))
        SECTIONS.add(study_name, section)
        return body

    return register


studies, study_named = STUDIES.all, STUDIES.get


def published(name: str) -> Path:
    """The study file that ships with headwise and names a published set-up."""
    files = {file.parent.name: file for file in Path(__file__).parent.glob("*/published.yaml")}
    if name not in files:
        raise unknown("published study", name, files)
    return files[name]


def notes_on(about: Mapping[str, Any], settings: Any) -> list[str]:
    """The sentences of a study file for settings that have the values it names: what was not given, for example."""
    return [
        str(note["say"])
        for note in about.get("notes", [])
        if all(list(getattr(settings, name)) == value for name, value in note["when"].items())
    ]


def _lowered(given: Any, used: Any) -> list[str]:
    """What `quick` made of the numbers that were given."""
    names = sorted(given.model_fields_set & type(given).QUICK.keys())
    both = [(name, getattr(given, name), getattr(used, name)) for name in names]
    return [
        f"{name} is {few}, and not {many}: quick has at most {few}" for name, many, few in both if few != many
    ]


def carry_out(chosen: Study, settings: Any, bench: Workbench, folder: RunFolder) -> Shown | None:
    """Compute the answer and write the tables; then draw the charts and find the sentences, each once."""
    settings = settings.quickened() if settings.quick else settings
    run = Run(settings, bench, folder)
    with bench.remembering():
        chosen.body(run, settings)
    with show_progress("tables, figures and report", show=bench.progress):
        tables = run.write_tables()
        if chosen.section is None:
            return None
        with RunReader(folder.path).explained():
            shown = chosen.section.shown(tables)
            save_figures(folder, shown.charts)
    folder.findings = folder.info["findings"] = [finding.sentence for finding in shown.findings]
    return shown


def save_figures(folder: RunFolder, charts: Iterable[Chart]) -> None:
    """Draw every chart that has a file name into the run, as PNG, SVG and PDF."""
    for chart in charts:
        if chart.name:
            save(figure(chart), folder.path / "figures", chart.name)


def chosen_executor(
    engine: str, options: Mapping[str, Any], bench: Workbench, device: str | None
) -> LocalExecutor | RayExecutor:
    """Where the steps are computed: the executor of that name; `options`: `ENGINE_OPTIONS`, None where not given."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if engine == "local":
        for name, value in options.items():
            if value is not None:
                raise HeadwiseError(
                    f"{name} is {value!r}, but only the engine 'ray' has this option; give engine 'ray' too"
                )
        return LocalExecutor()
    from headwise.runs.ray_executor import RayExecutor

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
    chosen, out = study_named(name), user_path(out)
    engine_options = {option: settings.pop(option, None) for option in ENGINE_OPTIONS}
    file = published(name) if str(file) == PUBLISHED else file
    resolved, published_setup = resolve(chosen.settings, file, settings), about_of(file)
    bench = workbench or Workbench(progress=progress)
    command = command or same_command(
        chosen, file, settings | engine_options | {"engine": engine}, out, bench
    )
    bench.prepare(resolved)
    executor = chosen_executor(engine, engine_options, bench, resolved.device)
    # The outermost bar: it is done when the report is written.
    with show_progress(name, show=bench.progress):
        with show_progress("loading models", show=bench.progress):
            fingerprints = bench.fingerprints(resolved)
        used = resolved.quickened() if resolved.quick else resolved
        values: Mapping[str, Any] = used.model_dump()
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
            for sentence in (*notes_on(published_setup, resolved), *_lowered(resolved, used)):
                folder.notice(sentence)
            folder.shown = carry_out(chosen, used, bench, folder)
            folder.info["about"] = published_setup
        _write_report(folder)
    return folder


def plan(
    name: str, file: str | Path | None = None, *, workbench: Workbench | None = None, **settings: Any
) -> Plan:
    """What `run` would compute with the same arguments: settings, models, examples, rows, minutes and memory."""
    chosen = study_named(name)
    given = {option: value for option, value in settings.items() if option not in ENGINE_OPTIONS}
    file = published(name) if str(file) == PUBLISHED else file
    resolved, published_setup = resolve(chosen.settings, file, given), about_of(file)
    bench = workbench or Workbench(progress=False)
    return make_plan(chosen, resolved, bench, published_setup, notes_on(published_setup, resolved))


def same_command(
    chosen: Study, file: str | Path | None, given: Mapping[str, Any], out: Path, bench: Workbench
) -> str:
    """The command that makes the run of a call from Python; for a study that a script has registered, the script's."""
    if chosen.body.__module__ == "__main__":
        return command_line(["python", *sys.argv])
    words = ["headwise", "run", chosen.name]
    if file is not None:
        words += ["--config", PUBLISHED if Path(file).name == f"{PUBLISHED}.yaml" else str(file)]
    for name, value in given.items():
        values = several(value) if name in ("models", "tasks") and not isinstance(value, Mapping) else ()
        if values:
            named = [bench.source(str(one)) if name == "models" else str(one) for one in values]
            words += [word for one in named for word in (f"--{name[:-1]}", one)]
        elif name in ("engine", *ENGINE_OPTIONS):
            words += [] if value in (None, "local") else [f"--{name.replace('_', '-')}", str(value)]
        elif name != "trust_remote_code":  # no file says that: `without_trust`
            words += ["--set", f"{name}={json.dumps(value, default=str, ensure_ascii=False)}"]
    return command_line([*words, "--out", str(out)])


def _write_report(folder: RunFolder) -> None:
    """The report of one run. The tables and figures are there: a report that cannot be written is no reason to fail."""
    try:
        folder.report = write_report(
            [folder.path], folder.path / "report.html", drawn={folder.path: folder.shown}
        )
    except HeadwiseError as error:
        if isinstance(error, DiskError) or not (folder.path / "run.json").is_file():
            folder.mark_failed(f"the report was not written: {error}")
            raise
        folder.notice(f"no report was written: {error}")
