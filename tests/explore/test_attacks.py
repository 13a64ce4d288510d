"""What must not work: other sites, other names, wrong tokens, paths, floods, clients that go silent."""

from __future__ import annotations

import gc
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

import headwise as hw
from explore.conftest import PROMPT, ask, events_of, send
from headwise.explorer import server
from headwise.explorer.guard import Guard
from headwise.explorer.requests import MOST_BYTES
from headwise.model.verify.tiny import tiny_model
from helpers import PANIC, make_panicking_tokenizer

JSON = {"content-type": "application/json"}
SECRET = "never-in-an-answer"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", ""]
)
def test_another_name_for_this_machine_is_refused(explorer, host):
    status, _, body = send(explorer, "GET", "/api/start", headers={"Host": host})
    assert status == 421
    assert b"prompt" not in body


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
def test_the_names_of_this_machine_are_answered(explorer, name):
    status, _, _ = send(explorer, "GET", "/api/start", headers={"Host": f"{name}:{explorer.server.port}"})
    assert status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://"])
def test_a_request_from_another_site_is_refused(explorer, origin):
    (event,) = ask(explorer, "run", {"Origin": origin}, prompt=PROMPT)
    assert event["status"] == 403


def test_the_page_itself_may_ask(explorer):
    own = f"http://127.0.0.1:{explorer.server.port}"
    events = ask(explorer, "run", {"Origin": own}, prompt=PROMPT, new_tokens=2)
    assert events[-1]["event"] == "done"


@pytest.mark.parametrize("path", ["//", "//api/start", "//style.css", "//wrong-token/api/start", "//x" * 50])
def test_without_the_token_nothing_is_answered(explorer, path):
    status, _, body = send(explorer, "GET", path)
    assert status == 403
    assert explorer.token.encode() not in body
    assert explorer.model.name.encode() not in body


@pytest.mark.parametrize(
    "path",
    ["/../run.json", "/..%2f..%2fetc%2fpasswd", "/assets/../guard.py", "/%2e%2e/explorer.py", "/tables/scores.parquet",
     "/app.py", "/style.css/../../guard.py", "//../{token}/x", "/api/../guard.py", "/index.html%00.js"],
)  # fmt: skip
def test_no_path_leads_to_a_file(explorer, path):
    status, _, body = send(explorer, "GET", path.replace("{token}", explorer.token))
    assert status in (403, 404)
    assert b"import" not in body
    assert b"root:" not in body


def test_a_request_of_10_mb_is_refused_before_it_is_read(explorer):
    body = json.dumps({"tab": "t", "prompt": "cat " * 2_500_000})
    before = psutil.Process().memory_info().rss
    try:
        status, _, answer = send(explorer, "POST", "/api/run", body, JSON)
        assert status == 413
        assert f"{MOST_BYTES:,} bytes".encode() in answer
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server closed the connection while the rest was still being sent
    assert psutil.Process().memory_info().rss - before < 60e6
    assert ask(explorer, "run", prompt=PROMPT, new_tokens=1)[-1]["event"] == "done"


