"""A study of 100,000 steps: does the memory of the process that writes stay flat, and how soon does a run resume?

    python benchmarks/many_cells.py [--cells 100000] [--out benchmarks/results/many-cells.json]

The steps are stubs (a table of scores and one of examples, some 3 KB), everything else is the real thing: calls,
executor, store with a full sync per step, tables. Half of the steps are computed by a process that is then killed;
a second one resumes and finishes. Memory is read from the system every so many steps. "Flat" means from the first
tenth to the last: what the process holds in between grows with the number of steps asked for, not with those done.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pandas as pd

from headwise.runs import Job, RunFolder, step
from headwise.studies.run import Run

RESULTS = Path(__file__).parent / "results"
MARKS = 20
"""How often memory is read over a run."""


noting: list[Callable[[], None]] = []
"""What a session does before it computes a step."""


@dataclass(frozen=True)
class Settings:
    """As a study has them."""

    draw: int
    n: int = 64
    seed: int = 0
    metric: str = "logit_diff"
    reference: str = "mean"
    positions: str = "all"


@step(cost=lambda **_: 1, label="draw {settings.draw} on {task} with {model}")
def stub(job: Job, settings: Settings, model: str, task: str) -> dict[str, pd.DataFrame]:
    """Two small tables that follow from the arguments."""
    for note in noting:
        note()
    draw = settings.draw
    values = np.sin(np.arange(16) + draw)
    names = {"model": model, "task": task}
    scores = {"method": "stub", "layer": [0, 1], "head": [draw % 9, 1], "score": values[:2], "stderr": 0.1}
    scores |= {"lo": -1.0, "hi": 1.0, "n": 16, "p": 0.5, "q": 0.5}
    examples = {"series": "top", "k": draw % 97, "draw": draw, "example": np.arange(16), "value": values}
    return {"scores": pd.DataFrame(names | scores), "examples": pd.DataFrame(names | examples)}


def resident() -> int:
    """Bytes of memory that this process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def carry_out(place: Path, count: int, die_after: int) -> None:
    """One session; prints what it measured, or dies after so many cells."""
    began = time.perf_counter()
    calls = {i: stub(Settings(i), f"model {i % 7}", f"task {i % 11}") for i in range(count)}
    made = time.perf_counter()
    done, memory, first = 0, [], 0.0

    def note() -> None:
        nonlocal done, first
        first = first or time.perf_counter()
        if done % max(1, count // MARKS) == 0:
            memory.append({"cells": done, "bytes": resident()})
        done += 1
        if done == die_after:
            print(json.dumps({"memory": memory, "seconds": time.perf_counter() - first}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    noting.append(note)

    with RunFolder(place, study="stub", settings={"cells": count}) as folder:
        opened = time.perf_counter()
        run = Run(None, SimpleNamespace(progress=False), folder)  # type: ignore[arg-type]
        for tables in run.all(calls).values():
            run.tables(tables)
        run.write_tables()
        ended = time.perf_counter()
    print(
        json.dumps(
            {
                "computed": done,
                "memory": memory,
                "cells_made_seconds": made - began,
                "open_seconds": opened - made,
                "scan_seconds": (first or ended) - opened,
                "from_first_cell_seconds": ended - first if first else 0.0,
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


def session(place: Path, count: int, die_after: int = 0) -> dict[str, object]:
    command = [
        sys.executable,
        __file__,
        "--session",
        str(place),
        "--cells",
        str(count),
        "--die-after",
        str(die_after),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def growth(memory: list[dict[str, int]]) -> float:
    """How much more is held at the end than after the first tenth."""
    return memory[-1]["bytes"] / memory[max(1, len(memory) // 10)]["bytes"] - 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=RESULTS / "many-cells.json")
    parser.add_argument("--session", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--die-after", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.session:
        carry_out(given.session, given.cells, given.die_after)
        return
    with TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        first = session(place, given.cells, given.cells // 2)
        second = session(place, given.cells)
        third = session(place, given.cells)
        size = sum(file.stat().st_size for file in place.glob("cells.sqlite*"))
    assert second["computed"] == given.cells - given.cells // 2 + 1, "at most the cell in flight is repeated"
    assert third["computed"] == 0
    result = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "cells": given.cells,
        "cells_per_second": given.cells / 2 / first["seconds"],
        "memory_growth": {"first_half": growth(first["memory"]), "second_half": growth(second["memory"])},
        "bytes_at_the_end": second["memory"][-1]["bytes"],
        "peak_bytes_with_tables": second["peak_bytes"],
        "resume_seconds_half_done": second["open_seconds"] + second["scan_seconds"],
        "resume_seconds_all_done": third["open_seconds"],
        "tables_seconds": third["scan_seconds"],
        "make_cells_seconds": third["cells_made_seconds"],
        "store_bytes_per_cell": size / given.cells,
        "sessions": [first, second, third],
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "sessions"}, indent=1))


if __name__ == "__main__":
    main()
