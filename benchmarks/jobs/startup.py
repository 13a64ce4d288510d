"""How long the command line takes to answer: `headwise --help`, and `headwise check` with a warm cache."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from bench import Bench
from common import timed


def startup(bench: Bench) -> dict[str, Any]:
    """The best of five for the help, of two for the check, each in a new process."""
    found: dict[str, Any] = {}
    for name, arguments, times in (
        ("help_s", ["--help"], 5),
        ("check_s", ["check", bench.folder, "--device", bench.device], 2),
    ):
        command = [sys.executable, "-m", "headwise", *arguments]
        found[name] = min(timed(lambda c=command: _run(c))[0] for _ in range(times))
    print(f"  --help {found['help_s']:.2f} s, check {found['check_s']:.1f} s", flush=True)
    return {"work": "start-up of the command line, best of several new processes", **found}


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-2000:]
