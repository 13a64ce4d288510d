"""Text under masks: our batch of variants × prompts against what people write by hand with hooks.

    python benchmarks/masking.py [--variants 8] [--prompts 16] [--tokens 16] [--rounds 2] [--equal 200] [--device cuda]

Three ways write the same texts, in the same process, turn by turn, so that a busy machine slows all alike:
one prompt at a time with hooks and transformers' `generate`; the same batched over prompts, mask by mask;
and `hw.generate`, masks and prompts at once. Throughput is tokens written per second. The slow first way
takes one mask per round; the others all of them. Texts must agree; in float32 a difference is allowed only
where the two best logits are within 1e-4, and is counted.

First, with every gate at 1, as many prompts as `--equal` says are written on from by transformers' `generate` one by
one and by `hw.generate` one by one and in one batch; token by token the three must be the same, ties excepted.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import torch
import transformers

import headwise as hw
from headwise.heads import Head, mask_gates
from headwise.model.load import Model

RESULTS = Path(__file__).parent / "results"
PLACES = (
    "France Italy Spain Japan Egypt Peru Kenya Norway Greece Poland Cuba Chile Iran Iraq Nepal Ghana".split()
)
Texts = list[list[int]]
TIE = 1e-4
"""Two best logits nearer than this are a tie: rounding decides."""


@contextmanager
def hooked(model: Model, heads: list[Head]) -> Iterator[None]:
    """The mask as people write it: columns of each output projection's input set to 0."""
    size = model.reach.sites[0].head_dim
    handles = []
    for layer in {head.layer for head in heads}:
        columns = [head.head * size + i for head in heads if head.layer == layer for i in range(size)]

        def off(
            _: torch.nn.Module, args: tuple[torch.Tensor], columns: list[int] = columns
        ) -> tuple[torch.Tensor]:
            z = args[0].clone()
            z[..., columns] = 0
            return (z,)

        projection = model.hf.model.layers[layer].self_attn.o_proj
        handles.append(projection.register_forward_pre_hook(off))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def by_transformers(model: Model, prompts: list[list[int]], count: int) -> Texts:
    """Greedy texts of a left-padded batch, without end tokens."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    written = model.hf.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=count, pad_token_id=0
    )
    ends = model.hf.generation_config.eos_token_id
    ends = set(ends) if isinstance(ends, list) else {ends}
    texts = []
    for row in written[:, width:].tolist():
        stop = next((place for place, token in enumerate(row) if token in ends), len(row))
        texts.append(row[:stop])
    return texts


def gap_at_first_difference(
    model: Model, prompt: list[int], heads: list[Head], a: list[int], b: list[int]
) -> float:
    """How far apart the two best logits are where two texts part."""
    shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    ids = torch.tensor([prompt + a[:shared]], device=model.device)
    with hooked(model, heads), torch.no_grad():
        best = model.hf(input_ids=ids, use_cache=False).logits[0, -1].float().topk(2).values
    return float(best[0] - best[1])


def compare_with_transformers(model: Model, count: int, tokens: int) -> dict[str, int]:
    """How many of `count` real prompts are continued otherwise than by transformers alone, and how many at ties."""
    texts = [example.prompt for example in hw.task("abilities", count, model=model)]
    prompts = [model.tokens(text) for text in texts]
    theirs = [by_transformers(model, [prompt], tokens)[0] for prompt in prompts]
    ways = {
        "alone": [hw.generate(model, [text], max_new_tokens=tokens).tokens[0][0] for text in texts],
        "batched": hw.generate(model, texts, max_new_tokens=tokens).tokens[0],
    }
    found = {"prompts": count, "tokens": sum(map(len, theirs))}
    for way, ours in ways.items():
        parted = [e for e in range(count) if ours[e] != theirs[e]]
        gaps = [gap_at_first_difference(model, prompts[e], [], ours[e], theirs[e]) for e in parted]
        found |= {f"different_{way}": len(parted), f"tied_{way}": sum(gap < TIE for gap in gaps)}
        print(
            f"{count} prompts {way}: {len(parted)} differ from transformers, {found[f'tied_{way}']} at tied logits"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--masked", type=int, default=8, help="heads taken away by each mask")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--equal", type=int, default=200, help="prompts compared with transformers; 0 for none"
    )
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    arguments = parser.parse_args()
    model = hw.load("smollm2", device=arguments.device, dtype=arguments.dtype)
    equal = compare_with_transformers(model, arguments.equal, arguments.tokens) if arguments.equal else None
    texts = [
        f"{'Here is a short question. ' * (i % 3)}The capital of {PLACES[i % len(PLACES)]} is"
        for i in range(arguments.prompts)
    ]
    prompts = [model.tokens(text) for text in texts]
    draw, heads = np.random.default_rng(0), model.heads()
    masks = [
        [heads[i] for i in draw.choice(len(heads), arguments.masked, replace=False)]
        for _ in range(arguments.variants)
    ]
    gates = np.stack([mask_gates(mask, model.shape) for mask in masks])

    def alone(variant: int) -> list[Texts]:
        with hooked(model, masks[variant]):
            return [[by_transformers(model, [prompt], arguments.tokens)[0] for prompt in prompts]]

    def batched() -> list[Texts]:
        found = []
        for mask in masks:
            with hooked(model, mask):
                found.append(by_transformers(model, prompts, arguments.tokens))
        return found

    def ours() -> list[Texts]:
        return hw.generate(model, texts, gates, max_new_tokens=arguments.tokens).tokens

    spent = {"one prompt at a time": [0.0, 0], "batched over prompts": [0.0, 0], "headwise": [0.0, 0]}

    def timed(way: str, write: Callable[[], list[Texts]]) -> list[Texts]:
        started = time.perf_counter()
        found = write()
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        spent[way][0] += time.perf_counter() - started
        spent[way][1] += sum(len(text) for several in found for text in several)
        return found

    hw.generate(model, texts[:2], gates[:1], max_new_tokens=2)  # warm up both
    by_transformers(model, prompts[:2], 2)
    ties = different = 0
    for number in range(arguments.rounds):
        variant = number % len(masks)
        single = timed("one prompt at a time", lambda variant=variant: alone(variant))[0]
        loop = timed("batched over prompts", batched)
        mine = timed("headwise", ours)
        pairs = [(variant, e, single[e]) for e in range(len(prompts))]
        pairs += [(v, e, loop[v][e]) for v in range(len(masks)) for e in range(len(prompts))]
        for v, e, other in pairs:
            if mine[v][e] != other:
                gap = gap_at_first_difference(model, prompts[e], masks[v], mine[v][e], other)
                ties, different = ties + (gap < TIE), different + 1
    if model.dtype == torch.float32:
        for way in ("alone", "batched") if equal else ():
            assert equal[f"different_{way}"] == equal[f"tied_{way}"], f"{way}: texts differ without a tie"
        assert different == ties, f"{different - ties} texts differ where logits are not tied"
    rates = {way: tokens / seconds for way, (seconds, tokens) in spent.items()}
    for way, rate in rates.items():
        print(f"{way:<22}{rate:10.1f} tokens/s   headwise is {rates['headwise'] / rate:5.2f}×")
    print(f"{different} texts differ, {ties} of them at tied logits")
    result = {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, {model.device}, {model.dtype}",
        "versions": {
            "headwise": hw.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "settings": {name: value for name, value in vars(arguments).items() if value is not None},
        "tokens_per_second": rates,
        "different": different,
        "tied": ties,
        "equal_to_transformers": equal,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"masking-{model.device.type}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path.relative_to(Path(__file__).parent.parent)}")


if __name__ == "__main__":
    main()
