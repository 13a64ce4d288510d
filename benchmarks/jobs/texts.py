"""(g) Texts under 40 masks: one prompt at a time with hooks, batched over prompts, and masks × prompts at once.

Texts must agree; in float32 a difference is allowed only where the two best logits are within 1e-4, and is counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import headwise as hw
from bench import Bench, summary
from common import in_turns
from headwise.heads import Head, mask_gates
from ways.hooks import Hooks
from ways.hooks import load as load_hooks

PLACES = (
    "France Italy Spain Japan Egypt Peru Kenya Norway Greece Poland Cuba Chile Iran Iraq Nepal Ghana".split()
)
Texts = list[list[int]]
TIE = 1e-4
"""Two best logits nearer than this are a tie: rounding decides."""


def texts(bench: Bench) -> dict[str, Any]:
    """The batched loop runs every fourth mask, the loop over prompts one or two: each mask costs them the same."""
    sizes, model = bench.arguments, bench.model
    hooks: Hooks = load_hooks(bench.folder, bench.device, bench.dtype)
    written = [
        f"{'Here is a short question. ' * (i % 3)}The capital of {PLACES[i % len(PLACES)]} is"
        for i in range(sizes.text_prompts)
    ]
    prompts = [model.tokens(text) for text in written]
    draw, heads = np.random.default_rng(0), model.heads()
    masks = [
        [heads[i] for i in draw.choice(len(heads), min(8, len(heads) // 2), replace=False)]
        for _ in range(sizes.masks)
    ]
    gates = np.stack([mask_gates(mask, model.shape) for mask in masks])
    count = sizes.text_tokens
    hw.generate(model, written[:2], gates[:1], max_new_tokens=2)  # warm
    by_transformers(hooks, prompts[:2], 2)
    every = list(range(len(masks)))
    some = every[:: min(4, len(masks))]
    turns = 2

    def ours(which: list[int]) -> dict[int, Texts]:
        found = hw.generate(model, written, gates[which], max_new_tokens=count).tokens
        return dict(zip(which, found, strict=True))

    def batched(which: list[int]) -> dict[int, Texts]:
        found = {}
        for mask in which:
            with hooks.without(masks[mask]):
                found[mask] = by_transformers(hooks, prompts, count)
        return found

    def alone(which: list[int]) -> dict[int, Texts]:
        found = {}
        for mask in which:
            with hooks.without(masks[mask]):
                found[mask] = [by_transformers(hooks, [prompt], count)[0] for prompt in prompts]
        return found

    first = every[: sizes.text_alone]
    ways = {
        "headwise": [lambda: ours(every)],
        "hook loop over prompts": [lambda p=part: alone(p) for part in _parts(first, turns)],
        "hook loop, prompts batched": [lambda p=part: batched(p) for part in _parts(some, turns)],
    }
    seconds, results = in_turns(ways, bench.device)
    values = {name: {k: v for part in parts for k, v in part.items()} for name, parts in results.items()}
    found = summary(
        seconds,
        {name: len(run) / len(masks) for name, run in values.items()},
        work=f"{len(masks)} masks × {len(prompts)} prompts, {count} tokens each",
        floor_s=len(masks)
        * sum(bench.cost.row(len(prompt) + count, count) for prompt in prompts)
        / bench.rate,
    )
    for name, run in values.items():
        found["ways"][name]["tokens_per_second"] = (
            sum(len(text) for one in run.values() for text in one) / seconds[name]
        )
    parted = [
        (masks[mask], prompts[e], text, values["headwise"][mask][e])
        for name in ("hook loop over prompts", "hook loop, prompts batched")
        for mask, one in values[name].items()
        for e, text in enumerate(one)
        if text != values["headwise"][mask][e]
    ]
    ties = sum(gap_at_first_difference(hooks, *each) < TIE for each in parted)
    assert bench.dtype != torch.float32 or ties == len(parted), f"{len(parted) - ties} texts differ, no tie"
    found["ratio_one_prompt_at_a_time"] = found["ways"]["hook loop over prompts"]["times_headwise"]
    found |= {"different": len(parted), "tied": ties}
    if sizes.equal:
        found["equal_to_transformers"] = equal_to_transformers(bench, hooks, sizes.equal, count)
    return found


def _parts(items: list[int], count: int) -> list[list[int]]:
    return [part.tolist() for part in np.array_split(items, count) if len(part)]


def by_transformers(hooks: Hooks, prompts: list[list[int]], count: int) -> Texts:
    """Greedy texts of a left-padded batch by transformers' own `generate`, without end tokens."""
    hf = hooks.hf
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=hf.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=hf.device)
    written = hf.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=count, pad_token_id=0)
    ends = hf.generation_config.eos_token_id
    ends = set(ends) if isinstance(ends, list) else {ends}
    found = []
    for row in written[:, width:].tolist():
        stop = next((place for place, token in enumerate(row) if token in ends), len(row))
        found.append(row[:stop])
    return found


def gap_at_first_difference(
    hooks: Hooks, off: list[Head], prompt: list[int], a: list[int], b: list[int]
) -> float:
    """How far apart the two best logits are where two texts part."""
    shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    ids = torch.tensor([prompt + a[:shared]], device=hooks.hf.device)
    with torch.inference_mode():
        best = hooks.logits(ids, off, True)[0].topk(2).values
    return float(best[0] - best[1])


def equal_to_transformers(bench: Bench, hooks: Hooks, count: int, tokens: int) -> dict[str, int]:
    """How many of `count` real prompts are continued otherwise than by transformers alone, and how many at ties."""
    written = [example.prompt for example in hw.task("abilities", count, model=bench.model)]
    prompts = [bench.model.tokens(text) for text in written]
    theirs = [by_transformers(hooks, [prompt], tokens)[0] for prompt in prompts]
    ways = {
        "alone": [hw.generate(bench.model, [text], max_new_tokens=tokens).tokens[0][0] for text in written],
        "batched": hw.generate(bench.model, written, max_new_tokens=tokens).tokens[0],
    }
    found = {"prompts": count, "tokens": sum(map(len, theirs))}
    for way, ours in ways.items():
        parted = [e for e in range(count) if ours[e] != theirs[e]]
        gaps = [gap_at_first_difference(hooks, [], prompts[e], ours[e], theirs[e]) for e in parted]
        found |= {f"different_{way}": len(parted), f"tied_{way}": sum(gap < TIE for gap in gaps)}
        print(
            f"  {count} prompts {way}: {len(parted)} differ from transformers, {found[f'tied_{way}']} at tied logits",
            flush=True,
        )
        assert found[f"different_{way}"] == found[f"tied_{way}"], f"{way}: texts differ without a tie"
    return found
