"""A hub that accepts connections and says nothing: the cached copy is used, else a sentence comes, and soon."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from helpers import saved_word_model


@pytest.fixture
def silent_hub():
    """A server that takes connections and never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    kept = []

    def take() -> None:
        while True:
            try:
                kept.append(server.accept()[0])
            except OSError:
                return

    threading.Thread(target=take, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}", kept
    server.close()
    for connection in kept:
        connection.close()


@pytest.fixture
def cache(tmp_path):
    """The hub's cache with one model in it, as a download leaves it."""
    commit = "0123456789012345678901234567890123456789"
    repository = tmp_path / "hub" / "models--owner--kept"
    snapshot = repository / "snapshots" / commit
    saved_word_model(snapshot, "llama")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return tmp_path / "hub"


PROGRAM = """
import sys, headwise as hw
from headwise import hub
from headwise.errors import HeadwiseError

assert hub.SECONDS == 5
hub.SECONDS = 1.0
for name in sys.argv[1:]:
    try:
        print(name, hw.load(name, device="cpu").shape)
    except HeadwiseError as error:
        print(error)
"""


def test_a_cached_copy_is_used_when_the_hub_is_silent_and_else_a_sentence_comes(silent_hub, cache):
    hub, connections = silent_hub
    environment = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    environment |= {"HF_ENDPOINT": hub, "HF_HUB_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, "owner/kept", "owner/missing"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    kept, missing = done.stdout.splitlines()
    assert kept == "owner/kept (4, 4)"
    assert done.stderr.count("does not answer") == 1
    assert missing.startswith("unknown model 'owner/missing'")
    assert "the hub could not be reached and there is no cached copy" in missing
    # Each connection is five seconds of waiting or more: one question for the program, and not one for each file.
    assert len(connections) <= 2
