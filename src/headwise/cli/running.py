"""What the commands that compute something share: starting a study, resuming, showing scores."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headwise.cli.output import echo
from headwise.files import named_source
from headwise.names import component_name

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

    for option in ("fresh", "engine"):
        given.pop(option, None)
    made = plan(study, file, **given)
    echo(str(made))
    return {**asdict(made), "seconds": made.seconds}


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


def show_scores(out: Path) -> dict[str, Any]:
    """Print the heads (or heads at positions, where the run has no others) that stand out; returns every row."""
    from headwise.charts.heatmap import position_name
    from headwise.runs import read_table
    from headwise.tables.frames import SKEWED, by_size, too_few

    has_scores = (out / "tables" / "scores.parquet").is_file()
    table = read_table(out, "scores" if has_scores else "positions")
    for (model, task, name), part in table.groupby(["model", "task", "method"], sort=False):
        n = span(part["n"].tolist())
        echo(f"{name} on {task}, {model}: {largest_of(len(part))}, n = {n}")
        for row in by_size(part)[:10].to_dict("records"):
            head = component_name(row["layer"], row["head"])
            if "position" in row:
                head += f" at {position_name(row['position'], row['token'])}"
            # One example or one seed has no interval, and what is not tested has no q.
            interval = "" if isnan(row["lo"]) else f"  [{row['lo']:+.3f}, {row['hi']:+.3f}]"
            q = "" if isnan(row["q"]) else f"  q = {row['q']:.2g}"
            skewed = "  skewed" if abs(row.get("skewness", 0)) > SKEWED else ""
            echo(f"  {head:<{24 if 'position' in row else 8}}{row['score']:+8.3f}{interval}{q}{skewed}")
        if few := too_few(part, "head-position pair" if "position" in part else "head"):
            echo(f"  {few}")
    return {"scores": table.to_dict("records")}


def largest_of(count: int) -> str:
    """What a list of at most ten rows shows of `count`.

    >>> largest_of(270), largest_of(3)
    ('the ten largest of 270', 'all 3')
    """
    return f"the ten largest of {count}" if count > 10 else f"all {count}"


def span(numbers: list[int]) -> str:
    """One number, or the range where layers differ."""
    return str(numbers[0]) if len(set(numbers)) == 1 else f"{min(numbers)}–{max(numbers)}"
