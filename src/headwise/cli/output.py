"""Where results and messages go: `--json` (results alone on the standard output), `--quiet` and `--verbose`."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import typer

from headwise.errors import HeadwiseError, visible


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
    with redirect_stdout(io.StringIO()) if as_json else nullcontext():
        try:
            result = compute()
        except Failed as failed:
            result, code = failed.result, 1
    if as_json:
        # JSON has its own way to write what the encoding of the output lacks.
        ascii_only = not (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
        sys.stdout.write(
            json.dumps(_plain(result), indent=2, ensure_ascii=ascii_only, allow_nan=False) + "\n"
        )
    if code:
        raise typer.Exit(code)


def note(sentence: str) -> None:
    """Something the user should know, on the standard error; `--quiet` hides it."""
    logging.getLogger("headwise").info("note: %s", sentence)


def _plain(value: Any) -> Any:
    """As JSON has it: no NaN or infinity, no types of numpy."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def echo(text: object = "", **options: Any) -> None:
    """Print; names and texts may come from somebody's file, so control characters are written out."""
    typer.echo(visible(str(text)), **options)
