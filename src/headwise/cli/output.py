"""Where results and messages go: `--json` (results alone on the standard output), `--quiet` and `--verbose`."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any

import typer

from headwise.errors import HeadwiseError, noticing, visible
from headwise.progress import listening


class Failed(Exception):  # noqa: N818 - not an error of the program: the result is complete, and says what failed
    """A command finished with a bad result: it is shown as any other, and the exit code is 1."""

    def __init__(self, result: Any) -> None:
        self.result = result


@contextmanager
def verbosity(quiet: bool, verbose: bool) -> Iterator[None]:
    """Show results and errors only (`quiet`), or also debug messages and tracebacks (`verbose`)."""
    if quiet and verbose:
        raise HeadwiseError("--quiet and --verbose are both given; expected one of them")
    before = os.environ.get("HEADWISE_PROGRESS")
    if quiet:
        os.environ["HEADWISE_PROGRESS"] = "0"
    level = logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO
    logging.getLogger("headwise").setLevel(level)
    try:
        yield
    finally:
        if quiet:
            os.environ.pop("HEADWISE_PROGRESS")
            os.environ.update({} if before is None else {"HEADWISE_PROGRESS": before})


def show(compute: Callable[[], Any], as_json: bool) -> None:
    """Carry out a command. With `as_json` the standard output gets its result as JSON and nothing else."""
    code = 0
    with ExitStack() as undo:
        if as_json:
            undo.enter_context(redirect_stdout(io.StringIO()))
            undo.enter_context(listening(_stream()))
        notices = undo.enter_context(noticing())
        try:
            result = compute()
        except Failed as failed:
            result, code = failed.result, 1
        if notices and isinstance(result, dict):
            result["notices"] = [*result.get("notices", ()), *notices]
    if as_json:
        from headwise.runs.values import with_nulls

        # JSON has its own way to write what the encoding of the output lacks.
        ascii_only = not (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
        sys.stdout.write(
            json.dumps(with_nulls(result), indent=2, ensure_ascii=ascii_only, allow_nan=False) + "\n"
        )
    if code:
        raise typer.Exit(code)


def _stream() -> Callable[[str, Sequence[Mapping[str, Any]]], None]:
    """Live tables as lines of JSON on the standard error: the heads whose number is new."""
    from headwise.runs.values import with_nulls

    before: dict[tuple[str, str], Any] = {}

    def write(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        new = [row for row in rows if before.get((title, row["head"])) != row]
        before.update({(title, row["head"]): row for row in new})
        if new:
            line = json.dumps(
                {"partial": title, "heads": with_nulls(new)}, ensure_ascii=False, allow_nan=False
            )
            print(line, file=sys.stderr, flush=True)

    return write


def note(sentence: str) -> None:
    """Something the user should know, on the standard error; `--quiet` hides it."""
    logging.getLogger("headwise").info("note: %s", sentence)


def echo(text: object = "", **options: Any) -> None:
    """Print; names and texts may come from somebody's file, so control characters are written out."""
    typer.echo(visible(str(text)), **options)
