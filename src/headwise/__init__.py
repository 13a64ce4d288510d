"""headwise finds the attention heads that matter for a behaviour of a language model, with confidence intervals.

>>> import headwise as hw
>>> hw.Head.parse("L12H3")
Head(layer=12, head=3)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headwise._version import __version__ as __version__
from headwise.errors import HeadwiseError, naming_packages

if TYPE_CHECKING:
    from headwise import register as register
    from headwise.cards import card as card
    from headwise.certificates.certify import certify as certify
    from headwise.comparing import compare as compare
    from headwise.explorer.explorer import explore as explore
    from headwise.harness import lm_eval as lm_eval
    from headwise.heads import Edges as Edges
    from headwise.heads import Head as Head
    from headwise.heads import Scores as Scores
    from headwise.model.attention.attention import attention as attention
    from headwise.model.generation.generate import generate as generate
    from headwise.model.load.export import export as export
    from headwise.model.load.load import load as load
    from headwise.model.measure.patching import patch as patch
    from headwise.model.model import Model as Model
    from headwise.report.opened import open_run as open_run
    from headwise.scores import score as score
    from headwise.scores.difference import diff as diff
    from headwise.scores.edges import edges as edges
    from headwise.scores.interactions.interactions import interactions as interactions
    from headwise.scores.lens import lens as lens
    from headwise.scores.measure import measure as measure
    from headwise.studies.base import run as run
    from headwise.sweeps.curve import Sweep as Sweep
    from headwise.sweeps.sweep import sweep as sweep
    from headwise.tasks import Example as Example
    from headwise.tasks import Task as Task
    from headwise.tasks import task as task

# Imported when first used: `headwise --help` should not wait for torch.
_HOMES = {
    "Edges": "headwise.heads",
    "Example": "headwise.tasks",
    "Head": "headwise.heads",
    "Model": "headwise.model.model",
    "Scores": "headwise.heads",
    "Sweep": "headwise.sweeps.curve",
    "Task": "headwise.tasks",
    "card": "headwise.cards",
    "certify": "headwise.certificates.certify",
    "compare": "headwise.comparing",
    "diff": "headwise.scores.difference",
    "edges": "headwise.scores.edges",
    "attention": "headwise.model.attention.attention",
    "explore": "headwise.explorer.explorer",
    "export": "headwise.model.load.export",
    "generate": "headwise.model.generation.generate",
    "interactions": "headwise.scores.interactions.interactions",
    "lens": "headwise.scores.lens",
    "lm_eval": "headwise.harness",
    "load": "headwise.model.load.load",
    "measure": "headwise.scores.measure",
    "open_run": "headwise.report.opened",
    "patch": "headwise.model.measure.patching",
    "register": "headwise.register",
    "run": "headwise.studies.base",
    "score": "headwise.scores",
    "sweep": "headwise.sweeps.sweep",
    "task": "headwise.tasks",
}

__all__ = ["HeadwiseError", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"headwise has no {name!r}; it has {', '.join(__all__)}")
    if name == "register":  # a module, whose functions are used as hw.register.task, …
        return importlib.import_module("headwise.register")
    with naming_packages():
        from headwise.arguments import checked
        from headwise.registry import without_collection

        with without_collection():
            found = getattr(importlib.import_module(_HOMES[name]), name)
    if isinstance(found, type):
        return found

    return checked(found)


def __dir__() -> list[str]:
    return __all__
