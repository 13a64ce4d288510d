"""Progress of a piece of work: a bar on a terminal and in a notebook, now and then a line in a log.

    with progress("Scoring", total=n) as advance:
        for chunk in chunks:
            ...
            advance(len(chunk))

Calls may be nested; the inner bar appears below the outer one and goes when it is done.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from types import SimpleNamespace
from typing import Any, TypeVar

_FIRST_LINE, _EVERY = 10.0, 60.0
"""A log gets its first line after ten seconds, then one a minute, and one at the end."""
_LATE = 1.0
"""The bar of a Python call appears after this many seconds."""
_REDRAW = 0.2
"""A notebook's bar is drawn at most this often, in seconds."""

Progress = bool | Callable[[int], None] | None
"""The option `progress` of Python calls: True for a bar, False or None for none, or a function that is called with the
number of steps just finished."""
_Call = TypeVar("_Call", bound=Callable[..., Any])


Advance = Callable[..., None]
"""Says that `steps` more are done, by default one."""


class Pace:
    """The time left, estimated from the later half of the finished steps.

    Not rich's own estimate: it forgets steps older than 30 seconds, and one step of ours may take minutes.
    The first steps load and compile, so an average over all of them would be too long; the last step alone would make
    the estimate jump.
    """

    def __init__(self, total: int | None, now: float) -> None:
        self.total, self.done, self.began = total, 0, now
        self._history: deque[tuple[float, int]] = deque([(now, 0)])

    def advance(self, steps: int, now: float) -> None:
        self.done += steps
        # A thousand points are enough for an estimate; one for each of very many steps would fill the memory.
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


_lock = threading.RLock()
_shared = SimpleNamespace(drawing=None, users=0, listener=None)
"""One drawing for all bars (two on one terminal would overwrite each other), the number of bars under way, and who
gets live tables instead of the screen."""


def _silent() -> bool:
    return os.environ.get("HEADWISE_PROGRESS", "").lower() in ("0", "false", "no", "off")


@contextmanager
def progress(
    label: str, total: int | None = None, *, show: bool = True, late: bool = False
) -> Iterator[Advance]:
    """Show that `label` is under way, out of `total` steps where that is known; yields `advance(steps=1)`.

    late: show nothing of work that takes less than a second (in a log: less than ten). The environment variable
    HEADWISE_PROGRESS=0 turns all progress off.
    """
    if not show or _silent():
        yield lambda steps=1: None
        return
    with _lock:
        _shared.users += 1
        outermost = _shared.users == 1
    try:
        with _display()(label, total, outermost, late) as advance:
            yield advance
    finally:
        with _lock:
            _shared.users -= 1
            if not _shared.users and _shared.drawing:
                _shared.drawing.stop()
                _shared.drawing = None


Row = Mapping[str, Any]
"""A head's `score`, on how many of its `examples` it is exact (`exact_on`; 0: an estimate), and its name (`head`)."""
_SHOWN = 10
"""Rows of a table that are shown."""


@contextmanager
def live_table(title: str) -> Iterator[Callable[[Sequence[Row]], None] | None]:
    """A table below the bars that changes in place and goes when the work is done; yields a function that shows rows,
    the most important first. None where nobody would see it: progress is off or goes into a log."""
    listener, kind = _shared.listener, _display() if _shared.users else None
    if not _shared.users or (listener is None and kind is _lines):
        yield None
    elif listener is not None:
        yield lambda rows: listener(title, rows)
    elif kind is _notebook_bar:
        with _notebook_table(title) as show:
            yield show
    else:
        try:
            yield lambda rows: _drawn().show(title, rows)
        finally:
            if _shared.drawing:
                _shared.drawing.show(title, [])


@contextmanager
def listening(listener: Callable[[str, Sequence[Row]], None]) -> Iterator[None]:
    """While this holds, the listener gets every state of every live table, and nobody else does."""
    before, _shared.listener = _shared.listener, listener
    try:
        yield
    finally:
        _shared.listener = before


def _cells(row: Row) -> tuple[str, str, str]:
    exact, count = row["exact_on"], row["examples"]
    source = f"exact on {exact} of {count} examples" if exact else "estimate (attribution)"
    return row["head"], f"{row['score']:+.3f}", source


@contextmanager
def reporting(label: str, total: int | None, option: Progress) -> Iterator[Callable[[int], None]]:
    """The progress of a Python call, as its option `progress` asks for it."""
    if callable(option):
        yield option
        return
    done = 0
    with progress(label, total, show=bool(option), late=True) as advance:

        def count(steps: int) -> None:
            nonlocal done
            done += steps
            advance(steps)

        yield count
        if total is not None and done < total:  # a method may stop early
            advance(total - done)


def scaled_progress(advance: Callable[[int], None] | None, factor: float) -> Callable[[int], None] | None:
    """Reports `factor` steps for every step that is finished, in whole numbers."""
    if advance is None or factor == 1:
        return advance
    finished = 0.0

    def report(steps: int) -> None:
        nonlocal finished
        before, finished = finished, finished + steps * factor
        advance(round(finished) - round(before))

    return report


def announce(sentence: str, option: Progress) -> None:
    """Say what a long Python call will take, where its option `progress` asks for a bar."""
    if sentence and option is True and not _silent():
        _say(sentence)


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)  # the standard output is for results


def _display() -> Callable[..., Any]:
    """How progress is shown here: a notebook's bar, a terminal's, or lines in a log."""
    console = _console()
    if console.is_jupyter:
        return _notebook_bar
    return _bar if console.is_terminal and not console.is_dumb_terminal else _lines


