"""How far along a piece of work is: a bar on a terminal and in a notebook, now and then a line in a log.

    with progress("Scoring", total=n) as advance:
        for chunk in chunks:
            ...
            advance(len(chunk))

Calls may be nested; the inner bar appears below the outer one and goes when it is done.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

_FIRST_LINE, _EVERY = 10.0, 60.0
"""A log gets its first line after ten seconds, then one a minute, and one at the end."""


class Advance(Protocol):
    """Says that `steps` more are done."""

    def __call__(self, steps: int = 1) -> None: ...


class Pace:
    """The time left, from the pace of the later half of what is done.

    The first steps load and compile, so the pace over everything would promise too much time; the last step
    alone would make the number jump.
    """

    def __init__(self, total: int | None, now: float) -> None:
        self.total, self.done, self.began = total, 0, now
        self._history: deque[tuple[float, int]] = deque([(now, 0)])

    def advance(self, steps: int, now: float) -> None:
        self.done += steps
        # A thousand points are enough to tell a pace from; one for each of very many steps would fill the memory.
        if len(self._history) > 1 and self._history[-1][1] - self._history[-2][1] < (self.total or 0) / 1000:
            self._history.pop()
        self._history.append((now, self.done))
        while len(self._history) > 2 and self._history[1][1] <= self.done / 2:
            self._history.popleft()

    def left(self, now: float) -> float | None:
        """Seconds, or None while nothing is known. Never less than 0."""
        if self.total is None or not self.done:
            return None
        (began, before), (last, done) = self._history[0], self._history[-1]
        if done == before:
            return None
        per_step = (last - began) / (done - before)
        return max(0.0, per_step * (self.total - done) - (now - last))


@contextmanager
def progress(label: str, total: int | None = None, *, show: bool = True) -> Iterator[Advance]:
    """Show that `label` is under way, out of `total` steps where that is known; yields `advance(steps=1)`."""
    if not show:
        yield _silent
    elif _can_draw():
        with _bar(label, total) as advance:
            yield advance
    else:
        with _lines(label, total) as advance:
            yield advance


def _silent(steps: int = 1) -> None:
    return None


# --- a terminal or a notebook -------------------------------------------------------------------------


class _Shared:
    """One drawing for all bars under way: two drawings on one terminal would overwrite each other."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.drawing: Any = None
        self.users = 0
        """Pieces of work under way; the first of them is the outermost."""


_shared = _Shared()


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)  # results go to the standard output, what is said about them does not


def _can_draw() -> bool:
    console = _console()
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return bool(console.is_terminal and not console.is_dumb_terminal)


def _drawing() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        def render(self, task: Any) -> Text:
            pace: Pace = task.fields["pace"]
            now = time.monotonic()
            left = pace.left(now)
            return Text(clock(now - pace.began) + (f", about {clock(left)} left" if left else ""))

    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft(), console=_console()
    )


@contextmanager
def _bar(label: str, total: int | None) -> Iterator[Advance]:
    with _shared.lock:
        if _shared.drawing is None:
            _shared.drawing = _drawing()
            _shared.drawing.start()
        _shared.users += 1
        drawing, outermost = _shared.drawing, _shared.users == 1
    pace = Pace(total, time.monotonic())
    task = drawing.add_task(label, total=total, pace=pace)

    def advance(steps: int = 1) -> None:
        pace.advance(steps, time.monotonic())
        drawing.update(task, advance=steps)

    try:
        yield advance
    finally:
        with _shared.lock:
            _shared.users -= 1
            if not outermost:
                drawing.remove_task(task)
            if not _shared.users:
                drawing.stop()
                _shared.drawing = None


# --- a log ----------------------------------------------------------------------------------------------


@contextmanager
def _lines(
    label: str, total: int | None, clock_now: Callable[[], float] = time.monotonic
) -> Iterator[Advance]:
    with _shared.lock:
        _shared.users += 1
        outermost = _shared.users == 1
    pace = Pace(total, clock_now())
    next_line = pace.began + _FIRST_LINE
    said = False

    def advance(steps: int = 1) -> None:
        nonlocal next_line, said
        now = clock_now()
        pace.advance(steps, now)
        if now >= next_line and pace.done != total:
            _say(f"{label}: {_count(pace)}, {_times(pace, now)}")
            next_line, said = now + _EVERY, True

    ending = "stopped"
    try:
        yield advance
        ending = "done"
    finally:
        with _shared.lock:
            _shared.users -= 1
        if outermost or said:  # a short piece inside another would drown the log
            after = clock(clock_now() - pace.began)
            _say(
                f"{label}: {_count(pace)}, done in {after}"
                if ending == "done"
                else f"{label}: stopped at {_count(pace)} after {after}"
            )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _count(pace: Pace) -> str:
    if not pace.total:
        return str(pace.done)
    return f"{pace.done}/{pace.total} ({100 * pace.done // pace.total}%)"


def _times(pace: Pace, now: float) -> str:
    left = pace.left(now)
    return f"{clock(now - pace.began)} so far" + (f", about {clock(left)} left" if left is not None else "")


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss, or m:ss under an hour.

    >>> clock(3725), clock(65)
    ('1:02:05', '1:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
