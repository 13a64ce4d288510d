"""Steps on a Ray cluster: the same bytes as in this process, whatever happens to the workers."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.runs import Job, RunFolder, Store, read_info, step
from runs import toy_study
from runs.toy_study import run, table_bytes

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'headwise[ray]'")

from headwise.runs.ray_executor import ATTEMPTS, RayExecutor  # noqa: E402

ray.cloudpickle.register_pickle_by_value(toy_study)
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def executor():
    """Two workers on a cluster of our own, for all tests of this file."""
    with RayExecutor(workers=2, cores_per_worker=1, progress=False) as started:
        yield started
    assert not ray.is_initialized()


@dataclass(frozen=True)
class Notes:
    """What a part does beside its numbers: nothing of it is in the key."""

    place: Path | None = field(default=None, compare=False)
    """A folder in which each part leaves a file that says which process computed it."""
    die_over: int = field(default=-1, compare=False)
    times: int = field(default=0, compare=False)
    fail: int = field(default=-1, compare=False)
    error: type[Exception] = field(default=HeadwiseError, compare=False)
    spoil: bool = field(default=False, compare=False)

    def by(self, number: int | str = r"\d+") -> list[str]:
        """The processes that began this part, or any part."""
        assert self.place is not None
        return [m[1] for f in self.place.iterdir() if (m := re.match(rf"part {number} by (\d+) at", f.name))]


def compute_part(job: Job, number: int, model: str, notes: Notes) -> dict[str, pd.DataFrame]:
    if notes.place:
        notes.place.mkdir(exist_ok=True)
        (notes.place / f"part {number} by {os.getpid()} at {time.monotonic_ns()}").touch()
    if number == notes.die_over and len(notes.by(number)) <= notes.times:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == notes.fail:
        raise notes.error(f"part {number} was given, and cannot be; give another")
    tables = toy_study.tables_of(number, model)
    if notes.spoil:
        tables["scores"].loc[1, "score"] = float("nan")
    return tables


remote_part = step(cost=lambda **_: 1, label="part {number} on ioi with {model}")(compute_part)
local_part = step(label="part {number}")(compute_part)


def carried_out(
    place: Path, count: int, notes: Notes | None = None, executor: Any = None, part: Any = remote_part
) -> RunFolder:
    with RunFolder(place, study="toy", settings={"count": count}) as folder:
        folder.executor = executor
        calls = {i: part(i, f"model{i % 2}", notes or Notes()) for i in range(count)}
        toy_study.carry_out(folder, calls)
    return folder


def test_two_workers_give_the_same_bytes_as_this_process(tmp_path, executor):
    notes = Notes(tmp_path / "notes")
    run(tmp_path / "local", 40)
    carried_out(tmp_path / "ray", 40, notes, executor)
    assert table_bytes(tmp_path / "ray") == table_bytes(tmp_path / "local")
    processes = notes.by()
    assert len(processes) == 40
    assert len(set(processes)) == 2
    assert str(os.getpid()) not in processes


def test_steps_without_a_cost_are_computed_here(tmp_path, executor):
    notes = Notes(tmp_path / "notes")
    carried_out(tmp_path / "run", 3, notes, executor, local_part)
    assert set(notes.by()) == {str(os.getpid())}


def test_a_killed_worker_is_replaced_and_its_step_computed_again(tmp_path, executor, caplog):
    notes = Notes(tmp_path / "notes", die_over=7, times=1)
    carried_out(tmp_path / "local", 20)
    carried_out(tmp_path / "ray", 20, notes, executor)
    assert table_bytes(tmp_path / "ray") == table_bytes(tmp_path / "local")
    assert len(set(notes.by(7))) == 2
    assert len(notes.by()) == 21  # no other step was computed twice
    assert "died while computing part 7 on ioi with model1" in caplog.text


def test_a_step_that_ends_every_worker_is_named(tmp_path, executor):
    notes = Notes(tmp_path / "notes", die_over=2, times=99)
    with pytest.raises(
        HeadwiseError, match=rf"{ATTEMPTS} workers died while computing part 2 on ioi with model0"
    ):
        carried_out(tmp_path / "run", 6, notes, executor)
    assert len(notes.by(2)) == ATTEMPTS
    assert read_info(tmp_path / "run")["status"] == "failed"


def test_an_error_in_a_worker_is_the_same_sentence_and_the_run_resumes(tmp_path, executor):
    carried_out(tmp_path / "local", 12)
    with pytest.raises(HeadwiseError, match=r"^part 6 was given, and cannot be; give another$"):
        carried_out(tmp_path / "ray", 12, Notes(tmp_path / "failing", fail=6), executor)
    with Store(tmp_path / "ray/cells.sqlite") as store:
        finished = len(store)
    assert finished >= 5
    again = Notes(tmp_path / "again")
    carried_out(tmp_path / "ray", 12, again, executor)
    assert len(again.by()) == 12 - finished
    assert table_bytes(tmp_path / "ray") == table_bytes(tmp_path / "local")


def test_a_bug_in_a_step_keeps_its_type_and_says_which_step(tmp_path, executor):
    with pytest.raises(ZeroDivisionError, match="was given") as raised:
        carried_out(tmp_path / "run", 2, Notes(fail=1, error=ZeroDivisionError), executor)
    if sys.version_info >= (3, 11):
        assert "while computing part" in " ".join(raised.value.__notes__)


def test_an_interrupted_run_calls_off_what_is_under_way(tmp_path, executor, monkeypatch):
    """Ctrl-C arrives while a result is stored; the steps under way are given up, the workers replaced."""
    put, stored = Store.put, []

    def interrupted(self, *given, **named):
        put(self, *given, **named)
        stored.append(given[0])
        if len(stored) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Store, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        carried_out(tmp_path / "ray", 30, executor=executor)
    monkeypatch.undo()
    assert read_info(tmp_path / "ray")["status"] == "interrupted"
    carried_out(tmp_path / "local", 30)
    carried_out(tmp_path / "ray", 30, executor=executor)
    assert table_bytes(tmp_path / "ray") == table_bytes(tmp_path / "local")


def test_values_that_are_not_finite_are_told_as_here(tmp_path, executor):
    local, there = (
        carried_out(tmp_path / name, 2, Notes(spoil=True), chosen)
        for name, chosen in (("a", None), ("b", executor))
    )
    assert there.notices == local.notices
    assert "not finite" in there.notices[0]


@pytest.mark.parametrize("error", [RuntimeError, TimeoutError, ValueError, Exception])
def test_a_cluster_that_does_not_start_is_a_sentence_that_says_what_to_do(error, monkeypatch):
    def fail(**_):
        raise error("The current node timed out during startup.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    with (
        pytest.raises(HeadwiseError, match=r"could not be started .*: The current node timed out.*address="),
        RayExecutor(workers=1) as executor,
    ):
        executor._connect()


def test_without_ray_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(HeadwiseError, match=r"pip install 'headwise\[ray\]'"):
        RayExecutor()


def test_a_cluster_of_our_own_is_closed_to_others_and_another_is_shown_the_token_there_is(tmp_path):
    """In a process of its own, because Ray reads this once, when it is imported."""
    ray = "headwise.runs.ray_executor"
    program = f"import os; from {ray} import RayExecutor as R; R(%r); print(dict(os.environ))"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    clean["HOME"] = str(tmp_path)
    own, other, known = (
        ast.literal_eval(
            subprocess.run(
                [sys.executable, "-c", program % address],
                env=clean | more,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for address, more in ((None, {}), ("somewhere:1", {}), ("somewhere:1", {"RAY_AUTH_TOKEN": "a" * 64}))
    )
    assert own["RAY_AUTH_MODE"] == "token"
    assert len(own["RAY_AUTH_TOKEN"]) == 64
    assert "RAY_AUTH_MODE" not in other
    assert (known["RAY_AUTH_MODE"], known["RAY_AUTH_TOKEN"]) == ("token", "a" * 64)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_one_sentence(address):
    with pytest.raises(HeadwiseError, match=f"the Ray cluster at {address} could not be joined: .*refused"):
        RayExecutor(address)._join(ray)
