"""Being asked to stop: a batch system or a closed terminal ends a run as Ctrl-C does, in order."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = ("SIGTERM", "SIGHUP")


class Stopped(KeyboardInterrupt):
    """The system asked this process to end."""


@contextmanager
def stoppable() -> Iterator[None]:
    """While this holds, SIGTERM and SIGHUP raise `Stopped` where the program is.

    Only the first does: what is sent while the run is being closed must not cut that short. Signals that somebody
    handles or ignores already (`nohup`) are left alone, and so is everything outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not asked:
            asked = True
            raise Stopped(signal.Signals(number).name)

    there = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in there}
    taken = [number for number in there if before[number] is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


_PATIENCE = 5.0
"""Seconds after Ctrl-C in which more of them do nothing."""


@contextmanager
def one_interrupt() -> Iterator[None]:
    """While this holds, impatient Ctrl-C count as one, so that none of them cuts short what the first one began.

    After an interrupt the process is about to end, and this goes on holding. It is for the command line alone, and does
    nothing where somebody else handles Ctrl-C.
    """
    if not _python_handles_interrupts():
        yield
        return
    last = -math.inf

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > _PATIENCE:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        if last == -math.inf:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """While this holds, Ctrl-C waits: it is raised when the block has ended."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    waiting: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda number, frame: waiting.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if waiting:
            handler(signal.SIGINT, waiting[0])


def _python_handles_interrupts() -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextmanager
def handlers_kept() -> Iterator[None]:
    """What a library does to these signals while this holds is undone: Ray takes SIGTERM for itself, for good."""
    there = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in there}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)
