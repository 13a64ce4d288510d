"""How far numbers move when only the machine's way of adding them up changes.

    python benchmarks/reproducibility.py [--model smollm2] [--task ioi] [--examples 4] [--method ablation]

The same scores are computed again in the same process, with smaller and larger batches, with one thread and two, and
in bfloat16. Each is compared with the first: the largest difference of a head's score as a share of the largest score
(what `headwise verify` compares with its tolerance), the rank correlation over all heads, and how many of the first ten
heads are the same ones.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headwise as hw
from headwise import stats
from headwise.heads import Scores
from headwise.studies.verify import TOLERANCE

RESULTS = Path(__file__).parent / "results"


def compared(first: Scores, other: Scores) -> dict[str, Any]:
    """How far `other` is from `first`."""
    there = ~np.isnan(first.values)
    a, b = first.values[there], other.values[there]
    return {
        "identical": bool((first.examples[:, there] == other.examples[:, there]).all()),
        "largest_difference": float(np.abs(a - b).max() / np.abs(a).max()),
        "rank_correlation": round(float(stats.rank_correlation(a, b)), 6),
        "first_ten_shared": len(set(first.top(10, "absolute")) & set(other.top(10, "absolute"))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--task", default="ioi")
    parser.add_argument("--examples", type=int, default=4)
    parser.add_argument("--method", default="ablation")
    given = parser.parse_args()
    model = hw.load(given.model, device="cpu", dtype="float32")
    task = hw.task(given.task, given.examples, model=model)
    threads = torch.get_num_threads()

    def measured(label: str, batch_tokens: int = 8192, count: int = threads, on: Any = model) -> Scores:
        torch.set_num_threads(count)
        began = time.monotonic()
        found = hw.score(on, task, given.method, batch_tokens=batch_tokens)
        torch.set_num_threads(threads)
        print(f"{label}: {time.monotonic() - began:.1f} s", flush=True)
        return found

    first = measured("first")
    rows = {"the same again": compared(first, measured("again"))}
    for size in (256, 2048, 32768):
        rows[f"batch_tokens {size} instead of 8192"] = compared(first, measured(f"batch {size}", size))
    other = 1 if threads > 1 else 2
    rows[f"{other} thread{'s' * (other > 1)} instead of {threads}"] = compared(
        first, measured("threads", count=other)
    )
    half = hw.load(given.model, device="cpu", dtype="bfloat16")
    rows["bfloat16 instead of float32"] = compared(first, measured("bfloat16", on=half))
    result = {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "settings": vars(given),
        "tolerance_of_verify": TOLERANCE,
        "compared": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "reproducibility.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
