"""Atomic writes, the hash of a file, and a sentence for each way in which a disk fails."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headwise.errors import HeadwiseError, first_line, quoted

_FULL, _READ_ONLY = (errno.ENOSPC, errno.EDQUOT), (errno.EROFS, errno.EACCES, errno.EPERM)
_KEPT = "everything finished so far is kept, so"
_SENTENCES = {
    **dict.fromkeys(
        _FULL, f"the disk that holds {{path}} is full; {_KEPT} make room and run the same command again"
    ),
    **dict.fromkeys(_READ_ONLY, "{path} cannot be written to; give --out a folder that can be"),
    errno.EFBIG: f"{{path}} may not grow any larger (a limit of this account or of the file system); {_KEPT} raise the "
    "limit (ulimit -f) or give --out another disk, and run the same command again",
    errno.EIO: "{path} cannot be used: the disk reports a read or write error",
}
_SQLITE = {
    "disk is full": errno.ENOSPC,
    "readonly database": errno.EROFS,
    "unable to open": errno.EROFS,
    "disk I/O error": errno.EIO,
}
"""Python 3.10 has no error codes on sqlite3 exceptions; SQLite's wording has been the same for years."""


class DiskError(HeadwiseError):
    """The system does not let a file be written or read."""


@contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says about `path` into a sentence that says what to do."""
    try:
        yield
    except OSError as error:
        raise _disk_error(path, error.errno, error.strerror or str(error)) from error
    except sqlite3.OperationalError as error:
        for words, number in _SQLITE.items():
            if words in str(error):
                raise _disk_error(path, number) from error
        raise
    except Exception as error:
        # The writers of safetensors and tokenizers hide the system's error number in the text of their exceptions.
        hidden = re.search(r"\(os error (\d+)\)", str(error))
        if hidden is None or isinstance(error, HeadwiseError):
            raise
        raise _disk_error(path, int(hidden[1]), os.strerror(int(hidden[1]))) from error


def _disk_error(path: Path, number: int | None, reason: str = "") -> DiskError:
    sentence = _SENTENCES.get(number or 0, "{path} cannot be used: {reason}")
    return DiskError(sentence.format(path=path, reason=reason))


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
        _replace(partial, path)
        fsync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


_HELD = (5, 32)
"""Error numbers of Windows: access denied, sharing violation."""
_BAD_NAME = 123
"""Error number of Windows for a name that no file can have, such as `hub:owner/name`."""


def _replace(partial: Path, path: Path) -> None:
    """Put a file in the place of another. Windows refuses while a program, such as a virus scanner or a reader of the
    run, has the old one open, mostly for a moment; so it is tried again for a second."""
    for wait in (0.01, 0.04, 0.15, 0.3, 0.5):
        try:
            return os.replace(partial, path)
        except PermissionError as error:
            if getattr(error, "winerror", None) not in _HELD:
                raise
            time.sleep(wait)
    os.replace(partial, path)


def flush(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def named_source(given: str | Path) -> tuple[str, str]:
    """The name that the user gives a model ("" for none) and the source of the model, from `NAME=source` or a source.

    A file or folder whose own name has the sign = is a source.

    >>> named_source("Qwen-1.5B=./qwen2.5-1.5b-q4.gguf"), named_source("smollm2")
    (('Qwen-1.5B', './qwen2.5-1.5b-q4.gguf'), ('', 'smollm2'))
    """
    path = user_path(given)
    name, sign, source = (part.strip() for part in str(given).partition("="))
    if not (sign and name and source) or "/" in name or path.exists():
        return "", str(given)
    return name, source


def user_path(given: str | Path) -> Path:
    """The path that a user gave, `~` resolved; a `HeadwiseError` where no file or folder can have it."""
    try:
        path = Path(given).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (
        TypeError,
        ValueError,
        RuntimeError,
        OSError,
    ) as error:  # not text, a null character, ~nobody, too long
        if getattr(error, "winerror", None) == _BAD_NAME:
            return path  # on other systems there is simply no such file
        reason = getattr(error, "strerror", None) or first_line(error)
        raise HeadwiseError(f"{quoted(str(given))} cannot be used as a name or path: {reason}") from None
    return path


def inside(root: Path, path: Path) -> bool:
    """Whether a path lies below `root` once "..", absolute parts and links are followed."""
    try:
        return root.resolve() in path.resolve().parents
    except (OSError, ValueError, RuntimeError):  # too long, a null character, links in a circle
        return False


def unused(path: Path) -> Path:
    """`path`, or the first of `path-2`, `path-3` and so on that does not exist."""
    free, number = path, 1
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def fsync_folder(folder: Path) -> None:
    """Make renames inside a folder survive a power cut, where the system has a way to ask for it."""
    # Windows and some network file systems refuse to sync a folder; the rename itself is done.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sha256(path: Path) -> str:
    """The hash of a file of any size."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
