"""`headwise report`, `headwise push` and `headwise compare`: one page over runs, a run for others, two compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.output import Failed, echo
from headwise.cli.root import app
from headwise.cli.running import check_figure
from headwise.errors import HeadwiseError


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="run folders; several are shown side by side", metavar="RUN")
    ],
    out: Annotated[Path, typer.Option(help="the HTML file")] = Path("report.html"),
) -> dict[str, str]:
    """Write one self-contained HTML page over one or more runs."""
    from headwise.report import write_report

    if out.is_symlink():
        raise HeadwiseError(f"{out} is a link, and the page would replace it; give another --out")
    page = write_report(runs, out)
    echo(f"{page}: open it in a browser; it needs no network")
    return {"report": str(page)}


@app.command()
def push(
    run: Annotated[Path, typer.Argument(help="a finished run folder", metavar="RUN")],
    to: Annotated[
        str, typer.Argument(help="a dataset repository of the Hugging Face hub", metavar="OWNER/NAME")
    ],
    private: Annotated[bool, typer.Option("--private", help="a new repository is private")] = False,
) -> dict[str, str]:
    """Upload a run to the Hugging Face hub; its prompts, settings and command line can be read there."""
    from headwise.report.sharing import push as upload

    address = upload(run, to, private=private)
    echo(f'{address}: open it anywhere with hw.open_run("{address}")')
    return {"run": address}


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="a run folder, or scores that were saved", metavar="A")],
    second: Annotated[Path, typer.Argument(help="another one of the same study", metavar="B")],
    tolerance: Annotated[
        float | None,
        typer.Option(help="exit code 1 where two numbers differ by more, or one is missing", min=0),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="also draw the numbers into this file (PNG, SVG, PDF)")
    ] = None,
) -> dict[str, Any]:
    """Compare two runs: what differs in their settings, then in their numbers."""
    if plot is not None:
        check_figure(plot)
    from headwise.comparing import compare as compare_results
    from headwise.report.compared import RunComparison

    found = compare_results([first, second])
    echo(str(found))
    if plot is not None:
        found.plot().savefig(plot, dpi=150, bbox_inches="tight")
        echo(f"drawn into {plot}", err=True)
    if not isinstance(found, RunComparison):
        if tolerance is not None:
            raise HeadwiseError(
                "--tolerance compares the numbers of two runs; these are saved scores, so leave it out"
            )
        tables = ("signed", "absolute", "jaccard", "stability")
        return {"k": found.k} | {name: getattr(found, name).to_dict() for name in tables}
    result = {
        "a": first,
        "b": second,
        "settings": found.settings.to_dict("records"),
        "largest": found.largest,
    }
    result |= {"summary": found.summary.to_dict("records"), "rows": found.rows.to_dict("records")}
    result |= {"missing": found.missing, "tolerance": tolerance}
    if tolerance is not None and not found.within(tolerance):
        echo(f"the largest difference is {found.largest:.3g}, above the tolerance of {tolerance:g}"
             if found.largest > tolerance else "rows are missing from one of the runs")  # fmt: skip
        raise Failed(result)
    return result
