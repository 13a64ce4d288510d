"""What a study is, the studies known by name, and `run`, which carries one out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, unknown
from headwise.files import DiskError
from headwise.registry import Registry
from headwise.report import write_report
from headwise.runs import RunFolder
from headwise.studies.engines import chosen_executor
from headwise.studies.settings.resolve import resolve
from headwise.studies.workbench import Workbench


@dataclass(frozen=True)
class Study:
    """A question, the settings it takes, and how it is answered."""

    name: str
    question: str
    settings: type
    """Derived from `StudySettings`; its fields are the keys of the study file."""
    carry_out: Callable[[Any, Workbench, RunFolder], None]
    """Compute the cells, write the tables and draw the figures."""


PUBLISHED = "published"
STUDIES: Registry[Study] = Registry("study", "headwise.studies.*.study")


def register(
    name: str, *, question: str, settings: type
) -> Callable[[Callable[[Any, Workbench, RunFolder], None]], Callable[[Any, Workbench, RunFolder], None]]:
    """Make a study known under `name`."""

    def add(
        carry_out: Callable[[Any, Workbench, RunFolder], None],
    ) -> Callable[[Any, Workbench, RunFolder], None]:
        STUDIES.add(name, Study(name, question, settings, carry_out))
        return carry_out

    return add


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
        chosen.carry_out(resolved, bench, folder)
    try:
        folder.report = write_report([folder.path], folder.path / "report.html")
    except HeadwiseError as error:
        if isinstance(error, DiskError) or not (folder.path / "run.json").is_file():
            folder.mark_failed(f"the report was not written: {error}")
            raise
        # The tables and figures are there: a page about them that cannot be made is no reason to fail.
        folder.notice(f"no report was written: {error}")
    return folder
