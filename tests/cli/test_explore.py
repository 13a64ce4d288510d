"""`headwise explore` as a person starts and ends it."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import urllib.request
import webbrowser
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest

from headwise.cli.app import main
from headwise.cli.demo import explored
from headwise.explorer.explorer import Explorer
from headwise.explorer.server import Server
from helpers import forked_command, saved_word_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of a tiny model."""
    place = tmp_path_factory.mktemp("models") / "tiny"
    saved_word_model(place, "llama", max_position_embeddings=512)
    return place


def test_the_command_prints_an_address_that_answers_and_ctrl_c_ends_it_cleanly(folder, tmp_path):
    process = forked_command(tmp_path / "said", "explore", folder, "--no-browser", "--device", "cpu")
    try:
        message = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+/[\w-]{16,}/(?=\s)", message)):
            assert process.is_alive(), message
            time.sleep(0.05)
            message = (tmp_path / "said").read_text() if (tmp_path / "said").exists() else ""
        assert "explorer of tiny" in message
        page = urllib.request.urlopen(found[0], timeout=60).read().decode()  # noqa: S310
        assert "<title>headwise explorer</title>" in page
        os.kill(process.pid, signal.SIGINT)
        process.join(60)
    finally:
        process.kill()
    assert process.exitcode == 0
    message = (tmp_path / "said").read_text()
    assert message.strip().endswith("stopped")
    assert "Traceback" not in message


def test_the_browser_is_given_a_page_that_only_its_user_can_read_and_no_token(folder, monkeypatch, capsys):
    opened = []

    def look(address):
        page = Path(url2pathname(urlparse(address).path))
        modes = [oct(path.stat().st_mode & 0o777) for path in (page, page.parent)]
        opened.append((address, page, page.read_text(), modes))

    monkeypatch.setattr(webbrowser, "open", look)
    monkeypatch.setattr(Server, "wait", lambda self: None)
    monkeypatch.setattr(sys, "argv", ["headwise", "explore", str(folder), "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    ((address, page, content, modes),) = opened
    (url,) = re.findall(r"http://127\.0\.0\.1:\d+/[\w-]{16,}/", capsys.readouterr().out)
    assert f'content="0; url={url}"' in content
    assert url.split("/")[3] not in address
    assert modes == ["0o600", "0o700"]
    assert not page.exists(), "the page is removed with the explorer"


@pytest.fixture
def refused(monkeypatch, capsys):
    """What the command says in this process when it refuses its arguments; nothing is served."""

    def serve(*_, **__):
        pytest.fail("the command was not refused")

    monkeypatch.setattr(Explorer, "serve", serve)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["headwise", "explore", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    return run


def test_another_address_than_this_machine_needs_an_explicit_flag(folder, refused):
    assert "add --remote" in refused(folder, "--host", "0.0.0.0", "--no-browser")  # noqa: S104


def test_a_model_that_does_not_exist_is_refused_in_a_sentence(tmp_path, refused):
    message = refused(tmp_path / "nothing", "--no-browser")
    assert f"headwise: there is no file or folder {tmp_path / 'nothing'}" in message
    assert "Traceback" not in message


def test_the_demo_names_the_run_with_circuits(tmp_path):
    assert explored([tmp_path / "functions", tmp_path / "circuits"]) == str(tmp_path / "circuits")
    assert explored([tmp_path / "roles"]) == str(tmp_path / "roles")
    assert explored([]) == "smollm2"
