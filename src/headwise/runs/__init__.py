"""Run folders: `folder/`, `store/` (finished cells), `executors/` (what computes them). Begin with `folder/folder.py`.

`executor.py` is the contract between a folder and its executors, `gather.py` a run as the report reads it,
`stopping.py` what Ctrl-C does. Importing this loads nothing heavy. May import: errors, files, registry, progress,
stats.
"""

from headwise.progress import progress
from headwise.runs.executor import Executor, Finished
from headwise.runs.executors.resume import LocalExecutor, compute_cells, execute, read_cells, write_tables
from headwise.runs.folder.folder import RunFolder
from headwise.runs.folder.info import read_info
from headwise.runs.folder.tables import read_table, write_table
from headwise.runs.store.cells import Cell, CellResult
from headwise.runs.store.store import CellStore

__all__ = [
    "Cell",
    "CellResult",
    "CellStore",
    "Executor",
    "Finished",
    "LocalExecutor",
    "RunFolder",
    "compute_cells",
    "execute",
    "progress",
    "read_cells",
    "read_info",
    "read_table",
    "write_table",
    "write_tables",
]
