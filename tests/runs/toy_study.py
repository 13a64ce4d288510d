"""A small study whose numbers follow from its cells alone; as a program, it can die at a chosen point.

python toy_study.py RUN CELLS PAUSE [DIE_AT]
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from headwise.runs import Cell, CellResult, RunFolder, execute

TABLES = ("curves", "examples", "scores")


def make_cells(count: int, **settings: Any) -> list[Cell]:
    return [
        Cell("toy", f"model{i % 2}", "ioi", f"part {i}", {"seed": i, **settings}, {"weights": "abc"})
        for i in range(count)
    ]


def compute(cell: Cell) -> CellResult:
    random = np.random.default_rng(cell.settings["seed"])
    values = random.normal(size=(4, 3))  # examples, heads
    about = {"model": cell.model, "task": cell.task}
    scores = pd.DataFrame(
        {
            **about,
            "method": "noise",
            "layer": [0, 0, 1],
            "head": [0, 1, 0],
            "score": values.mean(axis=0),
            "stderr": values.std(axis=0) / 2,
            "lo": values.min(axis=0),
            "hi": values.max(axis=0),
            "n": 4,
            "p": 0.5,
            "q": np.nan,
            "part": cell.part,
        }
    )
    examples = pd.DataFrame(
        {**about, "series": "top", "k": 2, "example": range(4), "value": values[:, 0], "note": cell.part}
    )
    curves = pd.DataFrame(
        {**about, "series": "top", "action": "mask", "k": [0, 2], "metric": "logprob", "value": values[0, :2]}
        | {"lo": -1.0, "hi": 1.0, "n": 4}
    )
    tables = {"scores": scores, "examples": examples}
    if cell.settings["seed"] % 3 == 0:
        tables["curves"] = curves
    return CellResult(tables, {"rows": 12})


def run(
    path: Path, count: int, calculate: Callable[[Cell], CellResult] = compute, **options: Any
) -> RunFolder:
    with RunFolder(path, study="toy", settings={"count": count}, **options) as folder:
        execute(folder, make_cells(count), calculate, progress=False)
    return folder


def table_bytes(path: Path) -> dict[str, bytes]:
    return {name: (path / "tables" / f"{name}.parquet").read_bytes() for name in TABLES}


def _die_on_call(module: Any, name: str, number: int) -> None:
    """Kill this process, as the system would, when `module.name` is called for the given time."""
    original, calls = getattr(module, name), 0

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **named)

    setattr(module, name, counted)


def main(out: str, count: str, pause: str, die_at: str = "") -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born without it
    if die_at:
        module, name, number = die_at.split(":")
        _die_on_call(sys.modules[f"headwise.{module}"], name, int(number))

    def slowly(cell: Cell) -> CellResult:
        time.sleep(float(pause))
        print(cell.part, flush=True)
        return compute(cell)

    run(Path(out), int(count), slowly)


if __name__ == "__main__":
    main(*sys.argv[1:])
