"""Starting a study, resuming it, and `headwise run`; what other commands share."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from headwise.cli.output import echo
from headwise.cli.root import (
    MODEL_HELP,
    STUDY,
    Components,
    MethodNames,
    app,
    argument,
    names,
    option,
    with_options,
)
from headwise.files import named_source
from headwise.registry import plugins, without_collection

if TYPE_CHECKING:
    from headwise.model.model import Model
    from headwise.tasks import Task

FIGURES = (".png", ".svg", ".pdf")
LONGEST_NAME = 100
"""Characters of a default folder's name."""


SHOWN = 5
"""Findings on the terminal: those at the top of the report."""
_SHOWN_AS_TABLE = ("score", "certify")
"""Studies whose table on the terminal says what their findings say."""


def run_study(
    study: str,
    settings: dict[str, Any],
    flags: dict[str, Any],
    show: Callable[[Path], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Carry out a study with these settings and the options `STUDY`; what was not given keeps its default.

    Returns what `--json` prints. show: prints the main table of the finished run, and returns its rows.
    """
    from headwise.studies.settings.resolve import assignments
    from headwise.tasks.opening import check_given

    file, out = flags.pop("config"), flags.pop("out")
    if out is None:
        configs = [Path(file).stem] if file else []
        out = default_folder(study, *configs, *settings["models"], *settings["tasks"])
    assigned = assignments(flags.pop("option") or [])
    flags = {name: value for name, value in flags.items() if value is not None}
    check_given(_given({**settings, **flags}, assigned))
    # Imports torch: seconds, which a bad file need not wait for.
    with without_collection():
        from headwise.studies.base import run as carry_out

    dry = flags.pop("dry_run", False)
    given = _given({**_with_method(study, settings), **flags}, assigned)
    if dry:
        return _show_plan(study, file, given)
    with resumable() as command:
        folder = carry_out(study, out, file, command=command, **given)
    folder.announce()
    outputs = "tables, figures and report.html" if folder.report else "tables and figures, but no report"
    echo(f"{out}: {outputs}")
    tables = {path.stem: path for path in sorted((out / "tables").glob("*.parquet"))}
    for sentence in folder.findings[:SHOWN] if study not in _SHOWN_AS_TABLE or show is None else ():
        echo(f"- {sentence}")
    return {
        "study": study,
        "run": out,
        "report": out / "report.html" if folder.report else None,
        "tables": tables,
        "notices": folder.notices,
        "findings": folder.findings,
        **(show(out) if show else {}),
    }


def _show_plan(study: str, file: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """What the run would compute; returns what `--json` prints."""
    from dataclasses import asdict

    from headwise.studies.base import plan

    for name in ("fresh", "engine"):
        given.pop(name, None)
    planned = plan(study, file, **given)
    echo(str(planned))
    return {**asdict(planned), "rows": planned.rows, "seconds": planned.seconds}


def _given(options: dict[str, Any], assigned: dict[str, Any]) -> dict[str, Any]:
    """What was given, by options and by --set, which has the last word."""
    from headwise.studies.settings.resolve import merge

    given = {name: value for name, value in options.items() if value is not False and value not in (None, [])}
    merge(given, assigned)
    return given


def _with_method(study: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The option --method as the setting that the study has for it: one score method, or several."""
    if not (methods := settings.pop("method", None)):
        return settings
    from headwise.errors import HeadwiseError
    from headwise.studies.base import study_named as find_study

    kind: Any = find_study(study).settings
    fields = kind.model_fields
    name = next((name for name in ("methods", "orders") if name in fields), "method")
    if name == "method" and len(methods) > 1:
        raise HeadwiseError(f"--method is given {len(methods)} times; the study {study!r} takes one method")
    return settings | {name: methods if name != "method" else methods[0]}


def model_and_task(
    model: str, task: str, n: int, flags: dict[str, Any]
) -> tuple[Model, Task, dict[str, Any]]:
    """The model and the examples of a command that runs no study, and the options left for its call."""
    from headwise.studies.settings.resolve import assignments
    from headwise.tasks.opening import check_task

    options = assignments(flags.pop("option") or [])
    check_task(task, options)
    # Import torch: seconds, which a mistake should not wait for.
    with without_collection():
        from headwise.model.load.load import load
        from headwise.tasks import task as open_task

    left = {"seed": flags.pop("seed") or 0, "batch_tokens": flags.pop("batch_tokens")}
    loaded = load(model, **flags)
    return loaded, open_task(task, n, model=loaded, seed=left["seed"], **options), left


def check_figure(path: Path, endings: Sequence[str] = FIGURES) -> None:
    """Refuse a file that no figure can be drawn into, before anything is computed."""
    from headwise.errors import HeadwiseError

    if path.suffix.lower() not in endings:
        raise HeadwiseError(
            f"--plot is {path}; a figure is drawn into a file that ends in {', '.join(endings)}"
        )
    if not path.expanduser().absolute().parent.is_dir():
        raise HeadwiseError(f"--plot is {path}, and there is no folder {path.parent}; make it first")


def default_folder(study: str, *words: str) -> Path:
    """Where a run goes without --out: the study, the models and the tasks in the folder's name.

    >>> default_folder("score", "smollm2", "data/mine.jsonl").as_posix()
    'runs/score-smollm2-data-mine'
    """
    endings = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".gguf")
    words = tuple(named_source(word)[0] or word for word in words)
    parts = [
        study,
        *(word.removesuffix(Path(word).suffix if word.endswith(endings) else "") for word in words),
    ]
    name = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return Path("runs") / name


@contextmanager
def resumable() -> Iterator[str]:
    """Yield the command line of this process; after Ctrl-C or SIGTERM, say that the same command resumes."""
    from headwise.registry import command_line
    from headwise.runs.stopping import stoppable

    command = command_line(["headwise", *sys.argv[1:]])
    try:
        with stoppable():
            yield command
    except KeyboardInterrupt:
        echo(f"stopped; finished steps are kept, and the same command resumes:\n  {command}", err=True)
        raise typer.Exit(1) from None


def number_range(numbers: list[int]) -> str:
    """One number, or the range where layers differ."""
    return str(numbers[0]) if len(set(numbers)) == 1 else f"{min(numbers)}–{max(numbers)}"


class StudyHelp(TyperCommand):
    """`headwise run STUDY --help` also lists the settings of that study."""

    study: str | None = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # --help is handled before arguments are read. A name that is not ours may be that of a plug-in's study.
        words = [word for word in args if not word.startswith("-")]
        ours = [word for word in words if word in names("studies")]
        self.study = next(iter(ours or (words if plugins() else [])), None)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        if self.study:
            from headwise.cli.list import print_table, settings_of

            echo(f" Settings of the study {self.study}, for --set KEY=VALUE or a study file:\n")
            print_table(*settings_of(self.study))


@app.command(cls=StudyHelp)
@with_options(*STUDY)
def run(
    study: Annotated[str, argument("STUDY", "name of a study (headwise list studies)", "studies")],
    first_model: Annotated[
        str | None, argument("MODEL", "as in headwise score; or --model", "models")
    ] = None,
    first_tasks: Annotated[
        list[str] | None, argument("TASK", "as in headwise score; or --task", "tasks")
    ] = None,
    model: Annotated[list[str] | None, option(f"{MODEL_HELP}; repeat for several", names="models")] = None,
    task: Annotated[list[str] | None, option("name or file; repeat for several", names="tasks")] = None,
    data: Annotated[list[Path] | None, option("a task file, beside or instead of --task")] = None,
    method: MethodNames = None,
    components: Components = None,
    k: Annotated[list[int] | None, option("number of heads; repeat for several", "-k", min=0)] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Run a study into a run folder; the same command again resumes.

    `headwise run STUDY --help` lists the settings of one study.
    """
    rest = [word for word in (first_model, *(first_tasks or [])) if word]
    models = [*rest[:1], *(model or [])]
    tasks = [*rest[1:], *(task or []), *map(str, data or [])]
    settings: dict[str, Any] = {"models": models, "tasks": tasks, "method": method, "k": k}
    if components:
        settings["method_options"] = {"components": components}
    return run_study(study, settings, flags)
