"""The live explorer: a page in the browser on which heads are switched off while the model writes.

Begin with `explorer.py` (`hw.explore`, what the page starts with). A request goes through `guard.py` (token, Host,
Origin), `app.py` (routes), `asked.py` (checked requests) and `worker.py` (one thread owns the model) to what computes
it: `live.py` (next token and continuation under gates), `opened_head.py` (one head on this prompt), `real.py` ("is this
real?" on held-out examples). `kept.py` has what the next click needs again, `freed.py` returns memory. `run_data.py`
reads a run folder, `server.py` starts and stops uvicorn, and `assets/` is the page: plain ES modules. May import:
everything below cli.
"""

import sys
from types import ModuleType
from typing import Any

from headwise.arguments import checked
from headwise.explore.explorer import Explorer, explore

__all__ = ["Explorer", "explore"]


class _Room(ModuleType):
    """Python makes this folder the attribute `headwise.explore`, which is also the name of the function."""

    def __call__(self, *args: Any, **options: Any) -> Explorer:
        return checked(explore)(*args, **options)


sys.modules[__name__].__class__ = _Room