def _drawn() -> Any:
    """The drawing on this terminal, which is started where there is none."""
    with _lock:
        if _shared.drawing is None:
            _shared.drawing = _drawing()
            _shared.drawing.start()
        return _shared.drawing


def _drawing() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
    from rich.table import Table
    from rich.text import Text

    class Drawing(Progress):
        """Bars, and a table below them."""

        table: Any = None

        def get_renderables(self) -> Any:
            yield from super().get_renderables()
            if self.table is not None:
                yield self.table

        def show(self, title: str, rows: Sequence[Row]) -> None:
            table = Table("head", "score", "", title=Text(title), title_justify="left", box=None)
            for row in rows[:_SHOWN]:
                table.add_row(*map(Text, _cells(row)))
            self.table = table if rows else None

    class Count(MofNCompleteColumn):
        def render(self, task: Any) -> Text:
            pace = task.fields["pace"]
            return super().render(task) if pace.total or pace.done else Text()

    class TimeLeft(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(_times(task.fields["pace"], time.monotonic()))

    columns = TextColumn("{task.description}"), BarColumn(), Count(), TimeLeft()
    return Drawing(*columns, console=_console())


@contextmanager
def _bar(label: str, total: int | None, outermost: bool, late: bool) -> Iterator[Advance]:
    pace = Pace(total, time.monotonic())
    task: Any = None

    def begin() -> Any:
        with _lock:
            return _drawn().add_task(label, total=total, pace=pace)

    def advance(steps: int = 1) -> None:
        nonlocal task
        now = time.monotonic()
        pace.advance(steps, now)
        if task is None and now >= pace.began + _LATE:
            task = begin()
        if task is not None:
            _shared.drawing.update(task, completed=pace.done)

    task = None if late else begin()
    try:
        yield advance
        if task is not None and outermost and not total:
            _shared.drawing.update(task, description=f"{label}: done", total=1, completed=1)
    finally:
        if task is not None and not outermost:
            _shared.drawing.remove_task(task)


class _Output:
    """What is below a notebook's cell, changed in place."""

    handle: Any = None

    def show(self, html: str, text: str) -> None:
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        bundle = {"text/html": html, "text/plain": text}
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)

    def clear(self) -> None:
        if self.handle is not None:
            self.handle.update({"text/plain": ""}, raw=True)


@contextmanager
def _notebook_bar(label: str, total: int | None, outermost: bool, late: bool) -> Iterator[Advance]:
    """A bar below the cell. IPython alone draws it: rich's bar would need ipywidgets."""
    pace, output = Pace(total, time.monotonic()), _Output()
    drawn = -_REDRAW

    def draw(now: float) -> None:
        nonlocal drawn
        drawn = now
        share = f'value="{pace.done}" max="{total}"' if total else ""
        html = f"<progress {share}></progress> {escape(label)}: {_count(pace)}, {_times(pace, now)}"
        output.show(html, f"{label}: {_count(pace)}")

    def advance(steps: int = 1) -> None:
        now = time.monotonic()
        pace.advance(steps, now)
        if (output.handle is not None or now >= pace.began + _LATE) and now >= drawn + _REDRAW:
            draw(now)

    if not late:
        draw(pace.began)
    try:
        yield advance
    finally:
        if output.handle is not None and outermost:
            draw(time.monotonic())
        elif not outermost:
            output.clear()


@contextmanager
def _notebook_table(title: str) -> Iterator[Callable[[Sequence[Row]], None]]:
    output = _Output()

    def show(rows: Sequence[Row]) -> None:
        lines = ["".join(f"<td>{escape(cell)}</td>" for cell in _cells(row)) for row in rows[:_SHOWN]]
        html = f"<table><caption>{escape(title)}</caption><tr>" + "</tr><tr>".join(lines) + "</tr></table>"
        output.show(html, title)

    try:
        yield show
    finally:
        output.clear()


@contextmanager
def _lines(
    label: str,
    total: int | None,
    outermost: bool,
    late: bool = False,
    clock_now: Callable[[], float] = time.monotonic,
) -> Iterator[Advance]:
    """For a log: rich draws nothing where there is no terminal."""
    pace = Pace(total, clock_now())
    next_line = pace.began + _FIRST_LINE
    shown = outermost and not late  # the end of a short piece of work inside another is not shown

    def advance(steps: int = 1) -> None:
        nonlocal next_line, shown
        now = clock_now()
        pace.advance(steps, now)
        if now >= next_line and pace.done != total:
            _say(f"{label}: {_count(pace)}, {_times(pace, now, ' so far')}")
            next_line, shown = now + _EVERY, True

    def end(line: str) -> None:
        if shown:
            line = line.format(_count(pace, outermost)).removeprefix(", ")
            _say(f"{label}: {line} {clock(clock_now() - pace.began)}")

    try:
        yield advance
    except BaseException:
        if pace.total or pace.done:
            end("stopped at {} after")
        raise
    end("{}, done in" if outermost else "{} in")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _count(pace: Pace, percent: bool = True) -> str:
    if not pace.total:
        return str(pace.done or "")
    if not percent:
        return f"{pace.done} of {pace.total}"
    return f"{pace.done}/{pace.total} ({100 * pace.done // pace.total}%)"


def _times(pace: Pace, now: float, so_far: str = "") -> str:
    left = pace.left(now)
    return f"{clock(now - pace.began)}{so_far}" + ("" if left is None else f", about {clock(left)} left")


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss, or m:ss under an hour.

    >>> clock(3725), clock(65)
    ('1:02:05', '1:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
