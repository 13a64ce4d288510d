"""(d) An ablation curve from 0 to 50 heads for three orders; (e) a curve of keeping only the first k heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench import AGREE, Bench, summary
from common import in_turns, peak_mb
from headwise.heads import Order, mask_gates


def masked(bench: Bench) -> dict[str, Any]:
    """k = 0 … 50 for the heads that help most, those that hinder most, and an order of chance."""
    most = min(50, len(bench.model.heads()))
    wanted = [order[:k] for order in _orders(bench) for k in range(most + 1)]
    return _curve(bench, wanted, f"0 to {most} heads masked, three orders")


def kept(bench: Bench) -> dict[str, Any]:
    """About 25 numbers of kept heads, dense where there are few."""
    order = _orders(bench)[0]
    total = len(order)
    numbers = sorted({round(total ** (i / 28)) for i in range(29)} | {0, total})
    off = [order[k:] for k in numbers]
    return _curve(bench, off, f"only the first k of {total} heads kept, {len(numbers)} numbers of heads")


def _curve(bench: Bench, off: list[Order], what: str) -> dict[str, Any]:
    """Every set of heads at zero. A peer runs each `peer_every`-th set: each costs it one full pass."""
    inputs = bench.inputs(bench.arguments.examples)
    engine, shape = bench.engine(inputs), bench.model.shape
    gates = np.stack([mask_gates(heads, shape) for heads in off])
    turns = 2
    # In halves, so that ours meets as much of the others' noise as they do; sets of a half lie close together.
    halves = np.array_split(np.arange(len(off)), turns)
    every = bench.arguments.peer_every
    chosen = [half[:: min(every, len(half))] for half in halves]
    peers = bench.peers(inputs)
    engine.measure(gates[:1])  # warm
    ways: dict[str, Any] = {"headwise": [lambda h=half: engine.measure(gates[h]).values for half in halves]}
    ways |= {
        peer.label: [
            lambda p=peer, c=some: np.stack([p.values(inputs, off[v]) for v in c]) for some in chosen
        ]
        for peer in peers
    }
    seconds, results = in_turns(ways, bench.device)
    ours = np.concatenate(results["headwise"])
    run = np.concatenate(chosen)
    found = summary(
        seconds,
        {name: (len(off) if name == "headwise" else len(run)) / len(off) for name in seconds},
        work=f"{what}: {len(off)} sets × {len(inputs.ids)} prompts of {inputs.tokens} tokens",
        floor_s=len(inputs.ids) * bench.cost.variants(gates, inputs.tokens) / bench.rate,
        floor_without_sharing_s=len(off) * len(inputs.ids) * bench.cost.row(inputs.tokens) / bench.rate,
    )
    for peer in peers:
        gap = float(np.abs(np.concatenate(results[peer.label]) - ours[run]).max())
        assert gap < AGREE, f"{peer.label}: values differ by {gap}"
        found["ways"][peer.label] |= {
            "rows_per_pass": peer.batch,
            "largest_difference": gap,
            "peak_mb": peak_mb(lambda p=peer: p.values(inputs, off[-1]), bench.device),
        }
    some = gates[halves[-1][-12:]]
    found["ways"]["headwise"]["peak_mb"] = peak_mb(lambda: engine.measure(some), bench.device)
    found["largest_difference"] = max(
        (way["largest_difference"] for way in found["ways"].values() if "largest_difference" in way),
        default=0.0,
    )
    return found


def _orders(bench: Bench) -> list[Order]:
    """Most helpful first, most hindering first (both by attribution), and by chance."""
    inputs = bench.inputs(4)
    mean = bench.engine(inputs).gradients()[1].mean(axis=0)
    heads = sorted(bench.model.heads(), key=lambda head: -mean[head])
    drawn = np.random.default_rng(0).permutation(len(heads))
    return [heads, heads[::-1], [heads[i] for i in drawn]]
