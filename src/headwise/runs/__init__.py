"""The run folder, its cells and tables, and what computes them. Importing this loads nothing heavy."""

from headwise.runs.cells import Cell, CellResult
from headwise.runs.execute import Executor, Finished, LocalExecutor, execute
from headwise.runs.folder import RunFolder
from headwise.runs.info import read_info
from headwise.runs.progress import progress
from headwise.runs.store import CellStore
from headwise.runs.tables import read_table, write_table

__all__ = [
    "Cell",
    "CellResult",
    "CellStore",
    "Executor",
    "Finished",
    "LocalExecutor",
    "RunFolder",
    "execute",
    "progress",
    "read_info",
    "read_table",
    "write_table",
]
