"""A study as a process that is killed, stopped, starved of disk, doubled and sent through time."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwise.runs import Store, read_info
from helpers import REPOSITORY, every_format
from runs.toy_study import run, table_bytes

TOY = Path(__file__).with_name("toy_study.py")


def survival():
    spec = importlib.util.spec_from_file_location("survival", REPOSITORY / "benchmarks/survival.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["survival"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the benchmark forks its processes")
def test_a_study_killed_at_random_moments_ends_with_the_same_tables_and_repeats_only_what_was_in_flight(
    tmp_path,
):
    program = (
        "import json, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import survival;"
        "import headwise.cli.app; print(json.dumps(survival.survive(Path(sys.argv[2]), 2, 2, 2, 1)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(REPOSITORY / "benchmarks"), str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] == 2
    assert found["tables_identical"]
    assert found["same_steps"]
    assert found["computed_beyond_those_in_flight"] == 0
    assert found["faults"] == []


def test_the_benchmark_would_notice_a_cell_that_is_computed_again():
    session = survival().Session("cells", before={"a"}, after={"a", "b"}, begun=["a", "b", "c", "d"])
    assert session.in_flight == ["c", "d"]
    assert len(session.faults) == 2
    assert survival().Session("cells", {"a", "b"}, {"a"}, []).faults == ["1 finished steps were lost"]


# --- asked to stop --------------------------------------------------------------------------------------


STOPPED = """
import sys, typer
sys.argv = ["headwise", "run", "toy"]
sys.path.insert(0, sys.argv.pop() and {here!r})
from headwise.cli.run import resumable
import runs.toy_study as toy, time
def slowly(number):
    print("part", number, flush=True)
    time.sleep(0.2)
app = typer.Typer(pretty_exceptions_enable=False)
@app.command()
def main():
    with resumable():
        toy.run(__import__("pathlib").Path({out!r}), 40, slowly)
sys.argv = ["headwise", "--flag"]
app([])
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_ctrl_c_and_a_polite_kill_end_in_order_and_say_how_to_go_on(tmp_path, name):
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED.format(here=str(REPOSITORY / "tests"), out=str(out))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A suite started in the background ignores some signals, and its children would inherit that.
        preexec_fn=lambda: signal.signal(getattr(signal, name), signal.SIG_DFL),
    )
    for _ in range(3):
        assert process.stdout.readline().startswith("part")
    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the same command resumes:\n  headwise --flag" in said
    assert "Traceback" not in said
    info = read_info(out)
    assert info["status"] == "interrupted"
    assert not (out / "cells.sqlite-wal").exists()  # the store was closed in order
    run(out, 40)
    run(tmp_path / "whole", 40)
    assert table_bytes(out) == table_bytes(tmp_path / "whole")


IMPATIENT = """
import sys, time
sys.path.insert(0, {here!r})
import runs.toy_study as toy
from pathlib import Path
from headwise.cli import app as cli
from headwise.cli.run import resumable
from headwise.runs import store
def slowly(number):
    print("part", number, flush=True)
    time.sleep(0.2)
close = store.Store.close
def slow_close(self):
    time.sleep(0.5)  # signals arrive while the run is closed, too
    close(self)
store.Store.close = slow_close
@cli.app.command("toy")
def command():
    with resumable():
        toy.run(Path({out!r}), 40, slowly)
sys.argv = ["headwise", "toy"]
cli.main()
"""


def test_six_fast_ctrl_c_leave_a_true_status_and_no_traceback(tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT.format(here=str(REPOSITORY / "tests"), out=str(out))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout.readline() == "part 0\n"
    for _ in range(6):
        process.send_signal(signal.SIGINT)
        time.sleep(0.15)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert said.startswith("stopped; finished steps are kept")
    assert "Traceback" not in said
    assert "Interrupt" not in said
    assert read_info(out)["status"] == "interrupted"
    assert not (out / "cells.sqlite-wal").exists()


def test_ctrl_c_while_a_run_is_closed_waits_until_its_status_is_written(tmp_path, monkeypatch):
    import headwise.runs.info as module

    write = module.write_json

    def interrupted(path, value):
        if value["status"] == "done":
            signal.raise_signal(signal.SIGINT)
        write(path, value)

    monkeypatch.setattr(module, "write_json", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert read_info(tmp_path / "run")["status"] == "done"


def test_ctrl_c_long_after_another_is_heard(monkeypatch):
    """A library may have swallowed the first."""
    from headwise.runs import stopping

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    now = 100.0
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now)
    try:
        with stopping.one_interrupt():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            now += 1
            signal.raise_signal(signal.SIGINT)
            now += 6
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with stopping.one_interrupt():
            pass
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_second_signal_does_not_cut_the_closing_short_and_handlers_are_put_back(name):
    from headwise.runs.stopping import Stopped, stoppable

    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)  # whatever another test's library made of it
    try:
        with stoppable():
            with pytest.raises(Stopped):
                signal.raise_signal(number)
            signal.raise_signal(number)  # while the run is closed: nothing happens
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_library_that_takes_a_signal_for_itself_gives_it_back():
    from headwise.runs.stopping import handlers_kept

    before = signal.getsignal(signal.SIGTERM)
    with handlers_kept():
        signal.signal(signal.SIGTERM, lambda *_: None)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_somebody_ignores_stays_ignored():
    from headwise.runs.stopping import stoppable

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stoppable():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


