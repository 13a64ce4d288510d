"""uvicorn in a thread of its own, so that a notebook and the command line can stop it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headwise.errors import HeadwiseError

_PATIENCE = 60.0
"""Seconds that starting and stopping may take on a busy machine."""

_REQUEST = 20.0
"""Seconds in which a request must be complete, from the opening of the connection or from its first byte."""
_WAITING = 128
"""Connections that may wait for the rest of a request; one more closes the oldest of them."""


class _Connection(H11Protocol):
    """A connection that is closed where its request stays incomplete: uvicorn itself would wait for ever.

    Whoever opens many connections and sends nothing pushes out its own oldest ones, and takes no place from others.
    """

    _deadline: asyncio.TimerHandle | None = None
    _waiting: ClassVar[dict[_Connection, None]] = {}
    """All connections without a complete request, the oldest first."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()
        if len(self._waiting) > _WAITING:
            oldest = next(iter(self._waiting))
            oldest.transport.abort()
            del self._waiting[oldest]

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        incomplete = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if incomplete:
            self._waiting.setdefault(self)
        else:
            self._waiting.pop(self, None)
        if self._deadline is None and incomplete:
            self._deadline = self.loop.call_later(_REQUEST, self.transport.close)
        elif self._deadline is not None and not incomplete:
            self._deadline.cancel()
            self._deadline = None


class Server:
    """An app that answers at `host`:`port` until `stop`."""

    def __init__(self, app: Any, host: str, port: int) -> None:
        """port: 0 for any free one."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise HeadwiseError(
                f"cannot listen at {host}:{port}: {error.strerror or error}; give another --port, or 0 for any free one"
            ) from None
        self.host, self.port = host, int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            app,
            log_level="warning",
            lifespan="off",
            ws="none",
            http=_Connection,
            access_log=False,
            server_header=False,
            limit_concurrency=256,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
        )
        self._uvicorn = uvicorn.Server(config)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwise server", daemon=True)

    def _run(self) -> None:
        try:
            self._uvicorn.run(sockets=[self._socket])
        finally:
            self._ended.set()

    def start(self) -> None:
        """Return when the first request can be answered."""
        self._thread.start()
        deadline = time.monotonic() + _PATIENCE
        while not self._uvicorn.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise HeadwiseError("the explorer's server did not start; the lines above say why")
            time.sleep(0.005)

    def wait(self) -> None:
        """Return when the server has ended."""
        # Not `Thread.join`: Python takes a thread whose join is interrupted by Ctrl-C for ended while it still runs.
        while not self._ended.wait(0.5):  # a wait without end would not see Ctrl-C on every system
            pass

    def stop(self) -> None:
        """Close all connections and end the thread."""
        self._uvicorn.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=_PATIENCE)
        # On a busy machine the thread may take longer, and it still uses the socket.
        if not self._thread.is_alive():
            self._socket.close()
