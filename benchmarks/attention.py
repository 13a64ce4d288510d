"""Attention profiles of a long text on the bundled model: peak memory above the model, time, and agreement.

    python benchmarks/attention.py [--tokens 8192] [--some-heads]

Each case runs in a process of its own. The peak is the largest resident memory during the call minus the resident
memory of the loaded model just before it. Beside it stands what the maps of those heads alone would take. At
a shorter length the profiles are compared with those of the eager model's maps, which fit into memory there.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import torch
import transformers

import headwise as hw

RESULTS = Path(__file__).parent / "results"

CASE = """
import json, time
from pathlib import Path
import numpy as np, torch
import headwise as hw

def resident(field):
    (line,) = [l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(field + ":")]
    return int(line.split()[1]) / 1024

model = hw.load("smollm2", device="cpu", dtype="float32")
days = [f"On day {{i}} the river rose by {{i * 7 % 31}} feet and the town sent {{i % 12}} boats." for i in range(2000)]
ids = model.tokens(" ".join(days))[:{tokens}]
heads = {heads!r}
hw.attention(model, [ids[:64]], heads)  # warm up
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before, started = resident("VmRSS"), time.perf_counter()
(found,) = hw.attention(model, [ids], heads)
seconds, peak = time.perf_counter() - started, resident("VmHWM") - before
result = {{"tokens": len(ids), "heads": len(found.heads), "seconds": seconds, "peak_mb": peak}}
result["maps_mb"] = len(found.heads) * len(ids) ** 2 * 4 / 2**20
if {compare}:
    model.hf.set_attn_implementation("eager")
    started = time.perf_counter()
    with torch.inference_mode():
        maps = model.hf(input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    gap = 0.0
    for place, (layer, head) in enumerate(found.heads):
        full = maps[layer][0, head].double().tril(-1).numpy()
        later = np.maximum(np.arange(len(ids))[::-1], 1)
        gap = max(gap, float(np.abs(full.sum(0)[1:-1] / later[1:-1] - found.profile[place, 1:-1]).max()))
    result |= {{"eager_seconds": time.perf_counter() - started, "largest_difference": gap}}
print(json.dumps(result))
"""


def case(name: str, tokens: int, heads: list[str] | None, compare: bool = False) -> dict[str, object]:
    code = CASE.format(tokens=tokens, heads=heads, compare=compare)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    result = {"case": name, **json.loads(done.stdout)}
    print(
        f"{name}: {result['heads']} heads, {result['tokens']} tokens, {result['seconds']:.1f} s, peak "
        f"{result['peak_mb']:.0f} MB above the model (their maps alone: {result['maps_mb']:.0f} MB)"
        + (f", largest difference from eager {result['largest_difference']:.1e}" if compare else ""),
        flush=True,
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument(
        "--some-heads", action="store_true", help="leave out the case of all 270 heads: minutes"
    )
    arguments = parser.parse_args()
    tokens = arguments.tokens
    one_layer = [f"L0H{head}" for head in range(9)]
    spread = [f"L{layer}H{layer % 9}" for layer in range(0, 30, 3)]
    cases = [
        case("agreement", 1024, spread, compare=True),
        case("first layer", tokens, one_layer),
        case("three layers", tokens, [f"L{layer}H{head}" for layer in range(3) for head in range(9)]),
    ]
    if not arguments.some_heads:
        cases.append(case("every head", tokens, None))
    result: dict[str, object] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, cpu",
        "versions": {
            "headwise": hw.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "cases": cases,
    }
    RESULTS.mkdir(exist_ok=True)
    result["largest_peak_mb"] = max(float(str(one["peak_mb"])) for one in cases)
    path = RESULTS / "attention.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path.relative_to(Path(__file__).parent.parent)}")


if __name__ == "__main__":
    main()