# --- a disk that is full ----------------------------------------------------------------------------------


LIMITED = """
import resource, sys
sys.path.insert(0, {here!r})
import pandas, pyarrow.parquet, headwise.runs, runs.toy_study as toy
from headwise.errors import HeadwiseError
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    toy.run(__import__("pathlib").Path({out!r}), 60)
except HeadwiseError as error:
    print("sentence:", error)
    sys.exit(2)
"""


@pytest.mark.parametrize("limit", [1 << 13, 100_000])
def test_a_file_that_may_not_grow_is_a_sentence_and_nothing_is_lost(tmp_path, limit):
    pytest.importorskip("resource")
    out = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(here=str(REPOSITORY / "tests"), out=str(out), limit=limit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.startswith("sentence:")
    assert "Traceback" not in done.stderr
    finished = 0
    if (out / "cells.sqlite").exists():
        with Store(out / "cells.sqlite") as store:
            finished = len(store)
    counted = []
    run(out, 60, counted.append)
    run(tmp_path / "whole", 60)
    assert len(counted) == 60 - finished
    assert table_bytes(out) == table_bytes(tmp_path / "whole")


@pytest.mark.parametrize("what", ["a table", "a figure", "run.json", "the report"])
def test_a_disk_that_fills_up_anywhere_is_a_sentence_and_the_old_file_stays(tmp_path, monkeypatch, what):
    from headwise import files as disk
    from headwise.charts.section import SECTIONS
    from headwise.charts.style import save
    from headwise.errors import HeadwiseError
    from headwise.report import write_report
    from headwise.runs import RunFolder, write_table

    monkeypatch.setattr(SECTIONS, "_entries", SECTIONS.in_order() | {"toy": None})
    run(tmp_path / "run", 2)
    import matplotlib.figure
    import pandas as pd

    folder = tmp_path / "run"
    figure = matplotlib.figure.Figure()
    save(figure, folder / "figures", "old")
    write_report([folder], folder / "report.html")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "flush", full)
    write = {
        "a table": lambda: write_table(folder, "other", [pd.DataFrame({"x": [1]})]),
        "a figure": lambda: save(figure, folder / "figures", "old"),
        "run.json": lambda: RunFolder(folder, study="toy"),
        "the report": lambda: write_report([folder], folder / "report.html"),
    }[what]
    with pytest.raises(HeadwiseError, match="is full; everything finished so far is kept"):
        write()
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path.name for path in after} - {path.name for path in before} <= {
        "cells.sqlite-wal",
        "cells.sqlite-shm",
    }
    for path, content in before.items():
        assert after[path] == content or path.name == "cells.sqlite"


def test_safetensors_own_words_for_a_full_disk_are_understood(tmp_path):
    from headwise.errors import HeadwiseError
    from headwise.files import explain_disk_errors

    class SafetensorError(Exception):
        pass

    with pytest.raises(HeadwiseError, match="is full"), explain_disk_errors(tmp_path):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(SafetensorError), explain_disk_errors(tmp_path):
        raise SafetensorError("invalid header")


# --- two at once --------------------------------------------------------------------------------------------


