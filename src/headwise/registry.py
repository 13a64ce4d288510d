"""Things that are known by name: tasks, mappings, metrics, score methods, studies, sections of the report.

    METHODS: Registry[Method] = Registry("method", "headwise.scores", "headwise.scores.*")

Looking a name up first imports the modules that the patterns name, which register themselves, and then those of
other installed packages. A package takes part by naming a module of its own under the entry point
`headwise.plugins`; importing that module registers what it adds. The environment variable HEADWISE_PLUGINS names
Python files that are imported too, for a plug-in that is not in a package.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import os
import pkgutil
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Generic, TypeVar

from headwise.errors import HeadwiseError, quoted, unknown
from headwise.files import user_path

T = TypeVar("T")
F = TypeVar("F")


@contextmanager
def without_collection() -> Iterator[None]:
    """While this holds, no garbage is collected. Importing torch and transformers and loading a model make a million
    objects that stay; looking for garbage among them, again and again, takes a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


atexit.register(gc.freeze)  # nor need it be looked for when the process ends, which took a second


GROUP = "headwise.plugins"
FILES = "HEADWISE_PLUGINS"


class Registry(Generic[T]):
    """Everything of one kind, by name."""

    def __init__(self, kind: str, *patterns: str) -> None:
        """kind: what one entry is called in an error. patterns: the modules whose import registers entries, where
        the last part may be a wildcard (`headwise.scores.*`) or follow one (`headwise.studies.*.section`)."""
        self.kind = kind
        self.patterns = patterns
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> T:
        """Make `entry` known under `name`, and give it back; a second one of the same name replaces it."""
        self._entries[name] = entry
        return entry

    def decorator(self, name: str, entry: Callable[[F], T]) -> Callable[[F], F]:
        """Makes what `entry` makes of a function known under `name`."""

        def add(function: F) -> F:
            self.add(name, entry(function))
            return function

        return add

    def all(self) -> dict[str, T]:
        """Every entry, in the order of their names."""
        return dict(sorted(self.in_order().items()))

    def in_order(self) -> dict[str, T]:
        """Every entry, in the order of registration."""
        for pattern in self.patterns:
            import_modules(pattern)
        _load_plugins()
        return dict(self._entries)

    def get(self, name: str) -> T:
        """The entry of this name, or an error that names the nearest one."""
        if isinstance(name, str) and not plugins():  # which may replace any entry
            for pattern in self.patterns:
                import_modules(pattern, name)
            if name in self._entries:
                return self._entries[name]
        entries = self.all()
        if not isinstance(name, str) or name not in entries:
            raise unknown(self.kind, name, entries)
        return entries[name]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """While this holds, entries may be added; afterwards those before are back. For tests and examples."""
        before = self.in_order()
        try:
            yield
        finally:
            self._entries = before


@cache
def import_modules(pattern: str, only: str | None = None) -> None:
    """Import every module whose dotted name fits. only: what the wildcard stands for, where one module will do."""
    package, wildcard, rest = pattern.partition(".*")
    module = importlib.import_module(package)
    if not wildcard:
        return
    for found in pkgutil.iter_modules(module.__path__, f"{package}."):
        name = f"{found.name}{rest}"
        if only is not None and found.name != f"{package}.{only}":
            continue
        if not rest or (found.ispkg and importlib.util.find_spec(name)):
            importlib.import_module(name)


def plugins() -> list[str]:
    """The plug-ins in use: the files that HEADWISE_PLUGINS names, and the modules of installed packages."""
    files = filter(None, os.environ.get(FILES, "").split(os.pathsep))
    installed = sorted({entry.value for entry in _installed()})
    return [*(str(Path(path).expanduser().absolute()) for path in files), *installed]


def command_line(words: Sequence[str]) -> str:
    """A command that can be given again: with the plug-ins that the environment names."""
    named = os.environ.get(FILES, "").split(os.pathsep)
    files = os.pathsep.join(str(Path(file).expanduser().absolute()) for file in named if file)
    return " ".join([*([f"{FILES}={shlex.quote(files)}"] if files else []), shlex.join(words)])


def plugin_hint(used: Sequence[str]) -> str:
    """The end of an error about a name that a plug-in may have registered; `used`: those of the run."""
    named = ", ".join(quoted(name, 500) for name in used) or "one that the run does not name"
    return (
        f"; it may come from a plug-in ({named}): install its package, or name its file with {FILES}=FILE.py if you "
        "trust it, because it is code"
    )


@cache
def _installed() -> list[metadata.EntryPoint]:
    return list(metadata.entry_points(group=GROUP))


@cache
def _load_plugins() -> None:
    for path in filter(None, os.environ.get(FILES, "").split(os.pathsep)):
        _load_file(user_path(path))
    for entry in _installed():
        try:
            entry.load()
        except Exception as error:
            raise HeadwiseError(
                f"the plug-in {entry.name!r} ({entry.value}) cannot be imported: {type(error).__name__}: {error}; "
                "repair it or uninstall its package"
            ) from error


def _load_file(path: Path) -> None:
    """Import one Python file, whose import registers what it adds."""
    name = f"headwise_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise HeadwiseError(f"{FILES} names {str(path)!r}, which is not a Python file; check the path")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise HeadwiseError(
            f"the plug-in {path} ({FILES}) cannot be imported: {type(error).__name__}: {error}; repair it or leave it "
            "out"
        ) from error
