"""The routes of the explorer: the page's files, what it starts with, and requests that are answered by events.

Every answer that needs the model is a stream of server-sent events. Events wait in a queue of their own, so a client
that stops reading holds up nobody; a client that goes away cancels its job.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from headwise.charts.style import css_variables
from headwise.errors import HeadwiseError
from headwise.explore import asked
from headwise.explore.worker import Event, Job, QueueFull, Worker

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
Work = Callable[[Any, Job], Iterator[Event]]


@dataclass(frozen=True)
class Answer:
    """One kind of request: how it is read, what carries it out, and how soon."""

    kind: type[asked.Asked]
    work: Work
    urgency: int
    pressing: str = ""
    """The event that the user waits for, if there is one."""


def make_app(worker: Worker, start: Mapping[str, Any], answers: Mapping[str, Answer]) -> Starlette:
    """The app behind the guard; `start` is what the page begins with."""
    begin = JSONResponse(start)
    routes = [Route("/", _file("index.html")), Route("/api/start", lambda _: begin)]
    # A list of what there is, and no path into a folder: nothing else can be asked for.
    routes += [Route(f"/{name}", _file(name)) for name in _names() if name != "index.html"]
    palette = Response(css_variables(), media_type=_TYPES["css"])
    routes.append(Route("/palette.css", lambda _: palette))
    routes += [
        Route(f"/api/{name}", _endpoint(worker, name, one), methods=["POST"]) for name, one in answers.items()
    ]
    return Starlette(routes=routes)


def _names() -> list[str]:
    return sorted(file.name for file in _assets().iterdir() if file.name.rpartition(".")[2] in _TYPES)


def _assets() -> Any:
    return resources.files("headwise.explore") / "assets"


def _file(name: str) -> Callable[[Request], Response]:
    content = (_assets() / name).read_bytes()
    kind = _TYPES[name.rpartition(".")[2]]
    return lambda _: Response(content, media_type=kind)


def _endpoint(worker: Worker, name: str, one: Answer) -> Callable[..., Any]:
    """The endpoint of one kind of request."""

    async def answer(request: Request) -> Response:
        try:
            body = await _limited(request)
            wanted = asked.parsed(one.kind, body)
        except HeadwiseError as error:
            return JSONResponse({"message": str(error)}, 400)
        except ClientDisconnect:
            return Response(status_code=400)
        except _TooLarge:
            return JSONResponse({"message": f"a request may have {asked.MOST_BYTES:,} bytes"}, 413)
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
    said = request.headers.get("content-length", "0")
    if said.isdigit() and int(said) > asked.MOST_BYTES:
        raise _TooLarge
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > asked.MOST_BYTES:
            raise _TooLarge
    return bytes(body)


async def _sent(events: asyncio.Queue[Event | None], job: Job) -> AsyncIterator[str]:
    """The events of a job as server-sent events; the job is cancelled when nobody reads them any more."""
    try:
        while (event := await events.get()) is not None:
            yield f"data: {json.dumps(event, separators=(',', ':'), allow_nan=False)}\n\n"
    finally:
        job.cancel()
