"""The run folder: everything a study produced, and the point from which it resumes.

    with RunFolder("runs/ioi", study="roles", settings=..., fingerprints=...) as folder:
        results = compute(folder, calls)
    folder.announce()

One process at a time may hold a run. Nothing in it is deleted: what must give way is set aside inside it.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.bounded import read_text
from headwise.display import counted
from headwise.errors import HeadwiseError, flag, hint
from headwise.files import explain_disk_errors, fsync_folder, inside, unused
from headwise.registry import command_line, plugins
from headwise.runs import info
from headwise.runs.hold import hold, make
from headwise.runs.info import latest, record
from headwise.runs.salvage import finish_salvage, move_store, salvage
from headwise.runs.stopping import interrupts_held
from headwise.runs.store import DamagedError, Store
from headwise.runs.values import plain

if TYPE_CHECKING:
    from headwise.runs.step import Call, Executor

log = logging.getLogger("headwise")

_SET_ASIDE = ("cells.sqlite", "run.json", "tables", "figures", "report.html")
"""What gives way to a fresh run. The steps go first: if this is cut short, a run without steps is left."""
_WRITTEN_INTO = ("cells.sqlite", "tables", "figures", ".headwise.lock")
"""What is opened in place; other files are replaced whole, and a link with them."""


class RunFolder:
    """A run, created or opened, and held until `close`. Best used in a `with` block.

    `status` in `run.json`: `running` while it is held, `done` when the block ended well, `interrupted` after
    Ctrl-C, `failed` after an error. A `running` that nobody holds was killed; its finished steps are there.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        study: str | None = None,
        question: str | None = None,
        settings: Mapping[str, Any] | None = None,
        fingerprints: Mapping[str, str] | None = None,
        seeds: Mapping[str, int] | None = None,
        command: str | None = None,
        fresh: bool = False,
    ) -> None:
        """Create or open the run at `path`; what was computed there before is kept.

        `question` is what the study asks, `settings` are its resolved settings, `fingerprints` the hashes of
        models and tasks; `command` is the command line, by default this process's own. With `fresh` an earlier
        run in the same place is moved into a subfolder when the first step is finished, so a mistake in the settings
        leaves it where it is. With the path alone an existing run is only looked at.
        """
        self.path = Path(path).expanduser().absolute()
        self.notices: list[str] = []
        """Sentences the user should read: what changed, what was damaged, what was not finite."""
        self._announced = 0
        settings = None if settings is None else info.without_trust(settings)
        given = {"study": study, "settings": settings, "fingerprints": fingerprints, "seeds": seeds}
        self._about = {name: plain(value, name) for name, value in given.items() if value is not None}
        self._command, self._question = command, question
        self.calls: dict[str, Call[Any]] = {}
        """What this session has asked for, by key."""
        self.executor: Executor | None = None
        """What computes the calls of this session, where it is not this process."""
        self.findings: list[str] = []
        """The results in sentences, once the study has ended; `shown` has the charts too, `report` is the page."""
        self.shown: Any = None
        self.report: Path | None = None
        self.written: list[str] = []
        """The tables that this session has written."""
        self._closed = False
        self._started = time.monotonic()
        make(self.path)
        for name in _WRITTEN_INTO:
            if (self.path / name).is_symlink():
                raise HeadwiseError(
                    f"{self.path / name} is a link, and a run writes nothing outside its folder; put what it leads to "
                    f"there, or give {flag('out')} another folder"
                )
        self._lock = hold(self.path)
        self._begun = False
        self._fresh = fresh and any((self.path / name).exists() for name in _SET_ASIDE)
        self.info = info.understood("{}")
        self.store: Store
        try:
            if not self._fresh:
                existed = self._open()
                if self._about or not existed:
                    self.begin()
        except BaseException:
            self._let_go()
            raise

    # --- files --------------------------------------------------------------------------------------

    def file(self, *parts: str) -> Path:
        """A path inside the run; its folder is made. A path that would leave the run is refused."""
        path = self.path.joinpath(*parts)
        if not inside(self.path, path):
            raise HeadwiseError(
                f"{'/'.join(parts)!r} lies outside the run folder {self.path}; give a name inside it"
            )
        if not self._fresh:
            self.store.check_place()  # a folder that was moved away is not made again
        with explain_disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def set_aside(self, *names: str) -> Path:
        """Move these files and folders of the run into a new subfolder, which is returned."""
        target = unused(self.path / "earlier")
        with explain_disk_errors(self.path):
            target.mkdir()
            for name in names:
                path = self.path / name
                if name == "cells.sqlite":
                    move_store(path, target / name)
                elif path.exists():
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target / name)
            fsync_folder(self.path)
        return target

    def _set_aside_stale_tables(self) -> None:
        """Tables of steps that are no longer asked for would be read as if they belonged to this run."""
        stale = [f"tables/{name}.parquet" for name in self.info["tables"] if name not in self.written]
        stale = [name for name in stale if (self.path / name).exists()]
        if stale:
            target = self.set_aside(*stale)
            self.notice(f"{', '.join(stale)} belonged to other settings and was moved to {target}")
        self.info["tables"] = self.written
        self.info["written"] = latest(self.info["written"], without=[Path(name).stem for name in stale])

    # --- what is written down -----------------------------------------------------------------------

    @property
    def finished(self) -> set[str]:
        """The keys of the steps that need not be computed."""
        return set() if self._fresh else self.store.keys()

    @property
    def status(self) -> str:
        return str(self.info["status"])

    def __repr__(self) -> str:
        return info.one_line(self.path, self.info)

    def _repr_html_(self) -> str:
        """In a notebook, its figures."""
        return info.as_html(self.path, self.info, self.notices)

    def begin(self, *, with_result: bool = False) -> None:
        """Write down that something is being computed. With `fresh`, the earlier run is set aside with the first
        result."""
        if self._closed:
            raise HeadwiseError(f"the run {self.path} is closed; open it again to continue")
        if not self._begun and (with_result or not self._fresh):
            if self._fresh:
                target = self.set_aside(*_SET_ASIDE)
                self.notice(f"the earlier run was moved to {target}; everything is computed again")
                self._fresh = False
                self._open()
            self._begun = True
            self.info = self._describe()
            self.save()

    def notice(self, sentence: str) -> None:
        """Something the user should read, once. `run.json` has it too, also when the run is closed already."""
        if sentence not in self.notices:
            self.notices.append(sentence)
            if self._closed and self._begun:
                self.save()

    def announce(self) -> None:
        """Log the notices that have not been logged yet; the command line shows them."""
        for sentence in self.notices[self._announced :]:
            log.info("note: %s", sentence)
        self._announced = len(self.notices)

    def save(self) -> None:
        """Write `run.json`."""
        self.info["notices"] = self.notices
        info.write_json(self.file("run.json"), self.info)

    def record_table(self, name: str, digest: str) -> None:
        """Write down the SHA-256 of a table, and what it was made with, before its file takes its place."""
        self.begin(with_result=True)
        before = self.info["written"]
        self.info["written"] = record(self.info, name, digest)
        if self.info["written"] != before:
            self.save()

    def wrote(self, tables: list[str]) -> None:
        """These tables of the session are in place; what earlier files of the same names were is forgotten."""
        self.written = tables
        self.info["written"] = latest(self.info["written"])

    def salvage(self) -> None:
        """Save the good results of a damaged store into a new one and go on with that."""
        self.store.close()
        self.store = self._salvaged_store()

    # --- the end ------------------------------------------------------------------------------------

    def close(self, status: str = "done", problem: str | None = None) -> None:
        """Write down how it ended, and let go of store and lock. A second call changes nothing."""
        if self._closed:
            return
        with interrupts_held():
            self._close(status, problem)

    def _close(self, status: str, problem: str | None) -> None:
        self._closed = True
        try:
            if not self._begun:
                return
            if status == "done" and self.written:
                self._set_aside_stale_tables()
            self.info["status"] = status
            if problem:
                self.info["problem"] = problem
            self.info["timings"]["finished"] = info.timestamp()
            self.info["timings"]["seconds"] += round(time.monotonic() - self._started, 3)
            with suppress(DamagedError):  # the next opening finds it and saves what can be saved
                self.info |= {"steps": len(self.store), "calls": list(self.calls)}
            if status == "done":
                self.store.close()
                self.save()
            else:
                self._save_failure()
        finally:
            self._let_go()

    def _save_failure(self) -> None:
        """Write `run.json` where a disk may be full: closing the store may take the last room, or give some back."""
        try:
            self.save()
            self.store.close()
        except HeadwiseError:
            self.store.close()
            try:
                self.save()
            except HeadwiseError:
                self.store.check_place()
                info.overwrite_status(self.path / "run.json", self.status)
                raise

    def mark_failed(self, problem: str) -> None:
        """Write down that something went wrong after the run was closed, where that can be written."""
        with suppress(HeadwiseError):
            if not (self.path / "run.json").is_file():
                return
            lock = hold(self.path)
            try:
                self.info |= {"status": "failed", "problem": problem}
                self.save()
            finally:
                lock.release()

    def close_after(self, error: BaseException) -> None:
        """Write down that `error` ended the run; a disk that is full then must not hide that error."""
        with suppress(HeadwiseError):
            if isinstance(error, KeyboardInterrupt):
                self.close("interrupted")
            else:
                self.close("failed", f"{type(error).__name__}: {error}")

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.close_after(error)

    def _let_go(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        self._lock.release()

    # --- opening ------------------------------------------------------------------------------------

    def _open(self) -> bool:
        """Read what is there, and open its store; says whether there was a run."""
        earlier = self._read_earlier()
        self.store = self._open_store()
        if earlier is None:
            return False
        self._check_study(earlier)
        self.info = earlier
        self._compare(earlier)
        return True

    def _check_study(self, earlier: Mapping[str, Any]) -> None:
        """Another study would replace the tables of the one in this folder, and share no step with it."""
        study, before = self._about.get("study"), earlier["study"]
        if study and before and study != before and (len(self.store) or earlier["tables"]):
            raise HeadwiseError(
                f"{self.path} has a run of the study {before!r}, and this is {study!r}; give {flag('out')} "
                f"another folder, or {hint('fresh', True)} to move the earlier run into a subfolder of it"
            )

    def _read_earlier(self) -> dict[str, Any] | None:
        path = self.path / "run.json"
        with explain_disk_errors(path):
            try:
                return info.understood(read_text(path, self.path), self.path)
            except FileNotFoundError:
                return None
            except ValueError:
                kept = unused(self.path / "run-damaged.json")
                path.replace(kept)
                self.notice(f"run.json could not be read and is kept as {kept.name}; finished steps are used")
                return None

    def _open_store(self) -> Store:
        path = self.path / "cells.sqlite"
        with explain_disk_errors(path):
            finish_salvage(path)
        try:
            return Store(path)
        except DamagedError:
            return self._salvaged_store()

    def _salvaged_store(self) -> Store:
        path = self.path / "cells.sqlite"
        saved, kept = salvage(path)
        self.notice(
            f"cells.sqlite was damaged: {counted(saved, 'finished step')} could be saved, the others "
            f"are computed again; the damaged file is kept as {kept.name}"
        )
        return Store(path)

    def _compare(self, earlier: Mapping[str, Any]) -> None:
        finished = len(self.store)
        if earlier["status"] == "running":
            self.notice(
                "the last session ended without closing the run (killed, power cut or full disk); "
                f"{finished} finished steps are kept"
            )
        if not any("was damaged" in notice for notice in self.notices) and finished < earlier["steps"]:
            self.notice(
                f"run.json counts {earlier['steps']} finished steps and cells.sqlite holds {finished}; the "
                "others are computed again"
            )
        current = {**self._about, "versions": info.versions()} if self._about else {}
        differences = list(info.changes({name: earlier[name] for name in current}, current))
        if differences:
            self.notice(
                f"the settings differ from the run in this folder: {'; '.join(differences)}; finished steps are "
                "used where nothing that they depend on has changed"
            )

    def _describe(self) -> dict[str, Any]:
        """What `run.json` says from now on."""
        earlier = self.info
        times = earlier["timings"]
        content = {
            name: earlier[name] for name in ("study", "settings", "fingerprints", "seeds")
        } | self._about
        return {
            "format": info.FORMAT,
            **content,
            "question": earlier.get("question", "") if self._question is None else self._question,
            "command": command_line(sys.argv) if self._command is None else self._command,
            "versions": info.versions(),
            "plugins": plugins(),
            "timings": {
                **times,
                "created": times["created"] or info.timestamp(),
                "started": info.timestamp(),
                "finished": None,
            },
            "process": {"id": os.getpid(), "host": socket.gethostname()},
            "status": "running",
            "steps": len(self.store),
            "tables": earlier["tables"],
            "findings": [],
            "written": earlier["written"],
        }
