"""Computing the calls of a run that are not finished yet, and reading all of them back.

Where the work is done is an `Executor`; the one here does it in this process, one call after the other. An executor
only computes: what is finished is stored here, so every executor resumes in the same way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from headwise.display import counted
from headwise.errors import HeadwiseError, flag, hint
from headwise.progress import progress as show_progress
from headwise.runs.folder import RunFolder
from headwise.runs.step import Call, Finished, Job
from headwise.runs.store import DamagedError, encode_result
from headwise.runs.values import nothing_finite, sentence

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_LISTED = 5
"""Most steps with values that are not finite that get a notice each; the rest are counted."""
_REMEMBERED = 256
"""Results that are kept in memory; others are read again when they are asked for."""


class LocalExecutor:
    """One call after the other, in this process."""

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def run(
        self, calls: Sequence[Call[Any]], folder: Path | None = None, progress: bool = False
    ) -> Generator[Finished, None, None]:
        for call in calls:
            began = time.monotonic()
            try:
                with show_progress(call.label, call.cost, show=progress and call.cost is not None) as advance:
                    result = encode_result(call.compute(Job(advance, folder)))
            except Exception as error:
                if sys.version_info >= (3, 11):
                    error.add_note(f"while computing {call.label}")
                raise
            yield Finished(call, result, time.monotonic() - began)


def compute(
    folder: RunFolder, calls: Mapping[K, Call[Any]], label: str = "steps", *, progress: bool = False
) -> Mapping[K, Any]:
    """Compute what is not finished, store each result as it is, and give all of them back under the same keys.

    Ctrl-C and errors are raised again when the run is closed; what is finished stays.
    """
    for call in calls.values():
        folder.calls.setdefault(call.key, call)
    with closing_after_errors(folder):
        folder.begin()
        _with_whole_results(folder, progress, lambda: None, label)
        _check_finite(folder, calls.values())
        folder.save()
    return _Results(folder, calls)


class _Results(Mapping[K, Any]):
    """The results of some calls, each read from the store when it is asked for."""

    def __init__(self, folder: RunFolder, calls: Mapping[K, Call[Any]]) -> None:
        self._folder, self._calls = folder, dict(calls)
        self._get = lru_cache(_REMEMBERED)(self._read)

    def _read(self, key: str) -> Any:
        try:
            return self._folder.store.get(key)
        except (DamagedError, KeyError):  # rare: looking for what is missing reads the keys of every step
            return _with_whole_results(self._folder, False, lambda: self._folder.store.get(key))

    def __getitem__(self, name: K) -> Any:
        return self._get(self._calls[name].key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)


@contextmanager
def closing_after_errors(folder: RunFolder) -> Iterator[None]:
    """Whatever ends the block early is written down as the end of the run."""
    try:
        yield
    except BaseException as error:
        folder.close_after(error)
        raise


def _with_whole_results(
    folder: RunFolder, progress: bool, use: Callable[[], T], label: str = "steps computed again"
) -> T:
    """Compute what is missing, then use it; where a stored result is damaged, save the others and compute it again."""
    for _ in range(3):
        try:
            _compute_missing(folder, progress, label)
            return use()
        except DamagedError:
            folder.salvage()
    raise HeadwiseError(
        f"results are damaged again as soon as they are written to {folder.path}; the disk cannot be trusted, "
        f"so give {flag('out')} a folder on another"
    )


def _compute_missing(folder: RunFolder, progress: bool, label: str) -> None:
    finished = folder.finished
    missing = [call for key, call in folder.calls.items() if key not in finished]
    if not missing:
        return
    if cached := len(folder.calls) - len(missing):
        label += f", {counted(cached, 'step')} cached; remaining"
    show = progress and any(call.cost is not None for call in missing)
    executor = folder.executor or LocalExecutor()
    with (
        show_progress(label, len(missing), show=show) as advance,
        closing(executor.run(missing, folder.path / "partial", show)) as finishing,
    ):
        for call, result, seconds in finishing:
            folder.begin(with_result=True)
            folder.store.put(call.text, result, seconds)
            advance()


def _check_finite(folder: RunFolder, calls: Any) -> None:
    """From what is stored, so that a resumed run says what the uninterrupted one would have said.

    Some values that are not finite give a notice; a result without any finite value fails the run.
    """
    flagged = folder.store.flagged()
    try:
        entries = {call: folder.store.not_finite(call.key) for call in calls if call.key in flagged}
        sentences = [sentence(call.label, found) for call, found in entries.items()]
        empty = [(call, column) for call, found in entries.items() if (column := nothing_finite(found))]
    except (LookupError, TypeError, ValueError):
        raise HeadwiseError(
            f"what {folder.store.path} says of a step is not what headwise writes; use another run, or start again "
            f"with {hint('fresh', True)}"
        ) from None
    for notice in sentences[:_LISTED]:
        folder.notice(notice)
    if len(entries) > _LISTED:
        folder.notice(f"{len(entries) - _LISTED} more steps have values that are not finite")
    if empty:
        (call, column), others = empty[0], len(empty) - 1
        more = f" as in {counted(others, 'more step')}," if others else ""
        raise HeadwiseError(
            f"{call.label}: every value of {column},{more} so there is no result; use a wider dtype "
            f"({hint('dtype', 'float32')}), or another metric or reference, or leave out the examples that cause it"
        )
