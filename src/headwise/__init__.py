"""headwise finds the attention heads that matter for a behaviour of a language model, with confidence intervals.

>>> import headwise as hw
>>> hw.Head.parse("L12H3")
Head(layer=12, head=3)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headwise._version import __version__ as __version__
from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise import register
    from headwise.cards import card
    from headwise.certificates.certify import certify
    from headwise.comparing import compare
    from headwise.explorer.explorer import explore
    from headwise.harness import lm_eval
    from headwise.heads import Edges, Head, Scores
    from headwise.model.attention.attention import attention
    from headwise.model.generation.generate import generate
    from headwise.model.load.export import export
    from headwise.model.load.load import load
    from headwise.model.measure.patching import patch
    from headwise.model.model import Model
    from headwise.report.opened import open_run
    from headwise.scores import score
    from headwise.scores.difference import diff
    from headwise.scores.edges import edges
    from headwise.scores.interactions.interactions import interactions
    from headwise.scores.lens import lens
    from headwise.scores.measure import measure
    from headwise.studies.base import run
    from headwise.sweeps.curve import Sweep
    from headwise.sweeps.sweep import sweep
    from headwise.tasks import Example, Task, task

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

__all__ = [
    "Edges",
    "Example",
    "Head",
    "HeadwiseError",
    "Model",
    "Scores",
    "Sweep",
    "Task",
    "attention",
    "card",
    "certify",
    "compare",
    "diff",
    "edges",
    "explore",
    "export",
    "generate",
    "interactions",
    "lens",
    "lm_eval",
    "load",
    "measure",
    "open_run",
    "patch",
    "register",
    "run",
    "score",
    "sweep",
    "task",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"headwise has no {name!r}; it has {', '.join(__all__)}")
    if name == "register":  # a module, whose functions are used as hw.register.task, …
        return importlib.import_module("headwise.register")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    if isinstance(found, type):
        return found
    from headwise.arguments import checked

    return checked(found)


def __dir__() -> list[str]:
    return __all__
