"""Decoding with a KV cache of which most heads store the first and the last tokens only: memory and speed.

    python benchmarks/streaming.py --shape 8b --device cuda --out FILE
    python benchmarks/streaming.py --shape 135m --tokens 1024 --batch 1          two cores

Random weights of a known shape: speed and memory do not depend on what the weights say. As many key/value heads, spread
evenly over the layers, keep everything as give about the asked share of the cache at the largest length. *dynamic* is
transformers' own cache, *full* ours with every head kept, so that what the layout of the memory brings is not taken for
what streaming brings. Rounds alternate between the three; the median over rounds of milliseconds per step is written.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import headwise as hw
from common import RESULTS, about, write

SHAPES: dict[str, dict[str, int]] = {
    "8b": {
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256,
    },
    "135m": {
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
        "hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152,
    },
}  # fmt: skip
SINK, WINDOW, CHUNK = 4, 64, 1024


def far_heads(shape: dict[str, int], share: float, tokens: int) -> list[str]:
    """Heads to keep, one query head of each chosen key/value head, so that about `share` of the cache is stored."""
    layers, groups = shape["num_hidden_layers"], shape["num_key_value_heads"]
    total, short = layers * groups, min(1.0, (SINK + WINDOW) / tokens)
    count = max(0, round(total * (share - short) / (1 - short))) if short < 1 else total
    size = shape["num_attention_heads"] // groups
    places = [int(index * total / count) for index in range(count)]
    return [f"L{place // groups}H{place % groups * size}" for place in places]


def nbytes(cache: Any) -> int:
    return sum(
        getattr(layer, "nbytes", None) or layer.keys.nbytes + layer.values.nbytes for layer in cache.layers
    )


def decode(
    model: Any, ids: torch.Tensor, heads: list[str] | None, batches: list[int], steps: int
) -> dict[int, tuple[float, int]]:
    """By batch: median ms of a step after the prompt `ids[1, T]`, and bytes of the cache; heads None: dynamic.

    The prompt is read once, and its cache repeated for each row: what is stored changes neither speed nor memory.
    """

    def wait() -> None:
        if ids.device.type == "cuda":
            torch.cuda.synchronize()

    found = {}
    with ExitStack() as stack, torch.inference_mode():
        if heads is None:
            from transformers import DynamicCache

            cache: Any = DynamicCache()
        else:
            cache = stack.enter_context(model.streaming(heads, sink=SINK, window=WINDOW))
        for low in range(0, ids.shape[1], CHUNK):
            model.hf(
                input_ids=ids[:, low : low + CHUNK], past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        rows = 1
        for batch in sorted(batches):
            cache.batch_repeat_interleave(batch // rows)
            rows, times = batch, []
            for _ in range(steps):
                wait()
                began = time.perf_counter()
                model.hf(input_ids=ids[:, :1].expand(batch, 1), past_key_values=cache, use_cache=True)
                wait()
                times.append(1000 * (time.perf_counter() - began))
            found[batch] = statistics.median(times[steps // 4 :]), nbytes(cache)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--share", type=float, default=0.15)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    from transformers import LlamaConfig, LlamaForCausalLM

    dtype = torch.bfloat16 if asked.device == "cuda" else torch.float32
    shape = SHAPES[asked.shape]
    lengths = asked.tokens or [1024, 8192, 32768]
    with torch.device(asked.device):
        torch.set_default_dtype(dtype)
        hf = LlamaForCausalLM(LlamaConfig(**shape, max_position_embeddings=max(lengths) + 256)).eval()
        torch.set_default_dtype(torch.float32)
    model = hw.load(hf, name=asked.shape)
    layers, size = shape["num_hidden_layers"], shape["num_attention_heads"]
    every = [f"L{layer}H{head}" for layer in range(layers) for head in range(size)]
    heads = far_heads(shape, asked.share, max(lengths))
    kept = len(heads) / (layers * shape["num_key_value_heads"])
    out = asked.out or RESULTS / f"streaming-{asked.device}-{asked.shape}.json"
    batches = sorted(asked.batch or [1, 8])
    result: dict[str, Any] = {
        **about(model.device, model.dtype),
        "shape": asked.shape,
        "kept_heads": kept,
        "rows": [],
    }
    for tokens in lengths:
        ids = torch.randint(0, shape["vocab_size"], (1, tokens), device=asked.device)
        kinds: dict[str, list[str] | None] = {"dynamic": None, "full": every, "streaming": heads}
        runs: dict[str, list[dict[int, tuple[float, int]]]] = {name: [] for name in kinds}
        for _ in range(asked.rounds):
            for name, kind in kinds.items():
                runs[name].append(decode(model, ids, kind, batches, asked.steps))
                if asked.device == "cuda":
                    torch.cuda.empty_cache()
        for place, batch in enumerate(batches):
            ms = {name: statistics.median(run[batch][0] for run in some) for name, some in runs.items()}
            memory = {name: some[0][batch][1] for name, some in runs.items()}
            cached = tokens + asked.steps * (place + 1)
            formula = kept * cached + (1 - kept) * min(cached, SINK + WINDOW)
            row = {
                "tokens": tokens,
                "batch": batch,
                "ms": {name: round(value, 3) for name, value in ms.items()},
                "bytes": memory,
                "formula_share": formula / cached,
            }
            row["faster_than_dynamic"] = ms["dynamic"] / ms["streaming"]
            row["faster_than_full"] = ms["full"] / ms["streaming"]
            result["rows"].append(row)
            print(row, flush=True)
            write(out, result)


if __name__ == "__main__":
    main()
