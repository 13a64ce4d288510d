"""`headwise card`: what one head of a model does on a task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.output import echo
from headwise.cli.root import LOAD, Limit, MetricName, ModelName, ReferenceName, TaskName, app, with_options
from headwise.cli.running import FIGURES, check_figure, model_and_task


@app.command()
@with_options("seed", "option", *LOAD, "batch_tokens", "truncate")
def card(
    model: ModelName,
    task: TaskName,
    head: Annotated[str, typer.Argument(help="the head, such as L23H3", metavar="HEAD")],
    run: Annotated[Path | None, typer.Option(help="a run folder whose scores of the head are shown")] = None,
    n: Limit = 32,
    examples: Annotated[int, typer.Option(help="examples in each list", min=1)] = 3,
    metric: MetricName = None,
    reference: ReferenceName = "mean",
    plot: Annotated[
        Path | None, typer.Option(help="also write the card into this file (HTML page, PNG, SVG, PDF)")
    ] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Show what one head does: attention, tokens it promotes and suppresses, patterns, scores, examples."""
    from headwise.heads import Head

    chosen = Head.parse(head)
    if plot is not None:
        check_figure(plot, (".html", *FIGURES))
    loaded, asked, how = model_and_task(model, task, n, flags)
    from headwise.cards import card as make_card

    how |= {"metric": metric, "reference": reference}
    made = make_card(loaded, chosen, asked, run=run, examples=examples, **how)
    echo(repr(made))
    if plot is not None and plot.suffix.lower() == ".html":
        from headwise.report import write_head_page

        write_head_page(plot, made.title, made.lead, made.tables, made.notes)
        echo(f"written to {plot}: open it in a browser", err=True)
    elif plot is not None:
        from headwise.files import explain_disk_errors

        with explain_disk_errors(plot):
            made.plot().savefig(plot, dpi=150, bbox_inches="tight")
        echo(f"drawn into {plot}", err=True)
    tables = {name: table.to_dict("records") for name, table in made.tables.items()}
    about = {
        "model": made.model,
        "task": made.task,
        "head": str(made.head),
        "n": made.n,
        "metric": made.metric,
        "reference": made.reference,
    }
    return {**about, **tables, "notes": list(made.notes)}
