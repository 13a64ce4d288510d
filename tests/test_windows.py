"""What Windows does otherwise, simulated: error numbers of its own, encodings of pipes, `os.kill`, line ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwise.cli.run import default_folder
from headwise.errors import HeadwiseError
from headwise.files import explain_disk_errors, replacing, user_path
from helpers import REPOSITORY


def windows_error(kind: type[OSError], number: int, winerror: int) -> OSError:
    error = kind(number, "what Windows says")
    error.winerror = winerror
    return error


@pytest.mark.parametrize("winerror", [5, 32])
def test_a_file_that_another_program_has_open_for_a_moment_is_replaced(tmp_path, monkeypatch, winerror):
    target, really, refused = tmp_path / "run.json", os.replace, 0
    target.write_text("old")

    def held(source, path):
        nonlocal refused
        refused += 1
        if refused < 3:
            raise windows_error(PermissionError, errno.EACCES, winerror)
        really(source, path)

    monkeypatch.setattr(os, "replace", held)
    with replacing(target) as partial:
        partial.write_text("new")
    assert (target.read_text(), refused) == ("new", 3)


@pytest.mark.parametrize(("winerror", "tries"), [(5, 6), (None, 1)])
def test_a_file_that_stays_open_is_a_sentence_and_keeps_its_content(tmp_path, monkeypatch, winerror, tries):
    """Other systems refuse for good: nothing is tried twice there."""
    target, asked = tmp_path / "run.json", []
    target.write_text("old")

    def held(source, path):
        asked.append(source)
        raise windows_error(PermissionError, errno.EACCES, winerror)

    monkeypatch.setattr(os, "replace", held)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with (
        pytest.raises(HeadwiseError, match="cannot be written to"),
        explain_disk_errors(target),
        replacing(target) as partial,
    ):
        partial.write_text("new")
    assert (target.read_text(), len(asked)) == ("old", tries)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("name", ["hub:owner/name:train", "Why? Because", 'a "quoted" <name>'])
def test_a_name_that_no_file_of_windows_can_have_is_the_name_of_no_file(monkeypatch, name):
    def refuse(path, **_):
        raise windows_error(OSError, errno.EINVAL, 123)

    monkeypatch.setattr(Path, "stat", refuse)
    assert user_path(name) == Path(name)
    made = default_folder("score", "smollm2", name).name
    assert not set(made) & set('<>:"|?*/\\')


def headwise(*arguments, encoding):
    return subprocess.run(
        [sys.executable, "-m", "headwise", *arguments],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "100"},
        check=False,
    )


def test_characters_that_a_pipe_has_not_are_written_as_numbers():
    done = headwise("list", "tasks", encoding="cp1252")
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u2192" in done.stdout  # the arrow between prompt and answer


def test_json_in_an_old_encoding_says_the_same():
    old = headwise("list", "tasks", "--json", encoding="cp1252")
    new = headwise("list", "tasks", "--json", encoding="utf-8")
    assert "→".encode() in new.stdout
    assert json.loads(old.stdout.decode("cp1252")) == json.loads(new.stdout.decode("utf-8"))


def test_ctrl_c_in_a_destructor_is_heard_where_os_kill_ends_the_process(monkeypatch):
    from headwise.runs import stopping

    class Dropped:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def ends(*_):
        raise AssertionError("this would have ended the process on Windows")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.delattr(signal, "pthread_kill")
    monkeypatch.setattr(os, "kill", ends)

    def wait():
        Dropped()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            time.sleep(0.01)

    try:
        with pytest.raises(KeyboardInterrupt), stopping.one_interrupt():
            wait()
    finally:
        signal.signal(signal.SIGINT, before)


def test_git_changes_no_line_end_of_ours():
    """Hashes and executed outputs are compared byte by byte; on Windows git would put \\r\\n into a checkout."""
    names = ["README.md", "src/headwise/tasks/builtin/data/ioi.txt", "src/headwise/report/assets/card.js"]
    asked = ["git", "check-attr", "text", "eol", "--", *names]
    done = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    for name in names:
        assert f"{name}: eol: lf" in done.stdout
    binary = "companions/headwise_companions/smollm2-sparse/adapter_model.safetensors"
    asked = ["git", "check-attr", "text", "--", binary]
    done = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("text: unset")
