"""Making a place for a run, and holding it so that no second process writes there."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from headwise.bounded import read_text
from headwise.errors import HeadwiseError, flag
from headwise.files import explain_disk_errors

_LOCK = ".headwise.lock"
_MARKS = {"run.json", "cells.sqlite", _LOCK}
"""What tells a run from any other folder: one of these is there from the first moment on."""


def make(path: Path) -> None:
    """Make the folder of a run, or make sure that what is there is one."""
    with explain_disk_errors(path):
        if path.exists() and not path.is_dir():
            raise HeadwiseError(f"{path} is a file; a run needs a folder, so give {flag('out')} another name")
        if path.is_dir():
            inside = {entry.name for entry in path.iterdir()}
            if inside and not inside & _MARKS:
                raise HeadwiseError(
                    f"{path} is not empty and is not a run; give {flag('out')} a new or empty folder"
                )
        path.mkdir(parents=True, exist_ok=True)


def hold(path: Path) -> Any:
    """Take the run's lock, which the system lets go of when the process ends, however it ends."""
    from filelock import FileLock, Timeout

    lock = FileLock(path / _LOCK, timeout=0)
    with explain_disk_errors(path):
        try:
            lock.acquire()
        except Timeout:
            raise HeadwiseError(
                f"{path} is in use by {_holder(path)}; wait until it ends, or give {flag('out')} another folder"
            ) from None
    return lock


def _holder(path: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, HeadwiseError):
        process = json.loads(read_text(path / "run.json", path))["process"]
        return f"process {process['id']} on {process['host']}"
    return "another process"
