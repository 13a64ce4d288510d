"""`headwise report`: one page over one or more runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.output import echo
from headwise.cli.root import app
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
