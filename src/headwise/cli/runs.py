"""The commands about finished runs: `report`, `push`, `compare` and `verify`."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from headwise.cli.output import Failed, echo
from headwise.cli.root import app, argument, option, with_options
from headwise.cli.run import check_figure
from headwise.errors import HeadwiseError, quoted, visible


@app.command()
def report(
    runs: Annotated[list[Path], argument("RUN", "run folders; several are shown side by side")],
    out: Annotated[Path, option("the HTML file")] = Path("report.html"),
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
    run: Annotated[Path, argument("RUN", "a finished run folder")],
    to: Annotated[str, argument("OWNER/NAME", "a dataset repository of the Hugging Face hub")],
    private: Annotated[bool, option("a new repository is private", "--private")] = False,
) -> dict[str, str]:
    """Upload a run to the Hugging Face hub; its prompts, settings and command line can be read there."""
    from headwise.report.sharing import push as upload

    address = upload(run, to, private=private)
    echo(f'{address}: open it anywhere with hw.open_run("{address}")')
    return {"run": address}


@app.command()
def compare(
    first: Annotated[Path, argument("A", "a run folder, or scores that were saved")],
    second: Annotated[Path, argument("B", "another one of the same study")],
    tolerance: Annotated[
        float | None, option("exit code 1 where two numbers differ by more, or one is missing", min=0)
    ] = None,
    plot: Annotated[Path | None, option("also draw the numbers into this file (PNG, SVG, PDF)")] = None,
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


@app.command()
@with_options("device", "dtype", "trust_remote_code")
def verify(
    run: Annotated[Path, argument("RUN", "a finished run folder")],
    steps: Annotated[str, option("number of steps to recompute, or all")] = "3",
    seed: Annotated[
        int | None, option("random seed that chooses the steps; by default another one each time", min=0)
    ] = None,
    **options: Any,
) -> dict[str, Any]:
    """Rebuild a run's tables from its steps, recompute a sample of the steps, and report whether they match."""
    from headwise.studies.verify import summary
    from headwise.studies.verify import verify as compute_again

    if steps != "all" and not (steps.isdecimal() and int(steps[:9]) > 0):
        raise HeadwiseError(f"--steps is {quoted(steps)}; give a number from 1, or all")
    seed = secrets.randbelow(2**32) if seed is None else seed
    results = compute_again(run, steps="all" if steps == "all" else int(steps[:9]), seed=seed, **options)
    for result in results:
        echo(visible(f"{'same' if result.same else 'DIFFERS'}  {result.label}: {result.message}"))
    again = "" if steps == "all" else f" (--seed {seed} chooses the same steps)"
    echo(f"{summary(results)}{again}")
    shown = {
        "run": run,
        "seed": seed,
        "same": all(result.same for result in results),
        "summary": summary(results),
        "results": [asdict(result) for result in results],
    }
    if not shown["same"]:
        raise Failed(shown)
    return shown
