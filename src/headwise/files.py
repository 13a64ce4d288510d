"""Writing that happens whole or not at all, and a sentence for each way in which a disk lets one down."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headwise.errors import HeadwiseError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_LIMITED = {errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


class DiskError(HeadwiseError):
    """The system does not let a file be written or read."""


@contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says about `path` into a sentence that says what to do."""
    try:
        yield
    except OSError as error:
        raise _sentence(path, error) from error
    except sqlite3.OperationalError as error:
        # Python 3.10 has no error codes on sqlite3 exceptions; SQLite's wording has been the same for years.
        if "disk is full" in str(error):
            raise _sentence(path, OSError(errno.ENOSPC, "")) from error
        if "readonly database" in str(error) or "unable to open" in str(error):
            raise _sentence(path, OSError(errno.EROFS, "")) from error
        if "disk I/O error" in str(error):
            raise _sentence(path, OSError(errno.EIO, "the disk reports a read or write error")) from error
        raise
    except Exception as error:
        # safetensors' writer hides the system's error number in the text of an exception of its own.
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None or type(error).__name__ != "SafetensorError":
            raise
        raise _sentence(path, OSError(int(number[1]), os.strerror(int(number[1])))) from error


def _sentence(path: Path, error: OSError) -> DiskError:
    if error.errno in _FULL:
        return DiskError(
            f"the disk that holds {path} is full; everything finished so far is kept, so make room and run "
            "the same command again"
        )
    if error.errno in _LIMITED:
        return DiskError(
            f"{path} may not grow any larger (a limit of this account or of the file system); everything finished so "
            "far is kept, so raise the limit (ulimit -f) or give --out another disk, and run the same command again"
        )
    if error.errno in _READ_ONLY:
        return DiskError(f"{path} cannot be written to; give --out a folder that can be")
    return DiskError(f"{path} cannot be used: {error.strerror or error}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place, on the disk for good, if the block succeeds.

    A reader sees the old content or the new, never a part; a failure leaves the old. The temporary name is
    always the same one, so what a killed process leaves behind is overwritten by the next.
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)  # were it a link, writing would go wherever that leads
    try:
        yield partial
        flush(partial)
        os.replace(partial, path)
        fsync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def flush(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def inside(root: Path, path: Path) -> bool:
    """Whether a path lies below `root` once "..", absolute parts and links are followed."""
    try:
        whole, place = root.resolve(), path.resolve()
    except (OSError, ValueError, RuntimeError):  # too long, a null character, links in a circle
        return False
    return place.is_relative_to(whole) and place != whole


def unused(path: Path) -> Path:
    """`path`, or the first of `path-2`, `path-3` and so on that does not exist."""
    free, number = path, 1
    while free.exists() or free.is_symlink():
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def fsync_folder(folder: Path) -> None:
    """Make renames inside a folder survive a power cut, where the system has a way to ask for it."""
    if os.name != "posix":
        return
    with suppress(OSError):  # some network file systems refuse to sync a folder; the rename itself is done
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
