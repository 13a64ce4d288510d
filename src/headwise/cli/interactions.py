"""`headwise interactions`: joint effects of pairs of heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.output import echo
from headwise.cli.root import MetricName, ModelName, ReferenceName, TaskName, app, with_options
from headwise.cli.running import largest_of, model_and_task
from headwise.names import ablation_name


@app.command()
@with_options("seed", "option", "base", "device", "dtype", "batch_tokens", "truncate", "trust_remote_code")
def interactions(
    model: ModelName,
    task: TaskName,
    heads: Annotated[
        list[str] | None,
        typer.Option(help="a head such as L23H3; repeat for several; or: all. By default 40, by attribution"),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(help="a removed head; repeat for a set: its interaction with each other head"),
    ] = None,
    n: Annotated[int, typer.Option("-n", "--limit", help="number of examples", min=2)] = 32,
    precision: Annotated[
        float | None, typer.Option(help="only as many examples as give each interaction to ± this")
    ] = None,
    metric: MetricName = None,
    reference: ReferenceName = "mean",
    out: Annotated[
        Path | None, typer.Option(help="folder for the table (Parquet) and the figure (PNG, SVG, PDF)")
    ] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Show which heads back each other up and which need each other: the joint effects of pairs of heads.

    `headwise run backups` also finds a primary set, tests its backups on other examples, and proves them by freezing.
    """
    loaded, examples, options = model_and_task(model, task, n, flags)
    from headwise.scores.interactions.interactions import interactions as measure

    chosen = "all" if heads == ["all"] else heads or None
    options |= {"metric": metric, "reference": reference}
    found = measure(loaded, examples, chosen, given=given or None, precision=precision, **options)
    table = found.table()
    echo(
        f"interactions on {found.task}, {found.model}, {ablation_name(found.reference)}, n = {found.n}: "
        f"{largest_of(len(table))} pairs ({found.metric}; positive: the two back each other up)"
    )
    for row in table.head(10).to_dict("records"):
        echo(
            f"  {row['a']} {row['b']:<8}{row['interaction']:+8.3f}  [{row['lo']:+.3f}, {row['hi']:+.3f}]  "
            f"q = {row['q']:.2g}  (alone {row['effect_a']:+.3f}, {row['effect_b']:+.3f}; both {row['joint']:+.3f})"
        )
    if found.details:
        rows, every = found.details["rows"], found.details["rows_exhaustive"]
        echo(f"{found.details['rule']}: {rows:,} forward rows instead of {every:,}")
    if out is not None:
        _write(found, table, out)
    return {
        "model": found.model,
        "task": found.task,
        "n": found.n,
        "reference": found.reference,
        "pairs": table.to_dict("records"),
    }


def _write(found: Any, table: Any, out: Path) -> None:
    from headwise.charts.interactions import interaction_chart
    from headwise.charts.static import figure
    from headwise.charts.style import save
    from headwise.files import explain_disk_errors

    with explain_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        table.to_parquet(out / "interactions.parquet")
    save(figure(interaction_chart(table)), out, "interactions")
    echo(f"{out}: interactions.parquet and the figure", err=True)