def test_the_second_command_on_a_run_folder_says_so_and_exits_with_2(tmp_path):
    out = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, str(TOY), str(out), "50", "0.2"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline().startswith("part")
        code = (
            "import sys\n"
            "from headwise.cli import app as cli\n"
            "from headwise.runs import RunFolder\n"
            "cli.app = lambda: RunFolder(sys.argv[1], study='toy')\n"
            "cli.main()\n"
        )
        second = subprocess.run(
            [sys.executable, "-c", code, str(out)], capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        holder.kill()
        holder.wait()
    assert second.returncode == 2
    assert f"is in use by process {holder.pid}" in second.stderr
    assert "Traceback" not in second.stderr


# --- clocks ---------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_changes_nothing_but_the_dates(tmp_path, monkeypatch):
    from headwise.runs import info as info_module
    from headwise.runs import store as store_module

    run(tmp_path / "whole", 6)
    leaps = iter([10**9, -(10**9)] * 1000)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: max(0.0, real() + next(leaps)))
    dates = iter([f"{year}-01-01T00:00:00+00:00" for year in (2031, 1999, 2050, 1970) * 50])
    monkeypatch.setattr(info_module, "timestamp", lambda: next(dates))

    def dies(number):
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", 6, dies)
    counted = []
    folder = run(tmp_path / "run", 6, counted.append)
    assert counted == [3, 4, 5]
    assert table_bytes(tmp_path / "run") == table_bytes(tmp_path / "whole")
    assert 0 <= read_info(folder.path)["timings"]["seconds"] < 600
    assert store_module  # the store keeps durations, not dates
    with Store(folder.path / "cells.sqlite") as store:
        spent = [s for (s,) in store._connection.execute("SELECT seconds FROM cells")]
    assert all(0 <= seconds < 600 for seconds in spent)


def test_nothing_in_the_package_measures_time_by_the_clock_on_the_wall():
    import ast

    for file in (REPOSITORY / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("time", "time"), file
                if node.attr in ("now", "utcnow", "today"):
                    assert file.name == "info.py", f"{file}: dates are for run.json alone"
                assert node.attr not in ("st_mtime", "getmtime"), file


# --- links and names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cells.sqlite", "tables", "figures"])
def test_a_link_inside_a_run_does_not_lead_out_of_it(tmp_path, name):
    from headwise.errors import HeadwiseError

    run(tmp_path / "run", 2)
    outside = tmp_path / "outside"
    outside.mkdir()
    place = tmp_path / "run" / name
    if place.exists():
        place.rename(tmp_path / "kept")
    place.symlink_to(outside)
    with pytest.raises(HeadwiseError, match="is a link, and a run writes nothing outside"):
        run(tmp_path / "run", 2)
    assert not list(outside.iterdir())


def test_a_link_under_a_temporary_name_is_replaced_not_followed(tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    run(tmp_path / "run", 1)
    for name in (".run.json.partial", "tables/.scores.parquet.partial"):
        (tmp_path / "run" / name).symlink_to(victim)
    run(tmp_path / "run", 2)
    assert victim.read_text() == "precious"
    assert len(json.loads((tmp_path / "run/run.json").read_text())) > 5


HOSTILE_NAMES = [
    "../../x",
    "/etc/x",
    "..",
    ".",
    "",
    "a/../../b",
    "x\0y",
    "n" * 400,
    "a\\..\\b",
    "é" * 300,
    "\ud800",
    "-",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_whatever_a_model_or_task_is_called_its_figure_lies_in_the_run(tmp_path, name):
    import matplotlib.figure

    from headwise.charts.style import file_name, save

    folder = tmp_path / "run" / "figures"
    stem = f"map-{file_name(name)}-{file_name(name)}-{file_name(name)}"
    with every_format():
        paths = save(matplotlib.figure.Figure(), folder, stem)
    assert len(paths) == 3
    assert {path.parent for path in paths} == {folder}
    assert all(path.is_file() for path in paths)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


def test_names_that_differ_give_files_that_differ():
    from headwise.charts.style import file_name

    different = [*HOSTILE_NAMES, "a/llama", "b/llama", "llama"]
    assert len({file_name(name) for name in different}) == len(different)
    assert file_name("tiny") == "tiny"
    assert file_name("models/tiny").startswith("tiny-")
    assert file_name("Logical Reasoning") == "Logical-Reasoning"


@pytest.mark.parametrize("name", ["../x", "a/b", "x\0y", "n" * 300])
def test_a_figure_by_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    import matplotlib.figure

    from headwise.charts.style import save
    from headwise.errors import HeadwiseError

    with pytest.raises(HeadwiseError):
        save(matplotlib.figure.Figure(), tmp_path / "figures", name)
    assert not list(tmp_path.rglob("*.png"))
