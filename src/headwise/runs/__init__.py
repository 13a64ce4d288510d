"""The run folder, its cells and tables, and what computes them. Importing this loads nothing heavy."""

from headwise.progress import progress
from headwise.runs.executor import Executor, Finished
from headwise.runs.executors.execute import LocalExecutor, compute_cells, execute, read_cells, write_tables
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
