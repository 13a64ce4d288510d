"""Progress: an honest time left, lines in a log, a bar on a terminal."""

from __future__ import annotations

import io
import re
import sys
import threading
import types
from typing import Any

import pytest
from rich.console import Console

from headwise.progress import Pace, _lines, clock, progress, reporting
from headwise.runs import progress as public


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1_000.0

    def __call__(self) -> float:
        return self.time


def timeless(capsys: pytest.CaptureFixture[str]) -> str:
    return re.sub(r"\d+:\d\d", "TIME", capsys.readouterr().err)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    screen = io.StringIO()
    module = sys.modules["headwise.progress"]  # the attribute of this name is the function
    monkeypatch.setattr(module, "_console", lambda: Console(file=screen, force_terminal=True, width=100))
    return screen


# --- time left ------------------------------------------------------------------------------------


def test_nothing_is_promised_before_the_first_step_or_without_an_end() -> None:
    assert Pace(10, 0.0).left(5.0) is None
    endless = Pace(None, 0.0)
    endless.advance(3, 1.0)
    assert endless.left(2.0) is None


def test_an_even_pace_is_told_exactly() -> None:
    pace = Pace(100, 0.0)
    for step in range(1, 41):
        pace.advance(1, step * 2.0)
    assert pace.left(80.0) == pytest.approx(120)
    assert pace.left(81.0) == pytest.approx(119)  # time passes between steps too
    assert pace.left(1_000.0) == 0


def test_a_slow_start_is_forgotten() -> None:
    pace = Pace(100, 0.0)
    pace.advance(1, 60.0)  # loading and compiling
    for step in range(1, 50):
        pace.advance(1, 60.0 + step)
    assert pace.left(109.0) == pytest.approx(50, abs=1)


def test_steps_of_different_size_count_by_size() -> None:
    pace = Pace(100, 0.0)
    pace.advance(10, 10.0)
    pace.advance(40, 50.0)
    assert pace.left(50.0) == pytest.approx(50)


def test_seconds_read_like_a_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 61, 3_599, 3_600, 90_061)] == [
        "0:00",
        "1:00",
        "1:01",
        "59:59",
        "1:00:00",
        "25:01:01",
    ]


# --- a log ----------------------------------------------------------------------------------------


def test_a_log_gets_a_line_after_ten_seconds_then_each_minute_and_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = Clock()
    with _lines("Scoring", 200, True, clock_now=now) as advance:
        for _ in range(200):
            now.time += 1
            advance()
    assert capsys.readouterr().err.splitlines() == [
        "Scoring: 10/200 (5%), 0:10 so far, about 3:10 left",
        "Scoring: 70/200 (35%), 1:10 so far, about 2:10 left",
        "Scoring: 130/200 (65%), 2:10 so far, about 1:10 left",
        "Scoring: 190/200 (95%), 3:10 so far, about 0:10 left",
        "Scoring: 200/200 (100%), done in 3:20",
    ]


