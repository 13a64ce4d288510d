"""Being asked to stop: a batch system or a closed terminal ends a run as Ctrl-C does, in order."""

from __future__ import annotations

import signal
import threading
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
