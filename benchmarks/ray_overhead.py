"""A study on Ray workers against the same study in one process: what the workers cost, and what a second one brings.

    python benchmarks/ray_overhead.py [--examples 20] [--growth-examples 6] [--out benchmarks/results/ray.json]

The study is `score`: exact ablation on several tasks with the bundled model, over three minutes in one process with the
defaults; the pair that shows growth has fewer examples. Four runs, one after the other, each in a process of its own,
from the command's start to its end (loading, starting the cluster and drawing included):

- local with all cores, and Ray with one worker of as many: their ratio is the overhead;
- Ray with one worker of one core, and with two of one core each: their ratio is the growth.

The tables of each pair must be equal to the byte. Then the load of the one process that writes is measured with stub
cells that cost nothing, and bytes per cell from the real run: with both, what 1,000 workers would ask of it is
arithmetic, and the result says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

RESULTS = Path(__file__).parent / "results"
TASKS = ("ioi", "greater_than", "syntax", "recall")
METHODS = ("ablation",)
STUBS = 2_000
WORKERS = 1_000


def study(place: Path, given: argparse.Namespace, examples: int, threads: int, *engine: str) -> float:
    """Seconds of one whole command."""
    command = [sys.executable, "-m", "headwise", "run", "score", "--out", str(place), "--model", "smollm2"]
    command += ["--device", "cpu", "--set", f"n={examples}", *engine]
    command += ["--set", f"methods=[{','.join(given.methods)}]"]
    for task in given.tasks:
        command += ["--task", task]
    began = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    return time.perf_counter() - began


def tables(place: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((place / "tables").iterdir())}


def moved(place: Path) -> dict[str, float]:
    """Bytes that a cell sends to a worker (its text) and back (its tables and notes), on average."""
    from headwise.runs import Store

    with Store(place / "cells.sqlite") as store:
        run = store._connection.execute
        cells, there, notes, seconds = run(
            "SELECT count(*), sum(length(cell)), sum(length(notes)), sum(seconds) FROM cells"
        ).fetchone()
        (back,) = run("SELECT sum(length(data)) FROM blobs").fetchone()
    return {
        "cells": cells,
        "to_worker": there / cells,
        "from_worker": (back + notes) / cells,
        "seconds": seconds / cells,
    }


def driver_load(place: Path) -> dict[str, float]:
    """Seconds of this process that a cell takes, from handing it out to its full sync, with one busy worker."""
    import numpy as np
    import pandas as pd

    from headwise.runs import Job, RunFolder, compute, step
    from headwise.runs.ray_executor import RayExecutor

    @step(cost=lambda draw: 1)
    def stub(job: Job, draw: int) -> pd.DataFrame:
        columns = {"model": "m", "task": "t", "method": "stub", "layer": 0, "head": 0, "metric": "stub"}
        return pd.DataFrame(columns | {"example": np.arange(1_000), "value": np.sin(np.arange(1_000.0))})

    with RayExecutor(workers=2, cores_per_worker=1, progress=False) as executor:
        with RunFolder(place / "warm", study="stub") as folder:
            folder.executor = executor
            compute(folder, {i: stub(i) for i in range(20)})
        began, cpu = time.perf_counter(), time.process_time()
        with RunFolder(place / "stub", study="stub") as folder:
            folder.executor = executor
            compute(folder, {i: stub(i) for i in range(STUBS)})
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"cells": STUBS, "driver_cpu_seconds_per_cell": cpu / STUBS, "wall_seconds_per_cell": wall / STUBS}


def on_paper(bytes_moved: dict[str, float], load: dict[str, float]) -> dict[str, object]:
    """What 1,000 workers would ask of the one process that writes, if each cell took as long as in the study."""
    per_second = WORKERS / bytes_moved["seconds"]
    most = 1 / max(load["driver_cpu_seconds_per_cell"], load["wall_seconds_per_cell"])
    return {
        "workers": WORKERS,
        "seconds_per_cell": bytes_moved["seconds"],
        "cells_per_second": per_second,
        "megabytes_per_second": per_second * (bytes_moved["to_worker"] + bytes_moved["from_worker"]) / 1e6,
        "driver_cores_busy": per_second * load["driver_cpu_seconds_per_cell"],
        "cells_per_second_the_driver_can_take": most,
        "workers_the_driver_can_feed": most * bytes_moved["seconds"],
        "note": "arithmetic from the numbers above, not a measurement on 1,000 workers",
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--growth-examples", type=int, default=6)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--out", type=Path, default=RESULTS / "ray.json")
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    ray = ("--engine", "ray", "--workers")
    with TemporaryDirectory() as folder:
        place = Path(folder)
        full, few, alone = given.examples, given.growth_examples, ("--cores-per-worker", "1")
        seconds = {
            f"local, {cores} threads": study(place / "local", given, full, cores),
            f"ray, 1 worker with {cores} cores": study(
                place / "ray", given, full, cores, *ray, "1", "--cores-per-worker", str(cores)
            ),
            "ray, 1 worker with 1 core": study(place / "one", given, few, 1, *ray, "1", *alone),
            "ray, 2 workers with 1 core each": study(place / "two", given, few, 1, *ray, "2", *alone),
        }
        pairs = (("local", "ray"), ("one", "two"))
        equal = all(tables(place / first) == tables(place / second) for first, second in pairs)
        bytes_moved = moved(place / "ray")
        load = driver_load(place)
    local, same, one, two = seconds.values()
    result = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {cores} cores, Python {platform.python_version()}",
        "study": {"tasks": given.tasks, "methods": given.methods, "n": given.examples, "model": "smollm2"},
        "growth_n": given.growth_examples,
        "seconds": seconds,
        "tables_equal": equal,
        "overhead": same / local - 1,
        "growth_from_1_to_2_workers": one / two,
        "bytes_per_cell": bytes_moved,
        "driver": load,
        "on_paper": on_paper(bytes_moved, load),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    assert equal, "the tables differ"


if __name__ == "__main__":
    main()
