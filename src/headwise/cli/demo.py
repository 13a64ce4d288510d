"""A few minutes with the bundled model: all five studies, small, and one report over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.check import check
from headwise.cli.root import app
from headwise.cli.running import resumable

# Chosen by measuring, so that each takes 60 to 90 seconds on two cores: large enough to show what a study says,
# too small for its bands to be narrow.
STUDIES: dict[str, dict[str, Any]] = {
    "functions": {"models": ["smollm2"], "n": 12},
    "roles": {"models": ["smollm2"], "tasks": ["syntax"], "quick": True},
    "circuits": {"models": ["smollm2", "smollm2-sparse"], "tasks": ["greater_than", "ioi"], "quick": True},
    "masking": {"models": ["smollm2"], "abilities": ["Retrieval", "Knowledge Recall"], "quick": True},
    "prompts": {"models": ["smollm2"], "quick": True, "n": 16},
}
SHOWN = 3
"""Findings on the terminal."""


@app.command()
def demo(out: Annotated[Path, typer.Option(help="the folder of its runs")] = Path("demo")) -> None:
    """A few minutes with the bundled model: all five studies, small, and one report."""
    check("smollm2")
    with resumable():
        page = run_demo(out, tell=typer.echo)
    typer.echo(f"{page}: open it in a browser")


def run_demo(out: Path, *, progress: bool = True, tell: Callable[[str], None] = print) -> Path:
    """Carry out the studies into `out`, or go on where an earlier call stopped; returns the report's path."""
    from headwise.model.load.companions import companions
    from headwise.report import findings, write_report
    from headwise.studies.base import run
    from headwise.studies.workbench import Workbench

    bench = Workbench(progress=progress)
    folders = []
    for number, (name, settings) in enumerate(STUDIES.items(), start=1):
        tell(f"{number} of {len(STUDIES)}: {name}")
        missing = set(settings["models"]) - {"smollm2", *companions()}
        if missing:
            tell(f"(without {', '.join(sorted(missing))}: docs/sparsify.md says how to install it)")
            settings = {**settings, "models": [model for model in settings["models"] if model not in missing]}
        command = _command(name, settings, out)
        folders.append(run(name, out / name, workbench=bench, command=command, **settings).path)
    page = write_report(folders, out / "report.html")
    for finding in findings(folders)[:SHOWN]:
        tell(f"- {finding.sentence}")
    return page


def _command(name: str, settings: dict[str, Any], out: Path) -> str:
    """The line that makes the same run alone."""
    models = " ".join(f"--model {model}" for model in settings["models"])
    tasks = "".join(f" --task {task}" for task in settings.get("tasks", ()))
    rest = {key: value for key, value in settings.items() if key not in ("models", "tasks")}
    options = "".join(f" --set {key}={_value(value)}" for key, value in rest.items())
    return f"headwise run {name} {models}{tasks}{options} --out {out / name}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"'[{', '.join(value)}]'"
    return str(value).lower() if isinstance(value, bool) else str(value)