def test_a_log_says_where_an_interrupted_piece_of_work_stood(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        with progress("Scoring", total=4) as advance:
            advance()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert timeless(capsys) == "Scoring: stopped at 1/4 (25%) after TIME\n"


def test_an_unknown_total_is_counted_without_a_share(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Reading") as advance:
        advance(5)
    assert timeless(capsys) == "Reading: 5, done in TIME\n"


def test_work_inside_work_stays_quiet_unless_it_is_long(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Outer", total=2) as outer:
        for _ in range(2):
            with progress("Inner", total=3) as inner:
                inner(3)
            outer()
    assert timeless(capsys) == "Outer: 2/2 (100%), done in TIME\n"


def test_nothing_is_shown_when_not_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with public("Scoring", total=2, show=False) as advance:
        advance()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("setting", ["0", "false"])
def test_the_environment_turns_progress_off(
    setting: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWISE_PROGRESS", setting)
    with progress("Scoring", total=2) as advance:
        advance(2)
    assert capsys.readouterr() == ("", "")


# --- a Python call --------------------------------------------------------------------------------


def test_a_short_call_leaves_no_line_in_a_log_and_a_long_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    now = Clock()
    for seconds in (1, 11):
        with _lines("Scoring", 2, True, late=True, clock_now=now) as advance:
            now.time += seconds
            advance()
            now.time += 1
            advance()
    assert capsys.readouterr().err.splitlines() == [
        "Scoring: 1/2 (50%), 0:11 so far, about 0:11 left",
        "Scoring: 2/2 (100%), done in 0:12",
    ]


def test_the_bar_of_a_call_appears_after_a_second(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reporting("Scoring", 3, True) as advance:
        advance(3)
    assert terminal.getvalue() == ""
    monkeypatch.setattr(sys.modules["headwise.progress"], "_LATE", 0.0)
    with reporting("Scoring", 3, True) as advance:
        advance(3)
    assert "3/3" in terminal.getvalue()


def test_work_that_ends_early_is_done(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["headwise.progress"], "_LATE", 0.0)
    with reporting("Scoring", 9, True) as advance:
        advance(2)
    assert "9/9" in terminal.getvalue()


def test_a_call_reports_to_a_function_or_to_nobody(terminal: io.StringIO) -> None:
    steps: list[int] = []
    with reporting("Scoring", 3, steps.append) as advance:
        advance(2)
    assert steps == [2]
    for off in (False, None):
        with reporting("Scoring", 3, off) as advance:
            advance(2)
    assert terminal.getvalue() == ""


class Shown:
    """What a notebook shows of one display, and every state before."""

    def __init__(self, bundle: dict[str, str]) -> None:
        self.states = [bundle]

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        self.states.append(bundle)


def test_a_notebook_gets_a_bar_without_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    displays: list[Shown] = []

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Shown:
        displays.append(Shown(bundle))
        return displays[-1]

    fake = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(display=fake))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", fake)  # type: ignore[arg-type]
    module = sys.modules["headwise.progress"]
    monkeypatch.setattr(module, "_console", lambda: Console(force_jupyter=True))
    with reporting("short", 4, True) as advance:
        advance(4)
    assert displays == []
    monkeypatch.setattr(module, "_LATE", 0.0)
    with reporting("<Scoring>", 4, True) as advance:
        advance(1)
        advance(3)
    (shown,) = displays
    assert 'value="1" max="4"' in shown.states[0]["text/html"]
    assert "&lt;Scoring&gt;: 4/4 (100%)" in shown.states[-1]["text/html"]


# --- a terminal -----------------------------------------------------------------------------------


def test_a_terminal_gets_a_bar_with_the_count(terminal: io.StringIO) -> None:
    with progress("Scoring", total=3) as advance:
        advance(2)
        advance()
    assert "Scoring" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


def test_bars_can_be_nested_and_threads_can_share_the_terminal(terminal: io.StringIO) -> None:
    with progress("Outer", total=2) as outer:
        for _ in range(2):
            with progress("Inner", total=3) as inner:
                inner(3)
            outer()
    shown = terminal.getvalue()
    assert "Outer" in shown
    assert "2/2" in shown

    def work(name: str, failures: list[Any]) -> None:
        try:
            with progress(name, total=50) as advance:
                for _ in range(50):
                    advance()
        except Exception as error:  # a thread would swallow it
            failures.append(error)

    failures: list[Any] = []
    threads = [threading.Thread(target=work, args=(f"thread {i}", failures)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_an_error_leaves_the_terminal_ready_for_the_next_bar(terminal: io.StringIO) -> None:
    with pytest.raises(ValueError, match="stop"), progress("First", total=3):
        raise ValueError("stop")
    with progress("Second", total=1) as advance:
        advance()
    assert "1/1" in terminal.getvalue()
