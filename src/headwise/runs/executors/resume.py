"""Computing the cells of a run that are not finished yet, reading them back, and writing the tables of all of them.

Where the work is done is an `Executor`; the one here does it in this process, one cell after the other. An
executor only computes: what is finished is stored here, so every executor resumes in the same way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from headwise.display import counted
from headwise.errors import HeadwiseError
from headwise.progress import Advance
from headwise.progress import progress as show_progress
from headwise.runs.executor import Compute, Executor, Finished
from headwise.runs.folder.folder import RunFolder
from headwise.runs.folder.tables import joined, write_table
from headwise.runs.store.cells import Cell
from headwise.runs.store.finite import NOTE, nothing_finite, sentence
from headwise.runs.store.store import CellStore, DamagedError, Encoded, encode_result

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

T = TypeVar("T")
_LISTED = 5
"""Most cells with values that are not finite that get a notice each; the rest are counted."""
_MANY_BLOBS = 5_000
"""From here on writing the tables takes long enough to be shown."""


class LocalExecutor:
    """One cell after the other, in this process."""

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def run(self, cells: Sequence[Cell], compute: Compute) -> Generator[Finished, None, None]:
        for cell in cells:
            began = time.monotonic()
            try:
                result = compute(cell)
            except Exception as error:
                if sys.version_info >= (3, 11):
                    error.add_note(f"while computing {cell.label}")
                raise
            yield Finished(cell, result, time.monotonic() - began)


def execute(
    folder: RunFolder,
    cells: Sequence[Cell],
    compute: Compute,
    *,
    progress: bool = True,
    executor: Executor | None = None,
) -> None:
    """Compute what is not finished, store each cell as it is, then write the tables of the run.

    Ctrl-C and errors are raised again when the run is closed; what is finished stays. `executor` is by default the
    folder's own, else this process.
    """
    if executor is not None:
        folder.executor = executor
    compute_cells(folder, cells, compute, progress=progress)
    write_tables(folder, progress=progress)


def compute_cells(
    folder: RunFolder,
    cells: Sequence[Cell],
    compute: Compute,
    *,
    progress: bool = True,
    label: str | None = None,
) -> None:
    """Compute what is not finished, and store each cell as it is. `label` is for the progress bar.

    A study may work in stages: `read_cells` gives what the cells of a stage found, and `write_tables` ends the run.
    `compute` must depend on nothing but the cell.
    """
    for cell in cells:
        folder.asked.setdefault(cell.key, (cell, compute))
    with _closing_after_errors(folder):
        folder.begin()
        _with_whole_cells(folder, progress, lambda: None, label)
        nothing = _report_not_finite(folder)
        if nothing:
            _write(folder, progress)  # the other cells, and the rows at fault, are there to be looked at
            raise HeadwiseError(nothing)
        folder.save()


def write_tables(folder: RunFolder, *, progress: bool = True) -> None:
    """Write the tables of every cell that this session asked for, rows in the order in which cells were asked for.

    So a run that was cut short ends with the same bytes as one that was not.
    """
    with _closing_after_errors(folder):
        _write(folder, progress)
        folder.save()


def _write(folder: RunFolder, progress: bool) -> None:
    folder.begin(with_result=True)  # where no cell was asked for
    folder.wrote(_with_whole_cells(folder, progress, lambda: _write_tables(folder, progress)))


def read_cells(folder: RunFolder, cells: Sequence[Cell], name: str) -> pd.DataFrame:
    """Table `name` of these finished cells, with the rows and columns that the run's table will have of them."""

    def read() -> pd.DataFrame:
        having = {key for key, table in folder.store.table_names() if table == name}
        keys = dict.fromkeys(cell.key for cell in cells if cell.key in having)
        return joined(name, [folder.store.table(key, name) for key in keys])

    return _with_whole_cells(folder, False, read)


