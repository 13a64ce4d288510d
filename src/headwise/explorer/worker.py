"""One thread owns the model; requests are jobs that it carries out step by step.

A job is a generator of events. Between two events the worker looks for more urgent jobs: opening a head is answered
between two tokens of a continuation, and a click between two examples of a background check. What a click waits for,
the next token, comes before all else. A newer job of the same tab and kind cancels the older one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headwise.errors import HeadwiseError, first_line, out_of_memory

log = logging.getLogger("headwise")

Event = Mapping[str, Any]
"""What a job tells the page; `event` is its kind."""
URGENT, LIVE, BACKGROUND = 0, 1, 2
"""How soon a job is carried out. Of each urgency one job runs at a time, so that one KV cache is held."""
MOST_WAITING = 64
"""Jobs that may wait; further ones are refused."""
_PATIENCE = 5
"""Seconds that `stop` waits for the step that the model is at."""


class Cancelled(Exception):  # noqa: N818 - nothing went wrong
    """Nobody waits for this job any more."""


class QueueFull(HeadwiseError):  # noqa: N818 - becomes an answer
    """Too many requests wait for the model."""


@dataclass
class Job:
    """One request of one tab."""

    tab: str
    kind: str
    urgency: int
    work: Callable[[Job], Iterator[Event]]
    emit: Callable[[Event | None], None]
    """Gets every event, and None after the last one."""
    pressing: str = ""
    """The event that somebody waits for: until it is told, the job comes before all others."""
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _steps: Iterator[Event] | None = None

    def cancel(self) -> None:
        """Stop at the next event, or at the next layer of a forward pass."""
        self._cancelled.set()

    def check(self) -> None:
        """Raise `Cancelled` where the job was cancelled; long work calls this often."""
        if self._cancelled.is_set():
            raise Cancelled

    def step(self) -> bool:
        """Carry out the job up to its next event; False where it has ended."""
        try:
            self.check()
            if self._steps is None:
                self._steps = self.work(self)
            event = next(self._steps)
            self.pressing = "" if event["event"] == self.pressing else self.pressing
            self.emit(event)
            return True
        except StopIteration:
            pass
        except Cancelled:
            self.emit({"event": "cancelled"})
        except BaseException as error:  # the server lives on, whatever the model does
            self.emit({"event": "error", "message": _sentence(error)})
        self._steps = None  # frees the KV cache
        self.emit(None)
        return False


class Worker:
    """The thread that owns the model."""

    def __init__(self) -> None:
        self._waiting: tuple[deque[Job], ...] = (deque(), deque(), deque())
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="headwise explorer", daemon=True)

    def start(self) -> None:
        """Begin to carry out jobs."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; an older one of the same tab and kind is cancelled."""
        with self._changed:
            if self._stopping:
                raise QueueFull("the explorer is stopping")
            for queue in self._waiting:
                for other in queue:
                    if (other.tab, other.kind) == (job.tab, job.kind):
                        other.cancel()
            if sum(map(len, self._waiting)) >= MOST_WAITING:
                raise QueueFull(f"{MOST_WAITING} requests wait for the model already; try again in a moment")
            self._waiting[job.urgency].append(job)
            self._changed.notify()

    def stop(self) -> bool:
        """Cancel everything and end the thread; False where the model is still computing after a few seconds."""
        with self._changed:
            self._stopping = True
            for queue in self._waiting:
                for job in queue:
                    job.cancel()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=_PATIENCE)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (queue := self._next()) is not None:
            job = queue[0]
            if not job.step():
                with self._changed:
                    queue.remove(job)
                del job  # what it holds must not live until the next request

    def _next(self) -> deque[Job] | None:
        """The most urgent queue that has a job; None where the worker ends."""
        with self._changed:
            while True:
                # sorted is stable: the queue whose first job is pressing, then in order of urgency.
                for queue in sorted(self._waiting, key=lambda queue: not (queue and queue[0].pressing)):
                    if queue:
                        return queue
                if self._stopping:
                    return None
                self._changed.wait()


def _sentence(error: BaseException) -> str:
    if isinstance(error, HeadwiseError):
        return str(error)
    if out_of_memory(error):
        return "the model ran out of memory; use a shorter prompt, or start the explorer with a smaller dtype"
    log.error("the explorer could not answer a request", exc_info=error)
    return f"the model stopped with an unexpected error ({type(error).__name__}: {first_line(error)})"
