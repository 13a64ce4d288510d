"""Two checkouts of headwise on the same jobs, in turns: does a change make anything slower?

    python benchmarks/checkouts.py --old REVISION [--device cuda] [--rounds 5] [--jobs abdefg]

    a  exact ablation of every head     e  keep-only curve
    b  attribution                      f  three updates of learned gates
    d  ablation curve                   g  generation under masks

Uses public names alone, so that an older revision runs the same code. One process per checkout, with the same threads;
each does a job in its turn, so that a busy machine slows both. Printed is the median over rounds of new / old time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def worker(device: str) -> None:
    """Do the jobs that standard input names, one line each; answer with the seconds they took."""
    import numpy as np
    import torch

    import headwise as hw

    model = hw.load("smollm2", device=device, dtype="float32")
    task = hw.task("ioi", 8, model=model)
    order = hw.score(model, task, "attribution").order()
    masks = np.ones((8, *model.shape))
    for number, mask in enumerate(masks):
        for layer, head in order[number :: len(masks)][:8]:
            mask[layer, head] = 0
    prompts = [example.prompt for example in task]
    math = hw.task("math", 16, model=model)
    few: dict[str, Any] = {"k": list(range(0, 51, 5)), "controls": ()}
    jobs: dict[str, Callable[[], object]] = {
        "a": lambda: hw.score(model, task, "ablation"),
        "b": lambda: hw.score(model, math, "attribution", metric="logprob"),
        "d": lambda: hw.sweep(model, task, order, "mask", reference="zero", **few),
        "e": lambda: hw.sweep(model, task, order, "keep", reference="mean", **few),
        "f": lambda: hw.score(model, math, "gating", seeds=1, updates=1, batch=8, keep=1),
        "g": lambda: hw.generate(model, prompts, masks, max_new_tokens=6),
    }
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        jobs[line.strip()]()
        wait()
        print(time.perf_counter() - began, flush=True)


class Checkout:
    """A worker process over the sources of one checkout."""

    def __init__(self, root: Path, device: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(root / "src"), "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", "--device", device],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a worker ended early; its own message is above")
        return line.strip()

    def seconds(self, job: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(job + "\n")
        self.process.stdin.flush()
        return float(self._answer())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", help="a git revision")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", default="abdefg")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.device)
        return
    with tempfile.TemporaryDirectory() as place:
        old_root = Path(place) / "old"
        subprocess.run(
            ["git", "-C", ROOT, "worktree", "add", "-q", "--detach", old_root, given.old], check=True
        )
        try:
            old, new = Checkout(old_root, given.device), Checkout(ROOT, given.device)
            found = {}
            for job in given.jobs:
                old.seconds(job), new.seconds(job)  # first times load and compile
                pairs = [(old.seconds(job), new.seconds(job)) for _ in range(given.rounds)]
                ratios = [after / before for before, after in pairs]
                found[job] = statistics.median(ratios)
                print(
                    f"{job}: new / old {found[job]:.3f} ({min(ratios):.3f} to {max(ratios):.3f}), "
                    f"{statistics.median(before for before, _ in pairs):.2f} s before",
                    flush=True,
                )
            print(json.dumps(found))
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", old_root], check=True)


if __name__ == "__main__":
    main()
