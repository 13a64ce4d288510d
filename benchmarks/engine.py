"""Exact ablation of every head of the bundled model: our engine against a plain loop of hooks and full passes.

    make bench                          or: python benchmarks/engine.py [--examples 16] [--layers 30]

Both do the same work on the same prompts in the same process, in three alternating turns, so that a busy
machine slows both alike; the ratio is of the summed times. The values must agree to 1e-4. Then the peak
memory of scoring is measured for growing vocabularies and lengths: it follows the tokens, not
vocabulary × length.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import torch
import transformers

import headwise as hw
from headwise.heads import Head, single_gates
from headwise.metrics import metric
from headwise.model.encode import batch_of
from headwise.model.engine import Engine
from headwise.model.load import Model

RESULTS = Path(__file__).parent / "results"


def hook_loop(model: Model, batch: dict[str, torch.Tensor], heads: list[Head]) -> np.ndarray:
    """What people write by hand: one full forward pass over the whole batch per head."""
    size = model.reach.sites[0].head_dim
    rows = torch.arange(len(batch["ids"]), device=model.device)
    values = []
    for layer, head in heads:
        projection = model.hf.model.layers[layer].self_attn.o_proj

        def off(_: torch.nn.Module, args: tuple[torch.Tensor], head: int = head) -> tuple[torch.Tensor]:
            z = args[0].clone()
            z[..., head * size : (head + 1) * size] = 0
            return (z,)

        handle = projection.register_forward_pre_hook(off)
        logits = model.hf(input_ids=batch["ids"], use_cache=False).logits
        handle.remove()
        last = logits[rows, batch["positions"][:, 0]].float()
        values.append(
            (last[rows, batch["rights"][:, 0, 1]] - last[rows, batch["wrongs"][:, 0, 1]]).cpu().numpy()
        )
    return np.stack(values)


def ablation(model: Model, examples: int, layers: int) -> dict[str, float]:
    task = hw.task("ioi", examples, tokens=model.tokens)
    engine = Engine(model, task, metric("logit_diff"))
    batch = {name: t.to(model.device) for name, t in batch_of(engine.rows).items()}
    # Layers in three interleaved sets, so that both meet the same mix of early and late layers at each turn.
    groups = [[h for h in model.heads() if h.layer < layers and h.layer % 3 == turn] for turn in range(3)]
    ours = theirs = gap = 0.0
    with torch.inference_mode():
        hook_loop(model, batch, groups[0][:1])  # warm up both
        engine.measure(single_gates(groups[-1][:1], model.shape))
        for heads in groups:
            started = time.perf_counter()
            expected = hook_loop(model, batch, heads)
            theirs += time.perf_counter() - started
            started = time.perf_counter()
            values = engine.measure(single_gates(heads, model.shape)).values
            ours += time.perf_counter() - started
            gap = max(gap, float(np.abs(values - expected).max()))
    assert gap < 1e-4, f"values differ by {gap}"
    count = sum(map(len, groups))
    print(f"{count} heads × {examples} prompts: hook loop {theirs:.1f} s, headwise {ours:.1f} s, ", end="")
    print(f"ratio {theirs / ours:.2f}, largest difference {gap:.1e}")
    return {"hook_loop_s": theirs, "headwise_s": ours, "ratio": theirs / ours, "largest_difference": gap}


MEMORY = """
import resource, sys
import numpy as np, torch
import headwise as hw
from headwise.heads import single_gates
from headwise.metrics import metric
from headwise.model.engine import Engine
from headwise.model.tiny import tiny_model
from headwise.tasks import Example, Task
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
torch.set_num_threads(1)
words = [f"w{{i}}" for i in range(50)]
backend = Tokenizer(models.WordLevel({{w: i for i, w in enumerate(words)}}, unk_token="w0"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="w0", eos_token="w1")
hf = tiny_model("llama", vocab_size={vocabulary}, max_position_embeddings=4096)
model = hw.load(hf, tokenizer=tokenizer)
draw = np.random.default_rng(0)
texts = [" ".join(draw.choice(words, {length})) for _ in range(4)]
task = Task("long", tuple(Example(t, " w2", (" w3",)) for t in texts))
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
Engine(model, task, metric("logit_diff"), batch_tokens=8 * {length}).measure(single_gates(model.heads(), model.shape))
print(peak() - before)
"""


def memory() -> list[dict[str, float]]:
    """Peak memory of scoring above the loaded model, each in a process of its own."""
    rows = []
    for vocabulary in (1_000, 50_000, 200_000):
        for length in (128, 512):
            code = MEMORY.format(vocabulary=vocabulary, length=length)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            full_logits = 8 * length * vocabulary * 4 / 2**20
            rows.append(
                {
                    "vocabulary": vocabulary,
                    "tokens": length,
                    "peak_mb": float(done.stdout),
                    "full_logits_mb": full_logits,
                }
            )
            print(
                f"vocabulary {vocabulary:>7}, {length} tokens: peak {float(done.stdout):6.0f} MB above the model; ",
                end="",
            )
            print(f"all logits of the batch would be {full_logits:6.0f} MB")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--no-memory", action="store_true")
    arguments = parser.parse_args()
    model = hw.load("smollm2", dtype="float32")  # so that the values can be compared to 1e-4 on any device
    result = {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, {model.device}",
        "versions": {
            "headwise": hw.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "examples": arguments.examples,
        "layers": arguments.layers,
        "ablation": ablation(model, arguments.examples, arguments.layers),
    }
    if not arguments.no_memory:
        result["memory"] = memory()
    result["peak_process_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"engine-{model.device.type}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path.relative_to(Path(__file__).parent.parent)}")


if __name__ == "__main__":
    main()
