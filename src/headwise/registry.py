"""How the rooms find what is registered in them: their own modules, and those of other installed packages.

A package takes part by naming a module of its own under the entry point `headwise.registry`; importing that
module registers its tasks, metrics, methods, studies or report sections.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib import metadata
from types import ModuleType

from headwise.errors import HeadwiseError

GROUP = "headwise.registry"


def discover(room: ModuleType) -> None:
    """Import every module of a room of this package, then what other packages add."""
    for module in pkgutil.iter_modules(room.__path__):
        importlib.import_module(f"{room.__name__}.{module.name}")
    _load_others()


@cache
def _load_others() -> None:
    for entry in metadata.entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            raise HeadwiseError(
                f"the plug-in {entry.name!r} ({entry.value}) cannot be imported: {type(error).__name__}: {error}; "
                "mend it or uninstall its package"
            ) from error
