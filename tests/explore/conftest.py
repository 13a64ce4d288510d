"""Explorers of tiny models, and a plain HTTP client for them."""

from __future__ import annotations

import http.client
import json
import threading

import pytest

from headwise.explorer.explorer import Explorer
from headwise.explorer.worker import LIVE, Job

PROMPT = "the cat saw a dog and then"


def quiet_job(**more):
    """A job that nobody waits for, to call the answers without a server."""
    return Job(
        **{"tab": "t", "kind": "run", "urgency": LIVE, "work": None, "emit": lambda event: None} | more
    )


def send(explorer, method, path, body=None, headers=None, timeout=60):
    """Status, headers and body of one request; the path begins after the token unless it begins with `//`."""
    connection = http.client.HTTPConnection("127.0.0.1", explorer.server.port, timeout=timeout)
    full = path[1:] if path.startswith("//") else f"/{explorer.token}{path}"
    try:
        connection.request(method, full, body, headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def ask(explorer, name, headers=None, **body):
    """The events of one request; a refusal gives its status and message."""
    content = json.dumps({"tab": "test", **body})
    status, _, answer = send(
        explorer, "POST", f"/api/{name}", content, {"content-type": "application/json", **(headers or {})}
    )
    if status != 200:
        return [{"event": "refused", "status": status, "message": answer.decode()}]
    return events_of(answer)


def events_of(answer):
    return [json.loads(part.removeprefix("data: ")) for part in answer.decode().split("\n\n") if part]


@pytest.fixture
def serve():
    """`serve(model, run=None)`: an explorer that answers until the test ends."""
    started = []

    def start(model, run=None, **options):
        explorer = Explorer(model, run)
        explorer.serve(**options)
        started.append(explorer)
        return explorer

    yield start
    for explorer in started:
        explorer.stop()
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"headwise explorer", "headwise server"}, "a thread outlived its explorer"


@pytest.fixture
def explorer(tiny, serve):
    return serve(tiny)
