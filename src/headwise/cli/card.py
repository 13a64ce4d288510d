"""`headwise card`: what one head of a model does on a task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.complete import complete
from headwise.cli.root import ModelName, app, with_options


@app.command()
@with_options("seed", "option", "device", "dtype", "batch_tokens", "truncate", "trust_remote_code")
def card(
    model: ModelName,
    task: Annotated[
        str,
        typer.Argument(
            help="a built-in task (headwise list tasks), a file, or hub:owner/name",
            autocompletion=complete("tasks"),
            metavar="TASK",
        ),
    ],
    head: Annotated[str, typer.Argument(help="the head, such as L23H3", metavar="HEAD")],
    run: Annotated[Path | None, typer.Option(help="a run folder whose scores of the head are shown")] = None,
    n: Annotated[int, typer.Option("-n", "--limit", help="number of examples", min=1)] = 32,
    examples: Annotated[int, typer.Option(help="examples in each list", min=1)] = 3,
    metric: Annotated[str | None, typer.Option(help="metric; by default the task's own")] = None,
    reference: Annotated[
        str, typer.Option(help="ablation type: zero, mean, position_mean, resample, patch")
    ] = "zero",
    plot: Annotated[
        Path | None, typer.Option(help="also draw the card into this file (PNG, SVG, PDF)")
    ] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Show what one head does: attention, tokens it promotes and suppresses, patterns, scores, examples."""
    from headwise.heads import Head
    from headwise.studies.settings.resolve import assignments
    from headwise.tasks.opening import check_task

    chosen, options = Head.parse(head), assignments(flags.pop("option") or [])
    check_task(task, options)
    # Import torch: seconds, which a mistake should not wait for.
    from headwise.cards import card as make_card
    from headwise.model.load.load import load
    from headwise.tasks import task as open_task

    seed, batch_tokens = flags.pop("seed"), flags.pop("batch_tokens")
    loaded = load(model, **flags)
    asked = open_task(task, n, model=loaded, seed=seed, **options)
    how = {"metric": metric, "reference": reference, "seed": seed, "batch_tokens": batch_tokens}
    made = make_card(loaded, chosen, asked, run=run, examples=examples, **how)
    typer.echo(repr(made))
    if plot is not None:
        from headwise.files import explain_disk_errors

        with explain_disk_errors(plot):
            made.plot().savefig(plot, dpi=150, bbox_inches="tight")
        typer.echo(f"drawn into {plot}", err=True)
    tables = {name: table.to_dict("records") for name, table in made.tables.items()}
    about = {
        "model": made.model,
        "task": made.task,
        "head": str(made.head),
        "n": made.n,
        "metric": made.metric,
    }
    return {**about, **tables, "notes": list(made.notes)}
