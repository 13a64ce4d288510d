"""`headwise certify`: is this set of heads really a circuit?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.output import echo
from headwise.cli.root import MODEL_HELP, STUDY, app, argument, with_options
from headwise.cli.running import run_study
from headwise.errors import HeadwiseError


@app.command()
@with_options(*STUDY)
def certify(
    source: Annotated[str, argument("MODEL|RUN", f"{MODEL_HELP}; or a run of score or circuits", "models")],
    task: Annotated[
        str | None,
        argument("TASK", "a built-in task (headwise list tasks), a file; of a run: its own", "tasks"),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            help="the set: names (L23H3,L20H0), a heads file, or a run folder or scores with --top; by default a set "
            "is found on other examples than it is tested on"
        ),
    ] = None,
    top: Annotated[int | None, typer.Option(help="how many of the first heads form the set", min=1)] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Test whether a set of heads is a circuit of a behaviour: six checks decide, five inform; one page.

    A run gives model, task, ablation type and ranking; the set is tested on other examples. --quick: checks 1 to 4 on
    fewer examples. Exit code 0 whatever the verdict; --json has it.
    """
    settings: dict[str, Any] = {"models": [source], "tasks": [task], "heads": heads}
    if (Path(source) / "run.json").is_file():
        from headwise.studies.certify.from_run import from_run

        if heads is not None:
            raise HeadwiseError(
                f"{source} is a run, whose heads are the set; leave --heads out, or name the model"
            )
        settings = from_run(source, task)
    elif task is None:
        raise HeadwiseError("the task is missing: headwise certify MODEL TASK, or headwise certify RUN")
    names = {"model": settings["models"][0], "task": settings["tasks"][0]}
    return names | run_study("certify", settings | {"top": top}, flags, show_certificate)


def show_certificate(out: Path) -> dict[str, Any]:
    """Print every check; returns verdict, sentence and checks."""
    from headwise.certificates.certificate import number
    from headwise.runs import read_table

    certificate, checks = read_table(out, "certificates").iloc[0], read_table(out, "checks")
    echo(f"{certificate['verdict'].upper()}: {certificate['sentence']}")
    echo(f"  the set: {certificate['heads']}; n = {certificate['n']}")
    for row in checks.to_dict("records"):
        asked = f"  (needed: {row['needed']})" if row["needed"] else ""
        note = f"; {row['note']}" if row["note"] else ""
        echo(
            f"  {row['check']:>2} {row['name']:<22} {row['state']:<11} {row['measure']}: {number(row)}{asked}{note}"
        )
    names = ("verdict", "sentence", "k", "of", "heads", "core", "shell", "n", "reference")
    return {name: certificate[name] for name in names} | {"checks": checks.to_dict("records")}
