"""Run folders: steps that remember, and where they are remembered. Begin with `step.py`, then `compute.py`.

`folder.py` is the run folder, with `hold.py` (its lock), `info.py` (run.json) and `tables.py` (Parquet); `store.py` has
the finished steps (cells.sqlite, a transaction per step), `salvage.py` what a damaged one still holds, `values.py` what
can be stored. `ray_executor.py` computes on a Ray cluster, `reader.py` is a run as the report reads it, `stopping.py`
what Ctrl-C does. Importing this loads nothing heavy. May import: errors, files, registry, progress, stats, tables.
"""

from typing import TYPE_CHECKING, Any

from headwise.progress import progress
from headwise.runs.compute import LocalExecutor, compute
from headwise.runs.folder import RunFolder
from headwise.runs.info import read_info
from headwise.runs.step import Call, Executor, Finished, Job, Step, step
from headwise.runs.store import Store

if TYPE_CHECKING:
    from headwise.runs.tables import read_table, write_table

__all__ = [
    "Call",
    "Executor",
    "Finished",
    "Job",
    "LocalExecutor",
    "RunFolder",
    "Step",
    "Store",
    "compute",
    "progress",
    "read_info",
    "read_table",
    "step",
    "write_table",
]


def __getattr__(name: str) -> Any:
    """Tables need pandas and Arrow, for which a command should not wait that reads none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headwise.runs import tables

    return getattr(tables, name)
