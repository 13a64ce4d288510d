"""Time and memory of loading a GGUF file: the first load, which converts it, and later ones.

    python benchmarks/loading.py MODEL.gguf [--dtype bfloat16] [--repeats 3] [--cache FOLDER]

Each load is a process of its own. Seconds include the imports. Memory is the peak of the resident set, in which pages
of mapped files count, and of its anonymous part. With `--cache` a folder is used that may have the conversion already.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

CHILD = """
import json, resource, sys, threading, time
began, peak = time.perf_counter(), [0]
def watch():
    while True:
        lines = open("/proc/self/status").read().splitlines()
        peak[0] = max(peak[0], *(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))
        time.sleep(0.02)
threading.Thread(target=watch, daemon=True).start()
import headwise as hw
model = hw.load(sys.argv[1], dtype=sys.argv[2], device="cpu")
seconds = time.perf_counter() - began
weights = sum(p.numel() * p.element_size() for p in model.hf.parameters())
print(json.dumps({
    "seconds": seconds, "cpu_seconds": time.process_time(), "proof_seconds": model.proof.seconds,
    "peak_rss_over_weights": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / weights,
    "peak_anonymous_over_weights": 1024 * peak[0] / weights, "weights_gb": weights / 1e9,
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cache")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "HEADWISE_CACHE": asked.cache or empty}
        loads = []
        for _ in range(1 + asked.repeats):
            before = os.getloadavg()[0]
            command = [sys.executable, "-c", CHILD, asked.model, asked.dtype]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            loads.append({**json.loads(done.stdout.splitlines()[-1]), "load_before": before})
    print(json.dumps({"first": loads[0], "later": loads[1:]}, indent=1))


if __name__ == "__main__":
    main()
