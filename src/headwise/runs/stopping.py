"""Being asked to stop: a batch system or a closed terminal ends a run as Ctrl-C does, in order."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_PATIENCE = 5.0
"""Seconds after Ctrl-C in which further ones do nothing."""


class Stopped(KeyboardInterrupt):
    """The system asked this process to end."""


@contextmanager
def _handling(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """While this holds, these signals have these handlers; it does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stoppable() -> Iterator[None]:
    """While this holds, SIGTERM and SIGHUP raise `Stopped` where the program is.

    Only the first does: one that arrives while the run is being closed must not cut that short. Signals that somebody
    handles or ignores already (`nohup`) are left alone.
    """
    requested = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if not requested:
            requested = True
            raise Stopped(signal.Signals(number).name)

    free = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    with _handling(dict.fromkeys(free, stop)):
        yield


@contextmanager
def one_interrupt() -> Iterator[None]:
    """While this holds, several Ctrl-C within seconds count as one, so that none cuts short what the first one began.

    After an interrupt the process is about to end, and this goes on holding. It is for the command line alone, and does
    nothing where somebody else handles Ctrl-C.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    last = -math.inf

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if _in_destructor(frame):  # Python drops what is raised there, so the signal is sent again
            threading.Timer(0.05, _send, (number,)).start()
            return
        before, last = last, time.monotonic()
        if last - before > _PATIENCE:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        if last == -math.inf:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _send(number: int) -> None:
    """Send this process a signal."""
    if hasattr(signal, "pthread_kill"):
        os.kill(os.getpid(), number)
    else:  # on Windows `os.kill` ends the process at once, whatever the signal
        signal.raise_signal(number)


def _in_destructor(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


@contextmanager
def interrupts_held() -> Iterator[None]:
    """While this holds, Ctrl-C waits: it is raised when the block has ended."""
    handler = signal.getsignal(signal.SIGINT)
    waiting: list[FrameType | None] = []
    held = {signal.SIGINT: lambda number, frame: waiting.append(frame)} if callable(handler) else {}
    try:
        with _handling(held):
            yield
    finally:
        if waiting and callable(handler):
            handler(signal.SIGINT, waiting[0])


@contextmanager
def handlers_kept() -> Iterator[None]:
    """What a library does to these signals while this holds is undone: Ray takes SIGTERM for itself, for good."""
    with _handling({number: signal.getsignal(number) for number in _SIGNALS}):
        yield