@contextmanager
def _closing_after_errors(folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        folder.close_after(error)
        raise


def _with_whole_cells(folder: RunFolder, progress: bool, use: Callable[[], T], label: str | None = None) -> T:
    """Compute what is missing, then use it; where a stored cell is damaged, save the others and compute it again."""
    for _ in range(3):
        try:
            _compute_missing(folder, folder.executor or LocalExecutor(), progress, label)
            return use()
        except DamagedError:
            folder.salvage()
    raise HeadwiseError(
        f"cells are damaged again as soon as they are written to {folder.path}; the disk cannot be trusted, "
        "so give --out a folder on another"
    )


def _compute_missing(folder: RunFolder, executor: Executor, progress: bool, label: str | None = None) -> None:
    finished = folder.finished
    missing = [item for key, item in folder.asked.items() if key not in finished]
    if not missing:
        return
    cached = len(folder.asked) - len(missing)
    label = label or folder.info.get("study") or "cells"
    if cached:
        label += f", {counted(cached, 'cell')} cached; remaining"
    with show_progress(label, len(missing), show=progress) as advance:
        for compute, group in groupby(missing, key=lambda item: item[1]):
            with closing(executor.run([cell for cell, _ in group], compute)) as finishing:
                for cell, result, seconds in finishing:
                    encoded = result if isinstance(result, Encoded) else encode_result(result)
                    folder.begin(with_result=True)
                    folder.store.put_encoded(cell.text, encoded, seconds)
                    advance()


def _write_tables(folder: RunFolder, progress: bool) -> list[str]:
    names = [(key, name) for key, name in folder.store.table_names() if key in folder.asked]
    tables = {name: {key for key, of in names if of == name} for name in sorted({of for _, of in names})}
    # Each blob is read twice: for the columns, then for the rows.
    with show_progress("tables", 2 * len(names), show=progress and len(names) > _MANY_BLOBS) as advance:
        for name, keys in tables.items():
            in_order = [key for key in folder.asked if key in keys]
            write_table(folder, name, _Stored(folder.store, name, in_order, advance))
    return list(tables)


class _Stored:
    """One table of many cells, read from the store one by one, each time it is iterated over."""

    def __init__(self, store: CellStore, name: str, keys: Sequence[str], advance: Advance) -> None:
        self._store, self._name, self._keys, self._advance = store, name, keys, advance

    def __iter__(self) -> Iterator[pa.Table]:
        for key in self._keys:
            yield self._store.table(key, self._name)
            self._advance()


def _report_not_finite(folder: RunFolder) -> str:
    """From the stored notes, so that a resumed run says what the uninterrupted one would have said.

    Some such values give a notice; a cell without any finite value fails the run, and the sentence about it is
    returned.
    """
    if not folder.asked:
        return ""
    flagged = folder.store.flagged()
    cells = {key: cell for key, (cell, _) in folder.asked.items() if key in flagged}
    try:
        entries = {cell: folder.store.notes(key)[NOTE] for key, cell in cells.items()}
        sentences = [sentence(cell, entries[cell]) for cell in entries]
    except (LookupError, TypeError, ValueError):
        raise HeadwiseError(
            f"the notes of a cell in {folder.store.path} are not what headwise writes; use another run, or start again "
            "with --fresh"
        ) from None
    for notice in sentences[:_LISTED]:
        folder.notice(notice)
    if len(entries) > _LISTED:
        folder.notice(
            f"{len(entries) - _LISTED} more cells have values that are not finite; their notes say which"
        )
    empty = [(cell, column) for cell in entries if (column := nothing_finite(entries[cell]))]
    if not empty:
        return ""
    (cell, column), others = empty[0], len(empty) - 1
    more = f" as in {counted(others, 'more cell')}," if others else ""
    return (
        f"{cell.label}: every value of {column},{more} so there is no result; use a wider dtype (--dtype float32), "
        "or another metric or reference, or leave out the examples that cause it"
    )
