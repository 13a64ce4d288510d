"""The web server of the explorer: uvicorn in a thread of its own, and the routes that it answers.

The routes are the page's files, what the page starts with, and requests to the model. Every answer that needs the model
is a stream of server-sent events. Events wait in a queue of their own, so a client that stops reading holds up nobody;
a client that goes away cancels its job.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, ClassVar, Literal

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from headwise.charts.style import css_variables
from headwise.errors import HeadwiseError, flag
from headwise.explorer import requests
from headwise.explorer.worker import Event, Job, QueueFull, Worker

_PATIENCE = 60.0
"""Seconds that starting and stopping may take on a busy machine."""
_REQUEST = 20.0
"""Seconds in which a request must be complete, from the opening of the connection or from its first byte."""
_WAITING = 128
"""Connections that may wait for the rest of a request; one more closes the oldest of them."""
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_ASSETS = resources.files("headwise.explorer") / "assets"
Work = Callable[[Any, Job], Iterator[Event]]


# ---- routes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """One kind of request: how it is read, what carries it out, and how soon."""

    kind: type[requests.TabRequest]
    work: Work
    urgency: int
    pressing: str = ""
    """The event that the user waits for, if there is one."""


def make_app(worker: Worker, start: Mapping[str, Any], answers: Mapping[str, Answer]) -> Starlette:
    """The app behind the guard; `start` is what the page begins with."""
    begin = JSONResponse(start)
    routes = [Route("/", _file("index.html")), Route("/api/start", lambda _: begin)]
    # A list of what there is, and no path into a folder: nothing else can be asked for.
    names = sorted(file.name for file in _ASSETS.iterdir() if file.name.rpartition(".")[2] in _TYPES)
    routes += [Route(f"/{name}", _file(name)) for name in names if name != "index.html"]
    palette = Response(css_variables(), media_type=_TYPES["css"])
    routes.append(Route("/palette.css", lambda _: palette))
    routes += [
        Route(f"/api/{name}", _endpoint(worker, name, one), methods=["POST"]) for name, one in answers.items()
    ]
    return Starlette(routes=routes)


def _file(name: str) -> Callable[[Request], Response]:
    content = (_ASSETS / name).read_bytes()
    kind = _TYPES[name.rpartition(".")[2]]
    return lambda _: Response(content, media_type=kind)


def _endpoint(worker: Worker, name: str, one: Answer) -> Callable[..., Any]:
    """The endpoint of one kind of request."""

    async def answer(request: Request) -> Response:
        try:
            wanted = requests.parsed(one.kind, await _limited(request))
        except HeadwiseError as error:
            return JSONResponse({"message": str(error)}, 400)
        except ClientDisconnect:
            return Response(status_code=400)
        except _TooLarge:
            return JSONResponse({"message": f"a request may have {requests.MOST_BYTES:,} bytes"}, 413)
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def emit(event: Event | None) -> None:
            if not loop.is_closed():  # the server ended while the model computed
                loop.call_soon_threadsafe(events.put_nowait, event)

        job = Job(wanted.tab, name, one.urgency, lambda job: one.work(wanted, job), emit, one.pressing)
        try:
            worker.submit(job)
        except QueueFull as error:
            return JSONResponse({"message": str(error)}, 503)
        return StreamingResponse(_sent(events, job), media_type="text/event-stream")

    return answer


class _TooLarge(Exception):  # noqa: N818 - becomes an answer
    """A request has more bytes than one may have."""


async def _limited(request: Request) -> bytes:
    """The body of a request; what is too large is refused before it is read."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise HeadwiseError("requests are JSON; send content-type: application/json")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > requests.MOST_BYTES:
        raise _TooLarge
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > requests.MOST_BYTES:
            raise _TooLarge
    return bytes(body)


async def _sent(events: asyncio.Queue[Event | None], job: Job) -> AsyncIterator[str]:
    """The events of a job as server-sent events; the job is cancelled when nobody reads them any more."""
    try:
        while (event := await events.get()) is not None:
            yield f"data: {json.dumps(event, separators=(',', ':'), allow_nan=False)}\n\n"
    finally:
        job.cancel()


# ---- uvicorn -------------------------------------------------------------------------------------------


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

    def __init__(self, app: Any, host: str, port: int, lifespan: Literal["on", "off"] = "off") -> None:
        """port: 0 for any free one. lifespan: whether the app wants to know when the server starts and ends."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise HeadwiseError(
                f"cannot listen at {host}:{port}: {error.strerror or error}; give another {flag('port')}, or 0 for any "
                "free one"
            ) from None
        self.host, self.port = host, int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            app,
            log_level="warning",
            lifespan=lifespan,
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
                raise HeadwiseError("the server did not start; the lines above say why")
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
