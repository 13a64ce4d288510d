"""(h) Attention profiles of a long text: memory above the model, beside a loop of hooks on eager attention.

The loop is what people write when all maps at once do not fit: the eager model, a hook on every attention module
that averages its map and lets go of it, and an exception that leaves the model after the last layer asked for. Each
side runs in a process of its own; the peak is the largest resident memory during the call minus that before it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import Bench

CASE = """
import json, sys, time
from pathlib import Path
import numpy as np, torch
import headwise as hw

folder, way, tokens, layers, device = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
model = hw.load(folder, device=device, dtype="float32")
days = [f"On day {i} the river rose by {i * 7 % 31} feet and the town sent {i % 12} boats." for i in range(2000)]
whole = model.tokens(" ".join(days))
ids = (whole * (1 + tokens // len(whole)))[:tokens]
heads = [head for head in model.heads() if head.layer < layers]

class Enough(Exception):
    pass

def ours(ids):
    return hw.attention(model, [ids], heads)[0].profile

def loop(ids):
    later = torch.arange(len(ids) - 1, -1, -1, device=device).clamp_min(1)
    found = []
    def read(module, args, output):
        found.append(output[1][0].tril(-1).sum(1).div(later).cpu())
        if len(found) == layers:
            raise Enough
    handles = [block.self_attn.register_forward_hook(read) for block in model.hf.model.layers[:layers]]
    try:
        with torch.inference_mode():
            model.hf.model(input_ids=torch.tensor([ids], device=device), use_cache=False)
    except Enough:
        pass
    for handle in handles:
        handle.remove()
    return torch.cat(found).numpy()

def resident(field):
    (line,) = [l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(field + ":")]
    return int(line.split()[1]) / 1024

if way == "loop":
    model.hf.set_attn_implementation("eager")
work = ours if way == "ours" else loop
work(ids[:64])  # warm
if device == "cpu":
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
else:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() / 2**20
started = time.perf_counter()
profile = work(ids)
seconds = time.perf_counter() - started
peak = (resident("VmHWM") if device == "cpu" else torch.cuda.max_memory_allocated() / 2**20) - before
np.save(sys.argv[6], np.asarray(profile)[:, 1:-1])
print(json.dumps({"seconds": seconds, "peak_mb": peak, "heads": len(heads), "tokens": len(ids)}))
"""


def profiles(bench: Bench) -> dict[str, Any]:
    import tempfile

    import numpy as np

    sizes = bench.arguments
    with tempfile.TemporaryDirectory() as place:
        ways, found = {}, {}
        for way, name in (("ours", "headwise"), ("loop", "hook loop, eager maps")):
            file = Path(place) / f"{way}.npy"
            command = [sys.executable, "-c", CASE, bench.folder, way, str(sizes.long_tokens)]
            command += [str(sizes.long_layers), bench.device, str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
            ways[name] = json.loads(done.stdout.splitlines()[-1])
            found[name] = np.load(file, allow_pickle=False)
            print(
                f"  {name}: {ways[name]['seconds']:.1f} s, {ways[name]['peak_mb']:.0f} MB above the model",
                flush=True,
            )
    ours, loop = ways["headwise"], ways["hook loop, eager maps"]
    gap = float(np.abs(found["headwise"] - found["hook loop, eager maps"]).max())
    assert gap < 1e-4, f"profiles differ by {gap}"
    return {
        "work": f"profiles of {ours['heads']} heads (the first {sizes.long_layers} layers) at {ours['tokens']} tokens",
        "memory_ways": ways,
        "memory_ratio": loop["peak_mb"] / ours["peak_mb"],
        "ratio": loop["seconds"] / ours["seconds"],
        "largest_difference": gap,
        "maps_of_all_heads_mb": len(bench.model.heads()) * ours["tokens"] ** 2 * 4 / 2**20,
    }
