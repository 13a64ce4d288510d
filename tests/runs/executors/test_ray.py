"""Cells on a Ray cluster: the same bytes as in this process, whatever happens to the workers."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwise.errors import HeadwiseError
from headwise.runs import Cell, CellResult, CellStore, RunFolder, execute, read_info
from runs import toy_study
from runs.toy_study import make_cells, run, table_bytes

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'headwise[ray]'")

from headwise.runs.executors.ray_executor import ATTEMPTS, RayExecutor  # noqa: E402

ray.cloudpickle.register_pickle_by_value(toy_study)
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def executor():
    """Two workers on a cluster of our own, for all tests of this file."""
    with RayExecutor(workers=2, cores_per_worker=1, progress=False) as started:
        yield started
    assert not ray.is_initialized()


def cells_with_a_model(count: int) -> list[Cell]:
    """The toy study's cells; those that name a model's fingerprint are sent to workers."""
    return [
        Cell(c.study, c.model, c.task, c.part, c.settings, {**c.fingerprints, "model": "abc"})
        for c in make_cells(count)
    ]


def carried_out(place: Path, count: int, compute, executor=None) -> RunFolder:
    with RunFolder(place, study="toy", settings={"count": count}) as folder:
        folder.executor = executor
        execute(folder, cells_with_a_model(count), compute, progress=False)
    return folder


class Noting:
    """Computes a toy cell, and leaves a file that says which process did."""

    def __init__(self, place: Path, die_over: str = "", times: int = 0, fail: str = "") -> None:
        self.place, self.die_over, self.times, self.fail = place, die_over, times, fail
        place.mkdir(exist_ok=True)

    def __call__(self, cell: Cell) -> CellResult:
        made = self.place / f"{cell.part} by {os.getpid()} at {time.monotonic_ns()}"
        made.touch()
        if cell.part == self.die_over and len(self.by(cell.part)) <= self.times:
            os.kill(os.getpid(), signal.SIGKILL)
        if cell.part == self.fail:
            raise HeadwiseError(f"{cell.part} was given, and cannot be; give another")
        return toy_study.compute(cell)

    def by(self, part: str = "") -> list[str]:
        """The processes that began the cell, or any cell."""
        return [m[1] for f in self.place.iterdir() if (m := re.match(rf"{part or '.*'} by (\d+) at", f.name))]


def test_two_workers_give_the_same_bytes_as_this_process(tmp_path, executor):
    noting = Noting(tmp_path / "notes")
    carried_out(tmp_path / "local", 40, toy_study.compute)
    carried_out(tmp_path / "ray", 40, noting, executor)
    assert table_bytes(tmp_path / "ray") == table_bytes(tmp_path / "local")
    processes = noting.by()
    assert len(processes) == 40
    assert len(set(processes)) == 2
    assert str(os.getpid()) not in processes


def test_cells_without_a_model_are_put_together_here(tmp_path, executor):
    noting = Noting(tmp_path / "notes")
    with RunFolder(tmp_path / "run", study="toy") as folder:
        folder.executor = executor
        execute(folder, make_cells(3), noting, progress=False)
    assert set(noting.by()) == {str(os.getpid())}


def test_a_killed_worker_is_replaced_and_its_cell_computed_again(tmp_path, executor, caplog):
    noting = Noting(tmp_path / "notes", die_over="part 7", times=1)
    carried_out(tmp_path / "local", 20, toy_study.compute)
    carried_out(tmp_path / "ray", 20, noting, executor)
    assert table_bytes(tmp_path / "ray") == table_bytes(tmp_path / "local")
    assert len(set(noting.by("part 7"))) == 2
    assert len(noting.by()) == 21  # no other cell was computed twice
    assert "died while computing part 7 on ioi with model1" in caplog.text


def test_a_cell_that_ends_every_worker_is_named(tmp_path, executor):
    noting = Noting(tmp_path / "notes", die_over="part 2", times=99)
    with pytest.raises(
        HeadwiseError, match=rf"{ATTEMPTS} workers died while computing part 2 on ioi with model0"
    ):
        carried_out(tmp_path / "run", 6, noting, executor)
    assert len(noting.by("part 2")) == ATTEMPTS
    assert read_info(tmp_path / "run")["status"] == "failed"


def test_an_error_in_a_worker_is_the_same_sentence_and_the_run_resumes(tmp_path, executor):
    carried_out(tmp_path / "local", 12, toy_study.compute)
    failing = Noting(tmp_path / "failing", fail="part 6")
    with pytest.raises(HeadwiseError, match=r"^part 6 was given, and cannot be; give another$"):
        carried_out(tmp_path / "ray", 12, failing, executor)
    with CellStore(tmp_path / "ray/cells.sqlite") as store:
        finished = {store.cell(key).part for key in store.keys()}  # noqa: SIM118
    assert len(finished) >= 5
    again = Noting(tmp_path / "again")
    carried_out(tmp_path / "ray", 12, again, executor)
    assert len(again.by()) == 12 - len(finished)
    assert not any(again.by(f"{part} by")[:1] for part in finished)
    assert table_bytes(tmp_path / "ray") == table_bytes(tmp_path / "local")


def test_a_bug_in_a_cell_keeps_its_type_and_says_which_cell(tmp_path, executor):
    def broken(cell: Cell) -> CellResult:
        raise ZeroDivisionError("of all things")

    with pytest.raises(ZeroDivisionError, match="of all things") as raised:
        carried_out(tmp_path / "run", 2, broken, executor)
    if sys.version_info >= (3, 11):
        assert "while computing part" in " ".join(raised.value.__notes__)


def test_an_interrupted_run_calls_off_what_is_under_way(tmp_path, executor, monkeypatch):
    """Ctrl-C arrives while a result is stored; the cells under way are given up, the workers replaced."""
    put, stored = CellStore.put_encoded, []

    def interrupted(self, *given, **named):
        put(self, *given, **named)
        stored.append(given[0])
        if len(stored) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(CellStore, "put_encoded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        carried_out(tmp_path / "ray", 30, toy_study.compute, executor)
    monkeypatch.undo()
    assert read_info(tmp_path / "ray")["status"] == "interrupted"
    carried_out(tmp_path / "local", 30, toy_study.compute)
    carried_out(tmp_path / "ray", 30, toy_study.compute, executor)
    assert table_bytes(tmp_path / "ray") == table_bytes(tmp_path / "local")


def test_values_that_are_not_finite_are_told_as_here(tmp_path, executor):
    def gone(cell: Cell) -> CellResult:
        result = toy_study.compute(cell)
        result.tables["scores"].loc[1, "score"] = float("nan")
        return result

    local, there = (
        carried_out(tmp_path / name, 2, gone, chosen) for name, chosen in (("a", None), ("b", executor))
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
        pytest.raises(HeadwiseError, match=r"could not be started .*: The current node timed out.*--address"),
        RayExecutor(workers=1) as executor,
    ):
        executor._connect()


def test_without_ray_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(HeadwiseError, match=r"pip install 'headwise\[ray\]'"):
        RayExecutor()


def test_a_cluster_of_our_own_is_closed_to_others_and_another_is_shown_the_token_there_is(tmp_path):
    """In a process of its own, because Ray reads this once, when it is imported."""
    ray = "headwise.runs.executors.ray_executor"
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


def test_the_toy_study_of_this_file_is_that_of_the_others(tmp_path):
    """Only the fingerprints differ, so that the cells are sent; the tables are the same."""
    run(tmp_path / "here", 5)
    carried_out(tmp_path / "there", 5, toy_study.compute)
    assert table_bytes(tmp_path / "here") == table_bytes(tmp_path / "there")
