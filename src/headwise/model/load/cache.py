"""Folders that are made once and kept in the user's cache: checked before every use, never seen half finished.

    folder = kept(Entry("smollm2-bcc81830d10c", …), build)

`build` writes into a hidden folder, which is renamed when it is complete and on the disk. A lock lets one process build
while others wait. A manifest in the folder says what it was made from and has the size and hash of every file.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any

from filelock import FileLock, Timeout

from headwise.errors import HeadwiseError
from headwise.files import flush, fsync_folder, sha256

logger = logging.getLogger(__name__)

MANIFEST = "headwise.json"
_SYSTEM_FILES = (".DS_Store", "Thumbs.db", "desktop.ini")
"""Files that desktops leave in folders."""


@dataclass(frozen=True)
class Entry:
    """One folder of the cache."""

    name: str
    """Of the folder. It has the hash of what the folder is made from, so another source never meets the folder."""
    title: str
    """For messages."""
    doing: str
    """What `build` does with it, for messages: "fetching"."""
    lock: str
    """Entries with the same lock are built one at a time."""
    space: int
    """Bytes of disk that are used while it is built."""
    made_from: Mapping[str, Any]
    """Entries of the manifest that must be as they are here."""
    details: Mapping[str, Any]
    """Further entries of the manifest."""


def cache_folder() -> Path:
    """`$HEADWISE_CACHE`, else `$XDG_CACHE_HOME/headwise`, else `~/.cache/headwise`."""
    if folder := os.environ.get("HEADWISE_CACHE"):
        return Path(folder).expanduser().absolute()
    return (Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headwise").absolute()


def kept(entry: Entry, build: Callable[[Path], Path]) -> Path:
    """The entry's folder in the cache; one that is missing or damaged is built, one with unknown files is refused.

    build: from an empty working folder to the finished folder in it. Errors of the disk are raised as `OSError`.
    """
    root = cache_folder()
    folder = root / entry.name
    # Before any lock, so that a finished cache may be read-only.
    if fault(folder, entry) is None:
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with _only_one(root / f"{entry.lock}.lock", entry):
        found = fault(folder, entry)
        if found is None:  # another process made it while this one waited
            return folder
        if os.path.lexists(folder):
            logger.warning("the cached %s is damaged (%s): %s it again", entry.title, found, entry.doing)
        _make(entry, folder, build)
    return folder


def _make(entry: Entry, folder: Path, build: Callable[[Path], Path]) -> None:
    """Build in a hidden folder beside `folder`, then rename it into place."""
    root = folder.parent
    # This process holds the lock, so a working folder that exists was left by a killed process.
    for left_over in root.glob(f".{entry.lock}.*"):
        shutil.rmtree(left_over, ignore_errors=True)
    if shutil.disk_usage(root).free < entry.space:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with tempfile.TemporaryDirectory(prefix=f".{entry.lock}.", dir=root, ignore_cleanup_errors=True) as name:
        work = Path(name)
        ready = build(work)
        _write_manifest(ready, entry)
        if os.path.lexists(folder):
            os.replace(folder, work / "damaged")
        os.replace(ready, folder)
        fsync_folder(root)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    logger.info("%s takes %.0f MB in %s", entry.title, size / 1e6, folder)


def _write_manifest(folder: Path, entry: Entry) -> None:
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        flush(path)  # a power failure must not leave a file of the right size without its content
        files[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": sha256(path)}
    manifest = {
        **entry.details,
        **entry.made_from,
        "made_with": {package: version(package) for package in ("transformers", "gguf", "torch")},
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    flush(folder / MANIFEST)


def fault(folder: Path, entry: Entry) -> str | None:
    """What is wrong with a cached folder, in a few words; None when it is good."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        made_from = {name: manifest[name] for name in entry.made_from}
        files = {name: (int(file["size"]), file["sha256"]) for name, file in manifest["files"].items()}
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    if made_from != dict(entry.made_from):
        return "it was made from another file or by another version"
    for name, (size, digest) in files.items():
        try:
            if (held := (folder / name).stat().st_size) != size:
                return f"{name} has {held} bytes instead of {size}"
            if sha256_once(folder / name) != digest:
                return f"the content of {name} has changed"
        except OSError as error:
            return f"{name}: {error.strerror}"
    _refuse_unknown_files(folder, {MANIFEST, *files})
    return None


def _refuse_unknown_files(folder: Path, expected: set[str]) -> None:
    """transformers reads any file with the right name, such as a second index or an adapter. A file that is not ours
    may be somebody's work, so the error names it and it is not deleted with the folder."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    others = sorted(name for name in files - expected if PurePosixPath(name).name not in _SYSTEM_FILES)
    if others:
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        raise HeadwiseError(
            f"the cached model {folder} holds files that headwise did not put there: {', '.join(others[:5])}{more}; "
            "move them elsewhere, or delete the folder and it is made again"
        )


_hashes: dict[tuple[Any, ...], str] = {}
_ahead: dict[tuple[Any, ...], Thread] = {}


def sha256_once(path: Path) -> str:
    """The hash of a file, computed once per process while its size, times and inode stay the same."""
    key = _file_facts(path)
    if key in _ahead:
        _ahead.pop(key).join()
    if key not in _hashes:
        _hashes[key] = sha256(path)
    return _hashes[key]


def hash_ahead(path: Path) -> None:
    """Begin to hash a file while the program does something else; `sha256_once` waits for the result."""

    def compute() -> None:
        with suppress(OSError):  # whoever asks for the hash meets the error
            _hashes[key] = sha256(path)

    with suppress(OSError):
        key = _file_facts(path)
        if key not in _hashes and key not in _ahead:
            _ahead[key] = Thread(target=compute, daemon=True)
            _ahead[key].start()


def _file_facts(path: Path) -> tuple[Any, ...]:
    facts = path.stat()
    return path, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, facts.st_dev


def _only_one(path: Path, entry: Entry) -> AbstractContextManager[Any]:
    """A lock between processes, held while the returned context manager is open."""
    lock = FileLock(path)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        logger.info("another process is %s %s: waiting for it", entry.doing, entry.title)
        return lock.acquire()
