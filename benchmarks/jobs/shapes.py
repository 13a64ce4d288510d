"""Exact ablation on the shapes of models: random weights in bfloat16, our engine against a loop of hooks.

Random weights serve for speed alone; that the numbers are right is shown on real ones. The rate is of operations
that are needed: rows run beside them for comparison, padding, logits nobody asked for, and what of the last layer
nobody reads are not counted. On a GPU ours runs plainly and with `compile=True`, which pays where the chip is full; the
ratio is of the faster, and what compiling took is kept beside it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

import headwise as hw
from bench import Bench
from common import Cost, in_turns, matrix_rate, peak_mb
from headwise.heads import Head, single_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.tasks import Example, Task
from jobs.ablation import spread, with_baseline
from ways.hooks import Hooks

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"width": 64, "inner": 128, "layers": 4, "heads": 4, "keys": 2, "vocabulary": 1_000},
    "SmolLM2-135M": {"width": 576, "inner": 1_536, "layers": 30, "heads": 9, "keys": 3, "vocabulary": 49_152},
    "Llama-3.2-1B": {
        "width": 2_048,
        "inner": 8_192,
        "layers": 16,
        "heads": 32,
        "keys": 8,
        "vocabulary": 128_256,
    },
    "Llama-3.1-8B": {
        "width": 4_096,
        "inner": 14_336,
        "layers": 32,
        "heads": 32,
        "keys": 8,
        "vocabulary": 128_256,
    },
}


def random_model(shape: dict[str, int], device: str, dtype: torch.dtype) -> Any:
    """A Llama of this shape, made on the device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=shape["width"],
        intermediate_size=shape["inner"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["keys"],
        vocab_size=shape["vocabulary"],
        max_position_embeddings=4_096,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            hf = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    hf.requires_grad_(False)
    return hf


def word_tokenizer() -> Any:
    """One token per word, w00 to w49: no special token begins another word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({f"w{i:02}": i for i in range(50)}, unk_token="w00"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="w00", eos_token="w01")


def word_task(examples: int, tokens: int) -> Task:
    """Prompts of so many words each, drawn by chance."""
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{i:02}" for i in draw.integers(2, 50, tokens)) for _ in range(examples)]
    return Task("words", tuple(Example(text, " w02", (" w03",)) for text in texts), "logit_diff")


def shapes(bench: Bench) -> dict[str, Any]:
    device, sizes = bench.device, bench.arguments
    rate = matrix_rate(device, torch.bfloat16)
    print(f"  measured matrix rate in bfloat16: {rate / 1e12:.2f} TFLOP/s", flush=True)
    cases = []
    for name in sizes.shapes:
        hf = random_model(SHAPES[name], device, torch.bfloat16)
        model = hw.load(hf, tokenizer=word_tokenizer(), name=name)
        began = time.perf_counter()
        compiles = device.startswith("cuda") and model.capabilities.compiled.works
        compile_s = time.perf_counter() - began
        hooks, cost = Hooks(hf), Cost(hf.config)
        for tokens in sizes.lengths:
            case = _case(bench, model, hooks, cost, name, tokens, rate, compiles)
            cases.append(case | {"compile_s": compile_s if compiles else None})
            bench.keep({"matrix_rate": rate, "cases": cases})
        del hf, model, hooks
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
    return {"matrix_rate": rate, "cases": cases}


def _case(
    bench: Bench,
    model: Any,
    hooks: Hooks,
    cost: Cost,
    name: str,
    tokens: int,
    rate: float,
    compiles: bool,
) -> dict[str, Any]:
    sizes, device = bench.arguments, bench.device
    task = word_task(sizes.shape_examples, tokens)
    engine = Engine(model, task, metric("logit_diff"))
    ids = torch.tensor([model.tokens(example.prompt) for example in task], device=device)
    layers = spread(model.shape[0], sizes.shape_layers)
    ours = [head for head in model.heads() if head.layer in layers]
    theirs = ours[:: max(1, len(ours) // sizes.shape_passes)]

    def loop(narrow: bool) -> np.ndarray:
        with torch.inference_mode():
            found = [hooks.logits(ids, [head], narrow)[:, [2, 3]] for head in theirs]
        return torch.stack([one[:, 0] - one[:, 1] for one in found]).double().cpu().numpy()

    def scored(compiled: bool) -> np.ndarray:
        model.compile = compiled
        return engine.measure(single_gates(ours, model.shape)).values

    for compiled in {False, compiles}:
        scored(compiled)  # warm: libraries choose their kernels by shape
    hooks.logits(ids, [Head(0, 0)], True)
    seconds, results = in_turns(
        {
            "headwise": [lambda: scored(False)],
            **({"headwise, compiled": [lambda: scored(True)]} if compiles else {}),
            "all logits": [lambda: loop(False)],
            "last logits": [lambda: loop(True)],
        },
        device,
    )
    needed, everything = (
        len(task) * cost.variants(with_baseline(single_gates(heads, model.shape)), tokens)
        for heads in (ours, model.heads())
    )
    per_head = {way: spent / len(theirs) for way, spent in seconds.items()}
    for way in [way for way in seconds if way.startswith("headwise")]:
        # For us a late head is cheaper than an early one, so operations are counted, not heads.
        per_head[way] = seconds[way] * everything / needed / len(model.heads())
    best = min((way for way in seconds if way.startswith("headwise")), key=lambda way: seconds[way])
    fastest = min(per_head["all logits"], per_head["last logits"])
    # Kept beside the spread of the values and not asserted: in bfloat16 two kernels round differently.
    mine = dict(zip(ours, results[best][0], strict=True))
    gap = max(
        float(np.abs(mine[h] - r).max()) for h, r in zip(theirs, results["last logits"][0], strict=True)
    )
    achieved = needed / seconds[best]
    case = {
        "shape": name,
        "tokens": tokens,
        "prompts": len(task),
        "heads_run": len(ours),
        "loop_heads_run": len(theirs),
        "headwise_ms_per_head": 1e3 * per_head["headwise"],
        "compiled_ms_per_head": 1e3 * per_head["headwise, compiled"] if compiles else None,
        "loop_all_logits_ms_per_head": 1e3 * per_head["all logits"],
        "loop_last_logits_ms_per_head": 1e3 * per_head["last logits"],
        "ratio": fastest / per_head[best],
        "tflops": achieved / 1e12,
        "share_of_matrix_rate": achieved / rate,
        "largest_difference": gap,
        "spread": float(results[best][0].std()),
        "peak_mb": peak_mb(lambda: scored(compiles), device) if device.startswith("cuda") else None,
    }
    print(
        f"  {name}, {tokens} tokens: hook loop {1e3 * fastest:.2f} ms, headwise {1e3 * per_head[best]:.2f} ms "
        f"per head, {case['ratio']:.2f}×, {case['tflops']:.2f} TFLOP/s ({case['share_of_matrix_rate']:.0%})",
        flush=True,
    )
    return case
