"""`headwise run`: carry out a study into a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from headwise.cli.complete import complete, names
from headwise.cli.output import echo
from headwise.cli.root import MODEL_HELP, STUDY, Components, MethodNames, app, argument, with_options
from headwise.cli.running import run_study


class StudyHelp(TyperCommand):
    """`headwise run STUDY --help` also lists the settings of that study."""

    study: str | None = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # --help is handled before arguments are read.
        self.study = next((word for word in args if word in names("studies")), None)
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
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"{MODEL_HELP}; repeat for several", autocompletion=complete("models")),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="name or file; repeat for several", autocompletion=complete("tasks")),
    ] = None,
    data: Annotated[list[Path] | None, typer.Option(help="a task file, beside or instead of --task")] = None,
    method: MethodNames = None,
    components: Components = None,
    k: Annotated[
        list[int] | None, typer.Option("-k", help="number of heads; repeat for several", min=0)
    ] = None,
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
