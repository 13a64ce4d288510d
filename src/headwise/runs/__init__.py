"""Run folders: steps that remember, and where they are remembered. Begin with `step.py`, then `compute.py`.

`folder/` is the run folder, `store/` the finished steps, `executors/` the Ray cluster, `reader.py` a run as the report
reads it, `stopping.py` what Ctrl-C does. Importing this loads nothing heavy. May import: errors, files, registry,
progress, stats, tables.
"""

from headwise.progress import progress
from headwise.runs.compute import LocalExecutor, compute
from headwise.runs.folder.folder import RunFolder
from headwise.runs.folder.info import read_info
from headwise.runs.folder.tables import read_table, write_table
from headwise.runs.step import Call, Executor, Finished, Job, Step, step
from headwise.runs.store.store import Store

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
