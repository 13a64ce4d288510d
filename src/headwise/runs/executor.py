"""What computes cells: the contract between the run folder and its executors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

from headwise.runs.store.cells import Cell, CellResult
from headwise.runs.store.store import Encoded

Compute = Callable[[Cell], CellResult]


class Finished(NamedTuple):
    """A cell that has been computed."""

    cell: Cell
    result: CellResult | Encoded
    """Encoded where another process computed it, so that this one only has to write it down."""
    seconds: float


class Executor(Protocol):
    """Something that computes cells."""

    def run(self, cells: Sequence[Cell], compute: Compute) -> Generator[Finished, None, None]:
        """Give out each cell as it is finished, in any order.

        An exception of `compute` is raised from here and ends the run. The iterator is closed when the run
        ends early (`GeneratorExit`), which is the moment to call off what is still under way.
        """
        ...