def test_a_body_without_a_length_is_cut_off_too(explorer):
    with socket.create_connection(("127.0.0.1", explorer.server.port), timeout=30) as line:
        head = f"POST /{explorer.token}/api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        line.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        part = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        answer = b""
        with suppress(OSError):
            for _ in range(160):
                line.sendall(part)
        line.settimeout(10)
        with suppress(OSError):
            answer = line.recv(65536)
    assert b" 413 " in answer or not answer
    assert ask(explorer, "run", prompt=PROMPT, new_tokens=1)[-1]["event"] == "done"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": "cat " * 600}, "512"),
        ({"prompt": ""}, "empty"),
        ({"prompt": PROMPT, "gates": [[99, 0, 0]]}, "no head L99H0"),
        ({"prompt": PROMPT, "gates": [[0, 0, 3]]}, "gates"),
        ({"prompt": PROMPT, "gates": "L0H0"}, "gates"),
        ({"prompt": PROMPT, "new_tokens": 100000}, "new_tokens"),
        ({"prompt": PROMPT, "reference": "file"}, "reference"),
        ({"prompt": PROMPT, "surprise": 1}, "surprise"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": PROMPT, "tab": "../../x"}, "tab"),
    ],
)
def test_a_wrong_request_is_refused_in_a_sentence(explorer, body, words):
    (*_, event) = [e for e in ask(explorer, "run", **body) if e["event"] in ("error", "refused")]
    assert words in event["message"]
    assert "Traceback" not in event["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"tab":', b"\xff\xfe", b"[" * 100000])
def test_what_is_not_json_is_refused(explorer, body):
    status, _, _ = send(explorer, "POST", "/api/run", body, JSON)
    assert status == 400


def test_a_task_that_is_a_file_cannot_be_opened(explorer, tmp_path):
    file = tmp_path / "secret.jsonl"
    file.write_text(json.dumps({"prompt": SECRET, "target": SECRET}))
    for task in (str(file), "../secret.jsonl", "hub:owner/name"):
        events = ask(explorer, "check", gates=[[0, 0, 0]], task=task, n=4)
        assert events[-1]["event"] == "error"
        assert "no task" in events[-1]["message"]
        assert SECRET not in json.dumps(events)


def test_a_hundred_clients_at_once_are_answered_or_refused_and_none_waits_for_ever(explorer):
    def client(number):
        events = ask(
            explorer, "run", tab=f"tab{number}", prompt=PROMPT, gates=[[0, number % 4, 0]], new_tokens=4
        )
        return events[-1]["event"], events[-1].get("status")

    with ThreadPoolExecutor(100) as pool:
        ends = list(pool.map(client, range(100)))
    assert set(ends) <= {("done", None), ("refused", 503)}
    assert ends.count(("done", None)) >= 60


def opened(explorer, new_tokens=8, tab="silent"):
    """A connection that has asked and reads nothing."""
    line = socket.create_connection(("127.0.0.1", explorer.server.port), timeout=30)
    body = json.dumps({"tab": tab, "prompt": PROMPT, "new_tokens": new_tokens}).encode()
    head = f"POST /{explorer.token}/api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return line


def test_clients_that_stop_reading_hold_up_nobody(explorer):
    lines = [opened(explorer, 256, f"silent{number}") for number in range(20)]
    try:
        began = time.monotonic()
        assert ask(explorer, "run", prompt=PROMPT, new_tokens=2)[-1]["event"] == "done"
        assert time.monotonic() - began < 60
    finally:
        for line in lines:
            line.close()


def test_a_browser_that_is_killed_cancels_its_job(explorer, tiny, monkeypatch):
    steps, seen = [], threading.Event()
    plain = explorer.live._steps

    def slow(*args, **more):
        for logits in plain(*args, **more):
            steps.append(1)
            seen.set()
            time.sleep(0.05)
            yield logits

    monkeypatch.setattr(explorer.live, "_steps", slow)
    line = opened(explorer, 256)
    assert seen.wait(20)
    line.setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
    )  # a reset, as of a killed process
    line.close()
    monkeypatch.undo()
    assert ask(explorer, "run", prompt=PROMPT, new_tokens=2)[-1]["event"] == "done"
    count = len(steps)
    time.sleep(0.3)
    assert len(steps) == count < 250


def test_every_answer_forbids_foreign_content(explorer):
    for method, path in (("GET", "/"), ("GET", "/app.js"), ("GET", "/nothing"), ("GET", "//")):
        _, headers, _ = send(explorer, method, path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy  # no other host
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_a_notebook_of_this_machine_may_show_the_page_and_no_other_site(tiny, serve):
    explorer = serve(tiny, framed=True)
    _, headers, _ = send(explorer, "GET", "/")
    ancestors = headers["content-security-policy"].partition("frame-ancestors ")[2]
    assert all(
        one.startswith(("http://127.0.0.1", "http://localhost", "https://localhost"))
        for one in ancestors.split()
    )


def test_it_listens_on_this_machine_alone(explorer):
    (connection,) = [
        c for c in psutil.Process().net_connections("tcp")
        if c.laddr.port == explorer.server.port and c.status == psutil.CONN_LISTEN
    ]  # fmt: skip
    assert connection.laddr.ip == "127.0.0.1"


def test_a_remote_explorer_takes_addresses_and_its_own_name_and_no_other_name():
    guard = Guard(None, "secret", remote=True)
    for host, refused in (
        ("192.168.0.7:80", False),
        (f"{socket.gethostname()}:80", False),
        ("evil.example", True),
    ):
        assert (guard.refusal("/secret/", {"host": host}) is not None) == refused
    assert Guard(None, "secret").refusal("/secret/", {"host": "192.168.0.7"})[0] == 421


def test_a_model_error_shows_on_the_page_and_the_server_lives(explorer, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("shapes do not match")
        yield

    monkeypatch.setattr(explorer.live, "_steps", broken)
    events = ask(explorer, "run", prompt=PROMPT)
    assert events[-1] == {
        "event": "error",
        "message": "the model stopped with an unexpected error (RuntimeError: shapes do not match)",
    }
    monkeypatch.undo()
    assert ask(explorer, "run", prompt=PROMPT, new_tokens=1)[-1]["event"] == "done"


SOAK = int(os.environ.get("HEADWISE_SOAK", "200"))
"""Requests of the memory test; HEADWISE_SOAK=10000 for the long one."""


def test_memory_stays_flat_over_many_requests(explorer):
    def round_of(first, count):
        for number in range(first, first + count):
            prompt = f"{PROMPT} {('cat', 'dog', 'bird', 'he', 'she', 'it')[number % 6]}"
            body = {"prompt": prompt, "gates": [[number % 4, number // 4 % 4, 0]]}
            kind = number % 10
            if kind == 8:
                events = ask(explorer, "head", head=f"L{number % 4}H1", **body)
            elif kind == 9:
                events = ask(explorer, "attribution", **body)
            else:
                events = ask(explorer, "run", tab=f"tab{number % 7}", new_tokens=3, **body)
            assert events[-1]["event"] in ("done", "rows", "attribution"), events[-1]
        gc.collect()
        return psutil.Process().memory_info().rss

    warm = round_of(0, max(100, SOAK // 10))
    after = round_of(10_000, SOAK)
    print(f"resident: {warm / 1e6:.0f} MB, after {SOAK} more requests {after / 1e6:.0f} MB")
    assert after - warm < min(40e6, 100e3 * SOAK), f"{(after - warm) / 1e6:.0f} MB more after {SOAK} requests"


@pytest.mark.parametrize(
    "half",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"POST /%s/api/run HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: 100\r\n\r\n{",
    ],
    ids=["nothing", "headers", "body"],
)
def test_connections_with_incomplete_requests_are_closed_and_block_nobody(half, tiny, serve, monkeypatch):
    monkeypatch.setattr(server, "_REQUEST", 1.0)
    explorer = serve(tiny)
    address = ("127.0.0.1", explorer.server.port)
    connections = [socket.create_connection(address, timeout=20) for _ in range(300)]
    try:
        for connection in connections:
            with suppress(OSError):
                connection.sendall(half.replace(b"%s", explorer.token.encode()))
        for connection in connections:
            with suppress(ConnectionResetError):
                while connection.recv(65536):  # ends when the server closes the connection
                    pass
        assert ask(explorer, "run", prompt=PROMPT, new_tokens=2)[-1]["event"] == "done"
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("half", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"], ids=["nothing", "headers"])
def test_silent_connections_take_no_place_from_others(half, tiny, serve):
    """1,000 connections that send nothing more: a request is answered while they are open, and few of them are."""
    explorer = serve(tiny)
    connections = []
    try:
        for _ in range(1_000):
            connections.append(socket.create_connection(("127.0.0.1", explorer.server.port), timeout=20))
            with suppress(OSError):
                connections[-1].sendall(half)
        assert ask(explorer, "run", prompt=PROMPT, new_tokens=2)[-1]["event"] == "done"
        still_open = 0
        for connection in connections:
            connection.setblocking(False)
            try:
                still_open += bool(connection.recv(1))
            except BlockingIOError:
                still_open += 1
            except OSError:
                pass
        assert still_open <= server._WAITING + 1
    finally:
        for connection in connections:
            connection.close()


def test_a_second_request_on_a_connection_must_be_complete_in_time_too(tiny, serve, monkeypatch):
    monkeypatch.setattr(server, "_REQUEST", 1.0)
    address = ("127.0.0.1", serve(tiny).server.port)
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"403" in connection.recv(65536)
        time.sleep(2)  # the time of the first request is over, and the connection is open
        connection.sendall(b"GET")
        began = time.monotonic()
        while connection.recv(65536):
            pass
        assert 0.5 < time.monotonic() - began < 10


def test_a_complete_request_may_take_longer_than_the_time_for_sending_it(tiny, serve, monkeypatch):
    monkeypatch.setattr(server, "_REQUEST", 0.5)
    explorer = serve(tiny)
    real = explorer.live.prompts.get
    monkeypatch.setattr(explorer.live.prompts, "get", lambda *a, **k: (time.sleep(1.5), real(*a, **k))[1])
    assert ask(explorer, "run", prompt=PROMPT, new_tokens=2)[-1]["event"] == "done"


def test_events_are_read_back_as_they_were_sent():
    assert events_of(b'data: {"event":"a"}\n\ndata: {"event":"b"}\n\n') == [{"event": "a"}, {"event": "b"}]


def test_a_text_on_which_the_tokenizer_panics_is_one_error_and_later_requests_are_answered(serve):
    tokenizer = make_panicking_tokenizer()
    hf = tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=512)
    explorer = serve(hw.load(hf, tokenizer=tokenizer))
    (event,) = ask(explorer, "run", prompt=PANIC)
    assert event["event"] == "error"
    assert "the tokenizer cannot read ['aaa" in event["message"]
    assert ask(explorer, "run", prompt=PROMPT, new_tokens=2)[-1]["event"] == "done"
