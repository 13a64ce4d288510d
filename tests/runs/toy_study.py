"""A small study whose numbers follow from its calls alone; as a program, it can die at a chosen point.

python toy_study.py RUN PARTS PAUSE [DIE_AT]
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from headwise.runs import Call, Job, RunFolder, step
from headwise.studies.run import Run

TABLES = ("curves", "examples", "scores")
Tables = dict[str, pd.DataFrame]
hooks: Any = SimpleNamespace(before=None, change=None)
"""What tests do before a part is computed, and to its tables."""


@step(cost=lambda **_: 1, label="part {number} on ioi with {model}")
def part(job: Job, number: int, model: str) -> Tables:
    if hooks.before:
        hooks.before(number)
    tables = tables_of(number, model)
    if hooks.change:
        hooks.change(number, tables)
    return tables


def tables_of(number: int, model: str) -> Tables:
    values = np.random.default_rng(number).normal(size=(4, 3))  # examples, heads
    names = {"model": model, "task": "ioi"}
    scores = pd.DataFrame(
        {
            **names,
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
            "part": f"part {number}",
        }
    )
    examples = pd.DataFrame(
        {
            **names,
            "series": "top",
            "k": 2,
            "example": range(4),
            "value": values[:, 0],
            "note": f"part {number}",
        }
    )
    curves = pd.DataFrame(
        {**names, "series": "top", "action": "mask", "k": [0, 2], "metric": "logprob", "value": values[0, :2]}
        | {"lo": -1.0, "hi": 1.0, "n": 4}
    )
    return {"scores": scores, "examples": examples} | ({"curves": curves} if number % 3 == 0 else {})


def calls(count: int, first: int = 0) -> dict[int, Call[Tables]]:
    return {i: part(i, f"model{i % 2}") for i in range(first, count)}


def carry_out(folder: RunFolder, *stages: dict[int, Call[Tables]], progress: bool = False) -> None:
    """Compute the calls of one stage after the other, and write the tables."""
    toy = Run(None, SimpleNamespace(progress=progress), folder)  # type: ignore[arg-type]
    for stage in stages:
        for tables in toy.all(stage, "toy").values():
            toy.tables(tables)
    toy.write_tables()


def run(
    path: Path,
    count: int,
    before: Callable[[int], Any] | None = None,
    change: Callable[[int, Tables], Any] | None = None,
    executor: Any = None,
    **options: Any,
) -> RunFolder:
    hooks.before, hooks.change = before, change
    try:
        with RunFolder(path, study="toy", settings={"count": count}, **options) as folder:
            folder.executor = executor
            carry_out(folder, calls(count))
    finally:
        hooks.before = hooks.change = None
    return folder


def table_bytes(path: Path) -> dict[str, bytes]:
    return {name: (path / "tables" / f"{name}.parquet").read_bytes() for name in TABLES}


def _die_on_call(module: Any, name: str, number: int) -> None:
    """Kill this process, as the system would, when `module.name` is called for the given time."""
    original, count = getattr(module, name), 0

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **named)

    setattr(module, name, counted)


def main(out: str, count: str, pause: str, die_at: str = "") -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born without it
    if die_at:
        module, name, number = die_at.split(":")
        _die_on_call(sys.modules[f"headwise.{module}"], name, int(number))

    def slowly(number: int) -> None:
        time.sleep(float(pause))
        print(f"part {number}", flush=True)

    run(Path(out), int(count), slowly)


if __name__ == "__main__":
    main(*sys.argv[1:])
