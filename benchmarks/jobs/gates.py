"""(f) Learned gates: one update, from the benchmark of its own (`gating.py --part cost`)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench import Bench

SCRIPT = Path(__file__).parent.parent / "gating.py"


def gates(bench: Bench) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "cost.json"
        command = [sys.executable, str(SCRIPT), "--part", "cost", "--device", bench.device, "--out", str(out)]
        command += ["--dtype", "float32", "--threads", str(torch.get_num_threads())]
        command += ["--updates", str(bench.arguments.gate_updates)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        print("  " + done.stdout.strip().replace("\n", "\n  "), flush=True)
        cost = json.loads(out.read_text())["cost"]
    tasks = {name: one for name, one in cost.items() if isinstance(one, dict) and "ours_s" in one}
    return {
        "work": "one update of all gates, batch 8, against hooks with frozen weights and all logits",
        "tasks": tasks,
        "ratio": min(one["ratio"] for one in tasks.values()),
        "memory_ratio": min(one["memory_ratio"]["tensors"] for one in tasks.values()),
    }
